"""The reference evaluator is the judge of every pass, so it is judged here against plain numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from mlirstitch.driver.reference import run
from mlirstitch.errors import LaunchError, MlirstitchError, PassError

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def body(text: str, signature: str) -> str:
    return f"func.func @main{signature} {{\n{text}\n}}"


def reduction(element: str, size: int) -> str:
    return f"""
func.func @main(%x: tensor<{size}x{element}>) -> tensor<{element}> {{
  %zero = arith.constant 0.0 : {element}
  %e = tensor.empty() : tensor<{element}>
  %init = linalg.fill ins(%zero : {element}) outs(%e : tensor<{element}>) -> tensor<{element}>
  %r = linalg.generic {{indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> ()>],
      iterator_types = ["reduction"]}} ins(%x : tensor<{size}x{element}>) outs(%init : tensor<{element}>) {{
  ^bb0(%a: {element}, %acc: {element}):
    %s = arith.addf %a, %acc : {element}
    linalg.yield %s : {element}
  }} -> tensor<{element}>
  return %r : tensor<{element}>
}}"""


def test_a_bf16_accumulator_stalls_as_the_ir_says() -> None:
    ones = np.ones(4096, ml_dtypes.bfloat16)
    assert float(run(reduction("bf16", 4096), [ones])[0]) == 256.0


def test_an_f32_sum_is_pairwise_and_does_not_stall() -> None:
    ones = np.ones(1 << 25, np.float32)
    assert float(run(reduction("f32", 1 << 25), [ones])[0]) == float(1 << 25)


def test_float64_precision_widens_every_float() -> None:
    ones = np.ones(4096, ml_dtypes.bfloat16)
    result = run(reduction("bf16", 4096), [ones], precision="float64")[0]
    assert result.dtype == np.float64
    assert float(result) == 4096.0


def test_sum_of_no_elements_is_the_initial_value() -> None:
    assert float(run(reduction("f32", 0), [np.ones(0, np.float32)])[0]) == 0.0


def test_keepdim_reduction_with_a_constant_map_result() -> None:
    text = """
func.func @main(%x: tensor<5x7xf32>) -> tensor<5x1xf32> {
  %zero = arith.constant 1.0 : f32
  %e = tensor.empty() : tensor<5x1xf32>
  %init = linalg.fill ins(%zero : f32) outs(%e : tensor<5x1xf32>) -> tensor<5x1xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0, 0)>],
      iterator_types = ["parallel", "reduction"]} ins(%x : tensor<5x7xf32>) outs(%init : tensor<5x1xf32>) {
  ^bb0(%a: f32, %acc: f32):
    %p = arith.mulf %a, %a : f32
    %s = arith.addf %acc, %p : f32
    linalg.yield %s : f32
  } -> tensor<5x1xf32>
  return %r : tensor<5x1xf32>
}"""
    x = normal(5, 7)
    np.testing.assert_allclose(run(text, [x])[0], 1 + (x * x).sum(1, keepdims=True), rtol=1e-6)


def test_index_reduction_follows_the_serial_order_of_the_body() -> None:
    text = """
func.func @main(%x: tensor<6x9xf32>) -> (tensor<6xf32>, tensor<6xi64>) {
  %low = arith.constant 0xFF800000 : f32
  %zero = arith.constant 0 : i64
  %e = tensor.empty() : tensor<6xf32>
  %ei = tensor.empty() : tensor<6xi64>
  %init = linalg.fill ins(%low : f32) outs(%e : tensor<6xf32>) -> tensor<6xf32>
  %initi = linalg.fill ins(%zero : i64) outs(%ei : tensor<6xi64>) -> tensor<6xi64>
  %r:2 = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>,
      affine_map<(d0, d1) -> (d0)>], iterator_types = ["parallel", "reduction"]}
      ins(%x : tensor<6x9xf32>) outs(%init, %initi : tensor<6xf32>, tensor<6xi64>) {
  ^bb0(%a: f32, %m: f32, %mi: i64):
    %i = linalg.index 1 : index
    %k = arith.index_cast %i : index to i64
    %g = arith.cmpf ogt, %a, %m : f32
    %v = arith.select %g, %a, %m : f32
    %w = arith.select %g, %k, %mi : i64
    linalg.yield %v, %w : f32, i64
  } -> (tensor<6xf32>, tensor<6xi64>)
  return %r#0, %r#1 : tensor<6xf32>, tensor<6xi64>
}"""
    x = np.round(normal(6, 9))
    values, indices = run(text, [x])
    np.testing.assert_array_equal(values, x.max(1))
    np.testing.assert_array_equal(indices, x.argmax(1))


def test_named_contractions_equal_numpy() -> None:
    text = """
