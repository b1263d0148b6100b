"""Template column: coalescing, folding above each other, splitting over blocks, tails, neutral elements, ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import build, moved_bytes, random_array, reason, reference
from row_programs import argmax_over, fold, softmax_over

from mlirstitch.driver.ptxas import check
from mlirstitch.passes.stitching.template import Schedule


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=tolerance, atol=tolerance)


SHAPES = [((64, 40), (0,)), ((1000, 7), (0,)), ((3, 50, 33), (1,)), ((5, 4, 6, 32), (0, 1)), ((4, 9, 6, 8), (0, 2))]
SHAPES += [((2, 3, 1, 129), (0, 1)), ((70, 1030), (0,)), ((8192, 64), (0,)), ((5000, 4), (0,)), ((9, 2), (0,))]


@pytest.mark.parametrize(("shape", "reduced"), SHAPES)
@pytest.mark.parametrize("which", [0, 1])
def test_any_leading_and_middle_dims_are_summed(shape, reduced, which):
    text = fold(shape, reduced, "f32", "arith.addf", "0.0")
    x = random_array(np.random.default_rng(0), shape, "f32")
    built = build(text, "column", which=which)
    (got,) = built.run([x])
    close(got, x.sum(reduced, dtype=np.float64), 2e-4)
    assert moved_bytes(built) == built.traffic
    assert built.traffic[0] == x.nbytes


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 5), st.integers(2, 70), st.integers(2, 70), st.sampled_from(("f32", "f16", "bf16")))
def test_softmax_over_a_middle_dim_of_any_size_and_type(outer, cols, inner, element):
    text = softmax_over((outer, cols, inner), 1, element)
    x = random_array(np.random.default_rng(0), (outer, cols, inner), element)
    for which in (0, 1):
        built = build(text, "column", which=which)
        (got,) = built.run([x])
        close(got, reference(text, [x])[0], {"f32": 1e-6, "f16": 1e-3, "bf16": 8e-3}[element])
        assert moved_bytes(built) == built.traffic


def test_columns_that_fit_into_registers_are_read_once():
    built = build(softmax_over((16, 64, 1024), 1), "column")
    assert dict(built.schedule.parameters)["mode"] == "resident"
    assert built.traffic == (16 * 64 * 1024 * 4,) * 2
    assert "ld.global.nc.v4.b32" in built.ptx
    assert "ld.global.nc.b32" not in built.ptx
    assert "st.global.v4.b32" in built.ptx


def test_columns_that_fit_no_registers_are_read_again():
    built = build(softmax_over((64, 2000, 64), 1), "column")
    assert dict(built.schedule.parameters)["mode"] == "loop"
    assert built.traffic[0] > 2 * 64 * 2000 * 64 * 4


def test_columns_of_minus_infinity_and_nan_follow_the_ir():
    text = softmax_over((37, 5), 0)
    x = random_array(np.random.default_rng(0), (37, 5), "f32")
    x[:, 0] = -np.inf
    x[36, 1] = np.nan
    x[3, 2] = np.inf
    (got,) = build(text, "column").run([x])
    np.testing.assert_array_equal(np.isnan(got), np.isnan(reference(text, [x], "ir")[0]))


FOLDS = [("f32", "arith.addf", "2.5"), ("f32", "arith.mulf", "1.0"), ("f32", "arith.maximumf", "0xFF800000")]
FOLDS += [("f32", "arith.minimumf", "0.5"), ("f64", "arith.addf", "1.0"), ("i64", "arith.addi", "3")]
FOLDS += [
    ("i8", "arith.addi", "1"),
    ("i32", "arith.maxsi", "-7"),
    ("i16", "arith.andi", "-1"),
    ("i32", "arith.minui", "-1"),
]


@pytest.mark.parametrize(("element", "op", "initial"), FOLDS)
@pytest.mark.parametrize("shape", [(33, 36), (6000, 12), (2, 41, 6)])
def test_the_initial_value_enters_once(element, op, initial, shape):
    text = fold(shape, (len(shape) - 2,), element, op, initial)
    x = random_array(np.random.default_rng(0), shape, element)
    x = 1 + x / 1000 if "mulf" in op else x
    for which in (0, 1):
        (got,) = build(text, "column", which=which).run([x])
        expected = reference(text, [x], "ir" if element.startswith("i") else "float64")[0]
        close(got, expected, 0 if element.startswith("i") else 1e-3)


@pytest.mark.parametrize(("op", "initial"), [("arith.andi", "-1"), ("arith.ori", "0")])
@pytest.mark.parametrize("cols", [40, 9000])
def test_all_and_any_of_bools(op, initial, cols):
    text = fold((cols, 16), (0,), "i1", op, initial)
    x = np.random.default_rng(0).random((cols, 16)) < 0.5
    x[:, 0], x[:, 1] = True, False
    (got,) = build(text, "column").run([x])
    np.testing.assert_array_equal(got, reference(text, [x], "ir")[0])


@pytest.mark.parametrize("shape", [(7, 5), (300, 64), (9000, 8), (3, 100, 34)])
def test_the_first_of_equal_maxima_wins_whatever_the_block(shape):
    axis = len(shape) - 2
    text = argmax_over(shape, axis)
    x = np.random.default_rng(0).integers(0, 4, shape).astype(np.float32)
    x[..., 1] = -np.inf
    x[..., shape[axis] // 2 :, 2] = np.nan
    for which in (0, 1):
        values, places = build(text, "column", which=which).run([x])
        np.testing.assert_array_equal(places, np.argmax(x, axis))
        np.testing.assert_array_equal(
            values, np.take_along_axis(x, np.expand_dims(np.argmax(x, axis), axis), axis).squeeze(axis)
        )


def test_every_number_of_threads_gives_the_same_maximum_and_place():
    shape = (1500, 24)
    x = np.random.default_rng(0).integers(0, 50, shape).astype(np.float32)
    for across, lanes, vector, splits in [(1, 32, 1, 1), (8, 4, 1, 3), (32, 32, 1, 2), (2, 128, 4, 5), (4, 8, 2, 1)]:
        for mode in ("resident", "loop"):
            tiles = -(-shape[1] // (across * vector))
            parameters = (("across", across), ("mode", mode), ("splits", splits), ("unroll", 2))
            scratch = (("f32", splits * 24), ("i64", splits * 24)) if splits > 1 else ()
            schedule = Schedule(
                "column", (tiles * splits, 1, 1), (across * lanes, 1, 1), vector, 0, parameters, (), scratch,
                tiles if splits > 1 else 0,
            )  # fmt: skip
            _, places = build(argmax_over(shape, 0), "column", schedule=schedule).run([x])
            np.testing.assert_array_equal(places, x.argmax(0))


def test_long_columns_are_split_over_blocks_and_the_last_block_folds():
    text = fold((65536, 64), (0,), "f32", "arith.addf", "0.0")
    built = build(text, "column")
    splits = int(built.schedule.parameter("splits"))
    assert splits > 100
    assert built.schedule.grid[0] == splits
    assert built.schedule.scratch == (("f32", 64 * splits),)
    assert built.schedule.tickets == 1
    assert built.ptx.count("atom.global.add.u32") == 1
    assert "atom.global.add.f32" not in built.ptx
    assert built.ptx.count("fence.acq_rel.gpu") == 2


def test_split_columns_give_the_same_bits_every_time():
    x = random_array(np.random.default_rng(0), (8192, 64), "f32")
    built = build(fold((8192, 64), (0,), "f32", "arith.addf", "0.0"), "column")
    assert built.schedule.parameter("splits") > 1
    first, second = built.run([x])[0], built.run([x])[0]
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize(("shape", "reduced"), [((2100, 40), (0,)), ((3, 70, 33), (1,)), ((900, 260), (0,))])
def test_blocks_and_warps_in_any_order_do_not_race(shape, reduced, seed):
    x = random_array(np.random.default_rng(0), shape, "f32")
    built = build(fold(shape, reduced, "f32", "arith.addf", "0.0"), "column")
    (got,), (expected,) = built.run([x], seed=seed, sanitize=True), built.run([x])
    np.testing.assert_array_equal(got, expected)


def test_rows_are_left_to_the_row_template():
    why = reason(fold((64, 128), (1,), "f32", "arith.addf", "0.0"), "column")
    assert why is not None
    assert "are neighbours in memory" in why


def test_few_columns_that_are_needed_again_are_refused():
    why = reason(softmax_over((1 << 20, 64), 0), "column")
    assert why is not None
    assert "multiprocessors busy" in why


@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "text",
    [
        fold((4096, 1024), (0,), "f32", "arith.addf", "0.0"),
        fold((65536, 64), (0,), "f16", "arith.maximumf", "0.0"),
        softmax_over((16, 64, 1024), 1),
        softmax_over((64, 2000, 64), 1),
        softmax_over((64, 512, 128), 1, "bf16"),
        argmax_over((4096, 1024), 0),
    ],
)
def test_registers_suffice_for_every_schedule(chip, text):
    report = check(build(text, "column", chip=chip).ptx, chip)
    assert not report.errors
    assert [use.spill_stores + use.stack for use in report.kernels.values()] == [0]
