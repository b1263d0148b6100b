"""Template row: folding in lanes, warps and blocks, tails, neutral elements, ties, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import BF16, DTYPES, build, moved_bytes, random_array, reason, reference
from row_programs import argmax, fold, softmax

from mlirstitch.driver.ptxas import check
from mlirstitch.passes.stitching.template import Schedule

WIDTHS = [*range(1, 34), 63, 65, 127, 128, 1023, 1025]


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("cols", WIDTHS)
def test_softmax_of_every_width_leaves_idle_lanes_out(cols):
    text = softmax(3, cols)
    x = random_array(np.random.default_rng(cols), (3, cols), "f32") - 30
    built = build(text, "row")
    (got,) = built.run([x])
    close(got, reference(text, [x])[0], 1e-6)
    assert moved_bytes(built) == built.traffic


@settings(max_examples=15, deadline=None)
@given(st.integers(1, 40), st.sampled_from(WIDTHS), st.sampled_from(("f32", "f16", "bf16")), st.integers(0, 1))
def test_rows_of_any_number_and_type(rows, cols, element, which):
    text = softmax(rows, cols, element)
    x = random_array(np.random.default_rng(0), (rows, cols), element)
    (got,) = build(text, "row", which=which).run([x])
    close(got, reference(text, [x])[0], {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[element])


@pytest.mark.parametrize(("rows", "cols"), [(2, 5000), (3, 4099), (1, 40000)])
@pytest.mark.parametrize("which", [0, 1])
def test_long_rows_take_a_block_each(rows, cols, which):
    text = softmax(rows, cols)
    x = random_array(np.random.default_rng(0), (rows, cols), "f32")
    built = build(text, "row", which=which)
    assert built.schedule.block[0] > 32
    assert "bar" in built.ptx
    assert "shfl" in built.ptx
    (got,) = built.run([x])
    close(got, reference(text, [x])[0], 1e-6)
    assert moved_bytes(built) == built.traffic


def test_rows_of_minus_infinity_and_nan_follow_the_ir():
    text = softmax(4, 37)
    x = random_array(np.random.default_rng(0), (4, 37), "f32")
    x[0] = -np.inf
    x[1, 36] = np.nan
    x[2, 3] = np.inf
    x[3, 1:] = -np.inf
    (got,) = build(text, "row").run([x])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(reference(text, [x], "ir")[0]))
    close(got[3], np.eye(37)[0], 0)


SUMS = [("arith.addf", "0.0"), ("arith.addf", "2.5"), ("arith.mulf", "1.0"), ("arith.maximumf", "0xFF800000")]
SUMS += [("arith.minimumf", "0x7F800000"), ("arith.maximumf", "0.5")]


@pytest.mark.parametrize(("op", "initial"), SUMS)
@pytest.mark.parametrize("cols", [5, 33, 300])
def test_the_initial_value_enters_once(op, initial, cols):
    text = fold((4, cols), (1,), "f32", op, initial)
    x = random_array(np.random.default_rng(0), (4, cols), "f32")
    if "mulf" in op:
        x = 1 + x / 100
    (got,) = build(text, "row").run([x])
    close(got, reference(text, [x])[0], 2e-5)


INTEGER_FOLDS = [("arith.addi", "3"), ("arith.muli", "1"), ("arith.maxsi", "-128"), ("arith.minsi", "127")]
INTEGER_FOLDS += [
    ("arith.andi", "-1"),
    ("arith.ori", "0"),
    ("arith.xori", "0"),
    ("arith.maxui", "0"),
    ("arith.minui", "-1"),
]


@pytest.mark.parametrize(("op", "initial"), INTEGER_FOLDS)
@pytest.mark.parametrize("element", ["i8", "i16", "i32", "i64"])
def test_integer_folds_are_exact_and_wrap(op, initial, element):
    text = fold((5, 77), (1,), element, op, initial)
    x = random_array(np.random.default_rng(0), (5, 77), element)
    (got,) = build(text, "row").run([x])
    np.testing.assert_array_equal(got, reference(text, [x], "ir")[0])


@pytest.mark.parametrize(("op", "initial"), [("arith.andi", "-1"), ("arith.ori", "0")])
def test_all_and_any_of_bools(op, initial):
    text = fold((6, 40), (1,), "i1", op, initial)
    x = np.random.default_rng(0).random((6, 40)) < 0.5
    x[0], x[1] = True, False
    (got,) = build(text, "row").run([x])
    np.testing.assert_array_equal(got, reference(text, [x], "ir")[0])


@pytest.mark.parametrize("element", ["f64", "f16", "bf16"])
def test_other_float_types_shuffle_whole_values(element):
    text = fold((3, 700), (1,), element, "arith.maximumf", {"f64": "-1.0", "f16": "-1.0", "bf16": "-1.0"}[element])
    x = random_array(np.random.default_rng(0), (3, 700), element)
    (got,) = build(text, "row").run([x])
    np.testing.assert_array_equal(got.astype(np.float64), np.maximum(x.astype(np.float64).max(1), -1))


def test_sums_of_f64_keep_double_precision():
    text = fold((2, 5000), (1,), "f64", "arith.addf", "0.0")
    x = 1e8 + np.random.default_rng(0).standard_normal((2, 5000))
    np.testing.assert_allclose(build(text, "row").run([x])[0], x.sum(1), rtol=1e-15)


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (1, 6, 1, 7), (4, 1, 9, 1), (2, 2, 33, 3)])
@pytest.mark.parametrize("reduced", [(2, 3), (1, 2, 3), (0, 1, 2, 3), (3,)])
def test_any_number_of_trailing_dims_is_a_row(shape, reduced):
    text = fold(shape, reduced, "f32", "arith.addf", "0.0")
    x = random_array(np.random.default_rng(0), shape, "f32")
    (got,) = build(text, "row").run([x])
    close(got, x.sum(reduced, dtype=np.float64), 1e-5)


@pytest.mark.parametrize("cols", [1, 7, 32, 100, 1025, 5000])
@pytest.mark.parametrize("index", ["i64", "i32"])
def test_the_first_of_equal_maxima_wins_whatever_the_block(cols, index):
    text = argmax(5, cols, "f32", index)
    x = np.random.default_rng(0).integers(0, 4, (5, cols)).astype(np.float32)
    x[1] = -np.inf
    x[2, cols // 2 :] = np.nan
    for which in (0, 1):
        values, places = build(text, "row", which=which).run([x])
        expected = [np.argmax(row) for row in x]
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(values, x[np.arange(5), expected])


def test_every_number_of_threads_and_chunks_gives_the_same_maximum_and_place():
    text = argmax(3, 1536)
    x = np.random.default_rng(0).integers(0, 50, (3, 1536)).astype(np.float32)
    for lanes in (32, 64, 256, 1024):
        for vector in (1, 2, 4):
            for mode in ("resident", "loop"):
                parameters = (("lanes", lanes), ("mode", mode), ("rows_per_block", 1), ("unroll", 2))
                schedule = Schedule("row", (3, 1, 1), (lanes, 1, 1), vector, 0, parameters)
                _, places = build(text, "row", schedule=schedule).run([x])
                np.testing.assert_array_equal(places, x.argmax(1))


def test_a_reduction_of_leading_dims_is_left_to_other_templates_when_rows_are_many():
    text = fold((8, 8192), (0,), "f32", "arith.addf", "0.0")
    why = reason(text, "row")
    assert why is not None
    assert "not contiguous" in why


def test_reductions_over_different_spaces_are_refused_with_both():
    text = """func.func @f(%a: tensor<4x6xf32>, %b: tensor<4x8xf32>) -> (tensor<4xf32>, tensor<4xf32>) {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<4xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<4xf32>) -> tensor<4xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]} ins(%a : tensor<4x6xf32>) outs(%i : tensor<4xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.addf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  %q = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]} ins(%b : tensor<4x8xf32>) outs(%i : tensor<4xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.addf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<4xf32>
  return %r, %q : tensor<4xf32>, tensor<4xf32>
}"""
    why = reason(text, "row")
    assert why is not None
    assert "4 rows of 8" in why
    assert "4 rows of 6" in why


def test_a_value_of_another_row_is_refused():
    text = """func.func @f(%a: tensor<6x6xf32>) -> tensor<6x6xf32> {
  %c = arith.constant 0.0 : f32
  %e = tensor.empty() : tensor<6xf32>
  %o = tensor.empty() : tensor<6x6xf32>
  %i = linalg.fill ins(%c : f32) outs(%e : tensor<6xf32>) -> tensor<6xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>],
      iterator_types = ["parallel", "reduction"]} ins(%a : tensor<6x6xf32>) outs(%i : tensor<6xf32>) {
  ^bb0(%x: f32, %acc: f32):
    %s = arith.addf %x, %acc : f32
    linalg.yield %s : f32
  } -> tensor<6xf32>
  %q = linalg.generic {indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>,
      affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}
      ins(%a, %r : tensor<6x6xf32>, tensor<6xf32>) outs(%o : tensor<6x6xf32>) {
  ^bb0(%x: f32, %y: f32, %z: f32):
    %s = arith.subf %x, %y : f32
    linalg.yield %s : f32
  } -> tensor<6x6xf32>
  return %q : tensor<6x6xf32>
}"""
    why = reason(text, "row")
    assert why is not None
    assert "its result is needed at row" in why


def test_a_body_that_does_not_fold_in_parallel_is_refused():
    text = fold((4, 6), (1,), "f32", "arith.subf", "0.0")
    why = reason(text, "row")
    assert why is not None
    assert "arith.subf" in why


def test_short_rows_share_warps_and_blocks():
    built = build(softmax(4096, 16), "row")
    assert dict(built.schedule.parameters)["lanes"] == 16
    assert built.schedule.block[0] == 128
    assert dict(built.schedule.parameters)["rows_per_block"] == 8


def test_a_row_that_fits_no_registers_is_read_again():
    built = build(softmax(4, 131072), "row", chip="sm_80")
    assert dict(built.schedule.parameters)["mode"] == "loop"
    assert built.traffic[0] == 3 * 4 * 131072 * 4


def test_wide_accesses_and_one_barrier_per_level():
    built = build(softmax(512, 4096), "row")
    assert built.schedule.vector == 4
    assert built.ptx.count("bar.sync") + built.ptx.count("barrier.sync") == 2
    assert "ld.global.nc.b32" not in built.ptx
    assert "st.global.b32" not in built.ptx


def test_half_precision_rows_are_read_128_bits_at_a_time():
    built = build(softmax(512, 1024, "bf16"), "row")
    assert built.schedule.vector == 8
    assert "ld.global.nc.v4.b32" in built.ptx
    assert DTYPES["bf16"] is BF16


@pytest.mark.parametrize(("cols", "element"), [(50003, "f32"), (49152, "f32"), (98304, "bf16"), (40000, "f32")])
def test_a_row_too_long_for_registers_is_staged_in_shared_memory_and_read_once(cols, element):
    text = softmax(3, cols, element)
    built = build(text, "row", which=1)
    size = np.dtype(DTYPES[element]).itemsize
    assert built.schedule.parameter("mode") == "staged"
    assert 48 * 1024 < built.schedule.shared_bytes <= cols * size
    assert built.traffic == (3 * cols * size,) * 2
    x = random_array(np.random.default_rng(0), (3, cols), element)
    (got,) = built.run([x])
    close(got * cols, reference(text, [x])[0] * cols, 1e-5 if element == "f32" else 1e-2)
    assert moved_bytes(built) == built.traffic
    assert "ld.shared.v4" in built.ptx or cols % 4


def test_two_staged_tensors_have_memory_of_their_own():
    cols = 40000
    kind, row = f"tensor<2x{cols}xbf16>", "tensor<2x1xf32>"
    added = f"""%eb = tensor.empty() : {kind}
  %p = linalg.generic {{indexing_maps = [#id, #id, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%a, %b : {kind}, {kind}) outs(%eb : {kind}) {{
  ^bb0(%x: bf16, %y: bf16, %o: bf16):
    %r = arith.addf %x, %y : bf16
    linalg.yield %r : bf16
  }} -> {kind}
  %er = tensor.empty() : {row}"""
    text = (
        softmax(2, cols, "bf16").replace(f"@f(%a: {kind})", f"@f(%a: {kind}, %b: {kind})").replace("ins(%a", "ins(%p")
    )
    text = text.replace(f"%er = tensor.empty() : {row}", added)
    built = build(text, "row", which=1)
    rng = np.random.default_rng(0)
    x, y = random_array(rng, (2, cols), "bf16"), random_array(rng, (2, cols), "bf16")
    assert built.schedule.parameter("mode") == "staged"
    assert built.traffic == (x.nbytes,) * 3
    (got,) = built.run([x, y])
    close(got * cols, reference(text, [x, y], "ir")[0].astype(np.float64) * cols, 1e-2)
    assert moved_bytes(built) == built.traffic


@pytest.mark.parametrize("seed", [1, 2])
def test_a_row_split_over_blocks_gives_the_same_bits_in_any_order(seed):
    built = build(fold((2, 60000), (1,), "f32", "arith.addf", "0.0"), "row")
    assert built.schedule.parameter("splits") > 1
    x = random_array(np.random.default_rng(0), (2, 60000), "f32")
    (got,), (expected,) = built.run([x], seed=seed, sanitize=True), built.run([x])
    np.testing.assert_array_equal(got, expected)
    close(got, x.sum(1, dtype=np.float64), 1e-3)


def test_a_full_reduction_fills_the_chip():
    text = fold((1, 2000000), (0, 1), "f32", "arith.addf", "0.0")
    built = build(text, "row")
    assert built.schedule.grid[0] > 200
    x = random_array(np.random.default_rng(0), (1, 2000000), "f32")
    (got,) = built.run([x])
    close(got, x.sum(dtype=np.float64), 1e-2)
    assert moved_bytes(built) == built.traffic


def test_few_long_rows_that_are_needed_again_are_refused():
    why = reason(softmax(2, 1 << 20), "row")
    assert why is not None
    assert "multiprocessors busy" in why


def test_a_chip_with_less_shared_memory_reads_the_row_again():
    small = build(softmax(3, 50003), "row", chip="sm_75")
    assert small.schedule.parameter("mode") == "loop"
    assert small.schedule.shared_bytes == 0


def test_a_tensor_read_under_a_condition_is_not_staged():
    padded = "%p = tensor.pad %a low[0, 1] high[0, 2] { ^bb0(%i: index, %j: index): tensor.yield %zero : f32 } "
    text = softmax(2, 50003).replace("func.func @f(%a: tensor<2x50003xf32>)", "func.func @f(%a: tensor<2x50000xf32>)")
    head, tail = text.split("%er = ", 1)
    text = head + padded + ": tensor<2x50000xf32> to tensor<2x50003xf32>\n  %er = " + tail.replace("ins(%a", "ins(%p")
    built = build(text, "row", chip="sm_80")
    x = random_array(np.random.default_rng(0), (2, 50000), "f32")
    (got,) = built.run([x])
    close(got, reference(text, [x])[0], 1e-8)
    assert built.schedule.parameter("mode") == "loop"


@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize(("rows", "cols"), [(4096, 1024), (4096, 4096), (4096, 30522), (64, 40960), (64, 131072)])
def test_registers_suffice_for_every_schedule(chip, rows, cols):
    report = check(build(softmax(rows, cols), "row", chip=chip).ptx, chip)
    assert not report.errors
    assert [use.spill_stores + use.stack for use in report.kernels.values()] == [0]


def test_values_that_live_across_passes_decide_how_many_threads_share_a_row():
    one, two = (build(softmax(64, cols), "row", chip="sm_80") for cols in (30522, 131072))
    assert dict(one.schedule.parameters)["mode"] == "resident"
    assert dict(two.schedule.parameters)["mode"] == "loop"
    assert one.traffic == (64 * 30522 * 4, 64 * 30522 * 4)
    assert two.traffic == (3 * 64 * 131072 * 4, 64 * 131072 * 4)