func.func @main(%a: tensor<3x4x5xf32>, %b: tensor<3x5x6xf32>, %c: tensor<3x4x6xf32>) -> tensor<3x4x6xf32> {
  %r = linalg.batch_matmul ins(%a, %b : tensor<3x4x5xf32>, tensor<3x5x6xf32>) outs(%c : tensor<3x4x6xf32>)
      -> tensor<3x4x6xf32>
  return %r : tensor<3x4x6xf32>
}"""
    a, b, c = normal(3, 4, 5), normal(3, 5, 6), normal(3, 4, 6)
    np.testing.assert_allclose(run(text, [a, b, c])[0], a @ b + c, rtol=1e-5, atol=1e-5)


def test_strided_dilated_convolution_equals_numpy() -> None:
    text = """
func.func @main(%x: tensor<2x3x11x9xf32>, %w: tensor<4x3x3x2xf32>, %o: tensor<2x4x4x7xf32>) -> tensor<2x4x4x7xf32> {
  %r = linalg.conv_2d_nchw_fchw {strides = dense<[2, 1]> : tensor<2xi64>, dilations = dense<[2, 2]> : tensor<2xi64>}
      ins(%x, %w : tensor<2x3x11x9xf32>, tensor<4x3x3x2xf32>) outs(%o : tensor<2x4x4x7xf32>) -> tensor<2x4x4x7xf32>
  return %r : tensor<2x4x4x7xf32>
}"""
    x, w, o = normal(2, 3, 11, 9), normal(4, 3, 3, 2), np.zeros((2, 4, 4, 7), np.float32)
    want = np.zeros_like(o)
    for i in range(3):
        for j in range(2):
            want += np.einsum("nchw,fc->nfhw", x[:, :, 2 * i : 2 * i + 7 : 2, 2 * j : 2 * j + 7], w[:, :, i, j])
    np.testing.assert_allclose(run(text, [x, w, o])[0], want, rtol=1e-4, atol=1e-5)


def test_max_pooling_propagates_nan() -> None:
    text = """
func.func @main(%x: tensor<1x1x4x4xf32>, %k: tensor<2x2xf32>) -> tensor<1x1x2x2xf32> {
  %low = arith.constant dense<0xFF800000> : tensor<1x1x2x2xf32>
  %r = linalg.pooling_nchw_max {strides = dense<2> : tensor<2xi64>, dilations = dense<1> : tensor<2xi64>}
      ins(%x, %k : tensor<1x1x4x4xf32>, tensor<2x2xf32>) outs(%low : tensor<1x1x2x2xf32>) -> tensor<1x1x2x2xf32>
  return %r : tensor<1x1x2x2xf32>
}"""
    x = normal(1, 1, 4, 4)
    x[0, 0, 0, 1] = np.nan
    want = x.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).reshape(2, 2, 4).max(-1)[None, None]
    np.testing.assert_array_equal(run(text, [x, normal(2, 2)])[0], want)


def test_maps_with_floordiv_and_mod_read_by_index() -> None:
    text = """
func.func @main(%x: tensor<3x4xf32>) -> tensor<12xf32> {
  %e = tensor.empty() : tensor<12xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0 floordiv 4, d0 mod 4)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]} ins(%x : tensor<3x4xf32>) outs(%e : tensor<12xf32>) {
  ^bb0(%a: f32, %o: f32):
    linalg.yield %a : f32
  } -> tensor<12xf32>
  return %r : tensor<12xf32>
}"""
    x = normal(3, 4)
    np.testing.assert_array_equal(run(text, [x])[0], x.reshape(12))


def test_data_movement() -> None:
    text = """
