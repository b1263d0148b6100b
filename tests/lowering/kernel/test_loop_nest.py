"""Template loop_nest: contractions, convolutions, poolings, reductions in any dim, and what it refuses to repeat."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import build, moved_bytes, random_array, reason, reference
from row_programs import argmax, fold, softmax

from mlirstitch.lowering.kernel.loop_nest import BLOCK


def matmul(m: int, n: int, k: int, element: str = "f32", accumulator: str = "f32") -> str:
    a, b = f"tensor<{m}x{k}x{element}>", f"tensor<{k}x{n}x{element}>"
    c = f"tensor<{m}x{n}x{accumulator}>"
    zero = "0" if accumulator.startswith("i") else "0.0"
    return f"""func.func @f(%a: {a}, %b: {b}) -> {c} {{
  %z = arith.constant {zero} : {accumulator}
  %e = tensor.empty() : {c}
  %i = linalg.fill ins(%z : {accumulator}) outs(%e : {c}) -> {c}
  %r = linalg.matmul ins(%a, %b : {a}, {b}) outs(%i : {c}) -> {c}
  return %r : {c}
}}"""


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.sampled_from((1, 2, 7, 64, 127, 128, 129, 300)))
def test_matmul_of_any_size(m, n, k):
    text = matmul(m, n, k)
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (m, k), "f32"), random_array(rng, (k, n), "f32")
    (got,) = build(text, "loop_nest").run([a, b])
    exact, magnitude = a.astype(np.float64) @ b, np.abs(a.astype(np.float64)) @ np.abs(b)
    # A run of at most 128 terms is one chain, and so are the runs: as many roundings (Higham, section 3.1).
    roundings = min(k, BLOCK) + -(-k // BLOCK)
    assert (np.abs(got - exact) <= roundings * 2.0**-24 * magnitude).all()


@pytest.mark.parametrize(
    ("element", "accumulator"),
    [("f16", "f32"), ("bf16", "f32"), ("f64", "f64"), ("i8", "i32"), ("i64", "i64"), ("f16", "f16")],
)
def test_matmul_of_other_types_honours_the_types_of_the_ir(element, accumulator):
    text = matmul(5, 9, 33, element, accumulator)
    rng = np.random.default_rng(0)
    a, b = random_array(rng, (5, 33), element), random_array(rng, (33, 9), element)
    (got,) = build(text, "loop_nest").run([a, b])
    if accumulator.startswith("i"):
        np.testing.assert_array_equal(got, reference(text, [a, b], "ir")[0])
    else:
        exact = reference(text, [a, b])[0]
        np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0, atol=3e-2 if accumulator == "f16" else 2e-5)


def test_a_contraction_multiplies_and_adds_in_one_rounding():
    assert "fma.rn.f32" in build(matmul(4, 4, 200), "loop_nest").ptx


def test_a_large_running_sum_does_not_swallow_the_rest():
    text = fold((4096, 2), (0,), "f32", "arith.addf", "0.0")
    x = np.ones((4096, 2), np.float32)
    x[0] = 2**24
    (got,) = build(text, "loop_nest").run([x])
    assert (got >= 2**24 + 4096 - 128).all()


def test_the_alignment_told_to_llvm_divides_the_size_of_a_buffer():
    text = build(matmul(1, 4, 7), "loop_nest").gpu_text
    assert "memref<7xf32> {llvm.align = 4 : i32" in text
    assert "memref<28xf32> {llvm.align = 16 : i32" in text


def test_long_sums_are_as_good_as_blocked_ones():
    text = fold((20_003, 3), (0,), "f32", "arith.addf", "0.0")
    x = np.random.default_rng(0).random((20_003, 3)).astype(np.float32)
    built = build(text, "loop_nest")
    (got,) = built.run([x])
    np.testing.assert_allclose(got, x.sum(0, dtype=np.float64), rtol=2e-6)
    assert moved_bytes(built) == built.traffic


@pytest.mark.parametrize("reduced", [(0,), (1,), (0, 2), (0, 1, 2), (1, 2)])
@pytest.mark.parametrize(("op", "initial"), [("arith.addf", "1.5"), ("arith.subf", "0.25"), ("arith.maximumf", "0.5")])
def test_any_dims_by_any_op_from_the_initial_value(reduced, op, initial):
    text = fold((4, 5, 6), reduced, "f32", op, initial)
    x = random_array(np.random.default_rng(0), (4, 5, 6), "f32")
    (got,) = build(text, "loop_nest").run([x])
    np.testing.assert_allclose(got, reference(text, [x])[0], rtol=1e-5, atol=1e-5)


def test_a_sum_over_nothing_is_the_initial_value():
    text = fold((4, 0), (1,), "f32", "arith.addf", "2.5")
    (got,) = build(text).run([np.zeros((4, 0), np.float32)])
    np.testing.assert_array_equal(got, np.full(4, 2.5))


def test_argmax_in_one_thread_agrees_with_the_row_template():
    text = argmax(3, 50)
    x = np.random.default_rng(0).integers(0, 5, (3, 50)).astype(np.float32)
    x[1, 30:] = np.nan
    for template in ("row", "loop_nest"):
        values, places = build(text, template).run([x])
        np.testing.assert_array_equal(places, x.argmax(1))
        np.testing.assert_array_equal(values, x.max(1))


CONVOLUTION = """func.func @f(%x: tensor<2x3x8x9xf32>, %w: tensor<4x3x3x2xf32>, %b: tensor<4xf32>)
    -> tensor<2x4x4x5xf32> {
  %z = arith.constant 0.0 : f32
  %p = tensor.pad %x low[0, 0, 1, 0] high[0, 0, 1, 2] {
  ^bb0(%i: index, %j: index, %k: index, %l: index):
    tensor.yield %z : f32
  } : tensor<2x3x8x9xf32> to tensor<2x3x10x11xf32>
  %e = tensor.empty() : tensor<2x4x4x5xf32>
  %i0 = linalg.broadcast ins(%b : tensor<4xf32>) outs(%e : tensor<2x4x4x5xf32>) dimensions = [0, 2, 3]
  %r = linalg.conv_2d_nchw_fchw {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>}
    ins(%p, %w : tensor<2x3x10x11xf32>, tensor<4x3x3x2xf32>) outs(%i0 : tensor<2x4x4x5xf32>) -> tensor<2x4x4x5xf32>
  return %r : tensor<2x4x4x5xf32>
}"""


def test_convolution_with_padding_stride_and_bias_is_one_kernel():
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, s, "f32") for s in ((2, 3, 8, 9), (4, 3, 3, 2), (4,))]
    (got,) = build(CONVOLUTION, "loop_nest").run(inputs)
    np.testing.assert_allclose(got, reference(CONVOLUTION, inputs)[0], rtol=1e-5, atol=1e-5)


POOLING = """func.func @f(%x: tensor<1x2x8x8xf32>) -> tensor<1x2x3x3xf32> {
  %z = arith.constant 0xFF800000 : f32
  %e = tensor.empty() : tensor<1x2x3x3xf32>
  %w = tensor.empty() : tensor<3x3xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<1x2x3x3xf32>) -> tensor<1x2x3x3xf32>
  %r = linalg.pooling_nchw_max {dilations = dense<1> : vector<2xi64>, strides = dense<2> : vector<2xi64>}
    ins(%x, %w : tensor<1x2x8x8xf32>, tensor<3x3xf32>) outs(%i : tensor<1x2x3x3xf32>) -> tensor<1x2x3x3xf32>
  return %r : tensor<1x2x3x3xf32>
}"""


def test_pooling_reads_its_windows_and_not_the_window_operand():
    x = random_array(np.random.default_rng(0), (1, 2, 8, 8), "f32")
    x[0, 0, 3, 3] = np.nan
    (got,) = build(POOLING, "loop_nest").run([x])
    np.testing.assert_array_equal(got, reference(POOLING, [x], "ir")[0])


def test_a_reduction_needed_for_every_element_of_its_row_is_refused_with_the_count():
    why = reason(softmax(4, 10), "loop_nest")
    assert why is not None
    assert "would be computed" in why


def test_a_reduction_inside_a_reduction_is_refused():
    text = """func.func @f(%a: tensor<4x6x5xf32>) -> tensor<4xf32> {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x6xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>
  %e1 = tensor.empty() : tensor<4xf32>
  %i1 = linalg.fill ins(%c : f32) outs(%e1 : tensor<4xf32>) -> tensor<4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1, d2) -> (d0, d1, d2)>,
      affine_map<(d0, d1, d2) -> (d0, d1)>], iterator_types = ["parallel", "parallel", "reduction"]}
      ins(%a : tensor<4x6x5xf32>) outs(%i : tensor<4x6xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.addf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<4x6xf32>
  %q = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]} ins(%r : tensor<4x6xf32>) outs(%i1 : tensor<4xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.maximumf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %q : tensor<4xf32>
}"""
    why = reason(text, "loop_nest")
    assert why is not None
    assert "would be computed in its loop" in why


COMPLEX = """func.func @f(%a: tensor<4xcomplex<f32>>) -> tensor<4xcomplex<f32>> {
  return %a : tensor<4xcomplex<f32>>
}"""

DYNAMIC = """func.func @f(%a: tensor<?xf32>) -> tensor<?x1xf32> {
  %d = arith.constant 0 : index
  %n = tensor.dim %a, %d : tensor<?xf32>
  %r = tensor.expand_shape %a [[0, 1]] output_shape [%n, 1] : tensor<?xf32> into tensor<?x1xf32>
  return %r : tensor<?x1xf32>
}"""


@pytest.mark.parametrize(("text", "expected"), [(COMPLEX, "complex<f32> are not supported"), (DYNAMIC, "is dynamic")])
def test_what_no_kernel_can_hold_is_refused_with_the_reason(text, expected):
    why = reason(text, "loop_nest")
    assert why is not None
    assert expected in why


GATES = """func.func @f(%a: tensor<4x24xf32>, %w: tensor<24x20xf32>) -> tensor<4x10xf32> {
  %z = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4x20xf32>
  %i = linalg.fill ins(%z : f32) outs(%e : tensor<4x20xf32>) -> tensor<4x20xf32>
  %m = linalg.matmul ins(%a, %w : tensor<4x24xf32>, tensor<24x20xf32>) outs(%i : tensor<4x20xf32>) -> tensor<4x20xf32>
  %l = tensor.extract_slice %m[0, 0] [4, 10] [1, 1] : tensor<4x20xf32> to tensor<4x10xf32>
  %r = tensor.extract_slice %m[0, 10] [4, 10] [1, 1] : tensor<4x20xf32> to tensor<4x10xf32>
  %o = tensor.empty() : tensor<4x10xf32>
  %p = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, d1)>,
      affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%l, %r : tensor<4x10xf32>, tensor<4x10xf32>) outs(%o : tensor<4x10xf32>) {
  ^bb0(%x: f32, %y: f32, %out: f32):
    %s = arith.mulf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<4x10xf32>
  return %p : tensor<4x10xf32>
}"""


def test_slices_of_one_product_share_a_loop_and_its_loads():
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, s, "f32") for s in ((4, 24), (24, 20))]
    built = build(GATES, "loop_nest")
    (got,) = built.run(inputs)
    np.testing.assert_allclose(got, reference(GATES, inputs)[0], rtol=1e-5, atol=1e-5)
    assert built.gpu_text.count("scf.for") == 1
    assert built.traffic[0] == 40 * 24 * 4
    assert moved_bytes(built) == built.traffic