func.func @main(%x: tensor<4x6xf32>) -> (tensor<7x8xf32>, tensor<2x3xf32>, tensor<6x4xf32>, tensor<4x12xf32>) {
  %c = arith.constant 9.0 : f32
  %p = tensor.pad %x low[1, 0] high[2, 2] {
  ^bb0(%i: index, %j: index):
    tensor.yield %c : f32
  } : tensor<4x6xf32> to tensor<7x8xf32>
  %s = tensor.extract_slice %x[1, 0] [2, 3] [2, 2] : tensor<4x6xf32> to tensor<2x3xf32>
  %e = tensor.empty() : tensor<6x4xf32>
  %t = linalg.transpose ins(%x : tensor<4x6xf32>) outs(%e : tensor<6x4xf32>) permutation = [1, 0]
  %n = tensor.concat dim(1) %x, %x : (tensor<4x6xf32>, tensor<4x6xf32>) -> tensor<4x12xf32>
  %i = tensor.insert_slice %s into %n[0, 0] [2, 3] [1, 1] : tensor<2x3xf32> into tensor<4x12xf32>
  return %p, %s, %t, %i : tensor<7x8xf32>, tensor<2x3xf32>, tensor<6x4xf32>, tensor<4x12xf32>
}"""
    x = normal(4, 6)
    padded, picked, transposed, inserted = run(text, [x])
    np.testing.assert_array_equal(padded, np.pad(x, ((1, 2), (0, 2)), constant_values=9))
    np.testing.assert_array_equal(picked, x[1::2, ::2])
    np.testing.assert_array_equal(transposed, x.T)
    both = np.concatenate([x, x], 1)
    both[:2, :3] = x[1::2, ::2]
    np.testing.assert_array_equal(inserted, both)


def test_calls_into_private_functions_run() -> None:
    text = """
func.func private @twice(%x: tensor<3xf32>) -> tensor<3xf32> attributes {no_inline} {
  %r = arith.addf %x, %x : tensor<3xf32>
  return %r : tensor<3xf32>
}
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %a = call @twice(%x) : (tensor<3xf32>) -> tensor<3xf32>
  %b = call @twice(%a) : (tensor<3xf32>) -> tensor<3xf32>
  return %b : tensor<3xf32>
}"""
    x = normal(3)
    np.testing.assert_array_equal(run(text, [x])[0], 4 * x)


@pytest.mark.parametrize("text", ["dense<[1.0, -2.5, 0x7FC0, 3.0e-2]>", 'dense<"0x803F20C0C07FF63C">'])
def test_bf16_constants_are_read_from_decimals_and_bytes(text: str) -> None:
    program = body(f"%c = arith.constant {text} : tensor<4xbf16> return %c : tensor<4xbf16>", "() -> tensor<4xbf16>")
    want = np.array([1.0, -2.5, np.nan, 3.0e-2], ml_dtypes.bfloat16)
    np.testing.assert_array_equal(run(program, [])[0].astype(np.float32), want.astype(np.float32))


def test_signed_and_unsigned_integers_differ() -> None:
    text = """
func.func @main(%x: tensor<4xi8>) -> (tensor<4xi32>, tensor<4xi32>, tensor<4xi8>, tensor<4xi8>) {
  %three = arith.constant dense<3> : tensor<4xi8>
  %s = arith.extsi %x : tensor<4xi8> to tensor<4xi32>
  %u = arith.extui %x : tensor<4xi8> to tensor<4xi32>
  %d = arith.divsi %x, %three : tensor<4xi8>
  %f = arith.floordivsi %x, %three : tensor<4xi8>
  return %s, %u, %d, %f : tensor<4xi32>, tensor<4xi32>, tensor<4xi8>, tensor<4xi8>
}"""
    x = np.array([-7, 7, -128, 1], np.int8)
    signed, unsigned, truncated, floored = run(text, [x])
    np.testing.assert_array_equal(signed, x)
    np.testing.assert_array_equal(unsigned, x.view(np.uint8))
    np.testing.assert_array_equal(truncated, [-2, 2, -42, 0])
    np.testing.assert_array_equal(floored, [-3, 2, -43, 0])


def test_a_result_named_uint8_comes_back_unsigned() -> None:
    text = 'func.func @main(%x: tensor<1xi8>) -> (tensor<1xi8> {stitch.dtype = "uint8"}) { return %x : tensor<1xi8> }'
    result = run(text, [np.array([200], np.uint8)])[0]
    assert result.dtype == np.uint8
    assert result[0] == 200


@pytest.mark.parametrize(
    ("predicate", "want"),
    [
        ("oeq", [0, 1, 0]),
        ("une", [1, 0, 1]),
        ("ult", [1, 0, 1]),
        ("olt", [0, 0, 1]),
        ("ord", [0, 1, 1]),
        ("uno", [1, 0, 0]),
    ],
)
def test_float_comparisons_with_nan(predicate: str, want: list[int]) -> None:
    program = body(
        f"%r = arith.cmpf {predicate}, %a, %b : tensor<3xf32> return %r : tensor<3xi1>",
        "(%a: tensor<3xf32>, %b: tensor<3xf32>) -> tensor<3xi1>",
    )
    a, b = np.array([np.nan, 1, 1], np.float32), np.array([1, 1, 2], np.float32)
    np.testing.assert_array_equal(run(program, [a, b])[0], np.array(want, bool))


GATHER = """
func.func @main(%t: tensor<4xf32>, %i: tensor<2xi64>) -> tensor<2xf32> {
  %e = tensor.empty() : tensor<2xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
      iterator_types = ["parallel"]} ins(%i : tensor<2xi64>) outs(%e : tensor<2xf32>) {
  ^bb0(%a: i64, %o: f32):
    CHECK
    %k = arith.index_cast %a : i64 to index
    %x = tensor.extract %t[%k] : tensor<4xf32>
    linalg.yield %x : f32
  } -> tensor<2xf32>
  return %r : tensor<2xf32>
}"""
ASSERTION = """%four = arith.constant 4 : i64
    %ok = arith.cmpi slt, %a, %four : i64
    cf.assert %ok, "index must be smaller than dim size\""""


def test_gather_reads_by_index() -> None:
    table = normal(4)
    np.testing.assert_array_equal(run(GATHER.replace("CHECK", ""), [table, np.array([3, 0])])[0], table[[3, 0]])


def test_reading_outside_a_tensor_is_refused() -> None:
    with pytest.raises(LaunchError, match="leaves dim 0 of 4"):
        run(GATHER.replace("CHECK", ""), [normal(4), np.array([4, 0])])


def test_a_failing_assertion_in_a_body_is_reported() -> None:
    with pytest.raises(LaunchError, match="index must be smaller"):
        run(GATHER.replace("CHECK", ASSERTION), [normal(4), np.array([4, 0])])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([], "takes 1 arguments, 0"),
        ([np.ones(3, np.float64)], "float64"),
        ([np.ones(4, np.float32)], r"shape \[4\]"),
        ([np.ones((3, 1), np.float32)], r"shape \[3, 1\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(inputs: list[np.ndarray], message: str) -> None:
    with pytest.raises(LaunchError, match=message):
        run("func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> { return %x : tensor<3xf32> }", inputs)


def test_an_unknown_op_is_named_with_types_and_source_line() -> None:
    text = """
func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
  %e = tensor.empty() : tensor<3xf32>
  %r = linalg.softmax dimension(0) ins(%x : tensor<3xf32>) outs(%e : tensor<3xf32>) -> tensor<3xf32> loc("m.py":7:1)
  return %r : tensor<3xf32>
}"""
    with pytest.raises(PassError, match=r"m.py:7:1: linalg.softmax \(tensor<3xf32>, tensor<3xf32>\)"):
        run(text, [normal(3)])


def test_text_that_does_not_parse_is_refused() -> None:
    with pytest.raises(MlirstitchError, match="expected"):
        run("func.func @main(", [])


def test_large_spaces_are_evaluated_in_blocks_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlirstitch.driver.reference import structured

    x = normal(5, 7)
    text = """
func.func @main(%x: tensor<5x7xf32>) -> tensor<7x5xf32> {
  %e = tensor.empty() : tensor<7x5xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d1, d0)>, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]} ins(%x : tensor<5x7xf32>) outs(%e : tensor<7x5xf32>) {
  ^bb0(%a: f32, %o: f32):
    %i = linalg.index 0 : index
    %k = arith.index_cast %i : index to i32
    %f = arith.sitofp %k : i32 to f32
    %s = arith.addf %a, %f : f32
    linalg.yield %s : f32
  } -> tensor<7x5xf32>
  return %r : tensor<7x5xf32>
}"""
    want = x.T + np.arange(7, dtype=np.float32)[:, None]
    monkeypatch.setattr(structured, "BLOCK_POINTS", 4)
    np.testing.assert_array_equal(run(text, [x])[0], want)
