"""Template row_column: rows and columns of one input, totals over the rows, folding of blocks in groups."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_harness import build, moved_bytes, random_array, reason, reference
from row_column_programs import both_argmax, divided_rows, paired_rows, scaled_rows, shifted_columns

from mlirstitch.driver.ptxas import check
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.template import Schedule

TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}


def close(got: np.ndarray, expected: np.ndarray, tolerance: float) -> None:
    got, expected = got.astype(np.float64), expected.astype(np.float64)
    scale = max(1.0, float(np.abs(expected).max(initial=0)))
    np.testing.assert_allclose(got / scale, expected / scale, rtol=0, atol=tolerance)


@settings(max_examples=20, deadline=None)
@given(st.integers(2, 300), st.integers(2, 200), st.sampled_from(("f32", "f16", "bf16")), st.booleans(), st.booleans())
def test_rows_columns_and_totals_of_any_size_and_type(rows, cols, element, columns, total):
    if not columns and not total:
        return
    text = scaled_rows(rows, cols, element, columns, total)
    x = random_array(np.random.default_rng(0), (rows, cols), element)
    built = build(text, "row_column")
    for got, expected in zip(built.run([x]), reference(text, [x]), strict=True):
        close(got, expected, TOLERANCE[element])
    assert moved_bytes(built) == built.traffic


@pytest.mark.parametrize("cols", [8, 16, 31, 32, 33, 64, 128, 300])
def test_reductions_that_fold_as_a_pair_do_so_in_every_row_of_a_warp(cols):
    text = paired_rows(37, cols)
    x = random_array(np.random.default_rng(0), (37, cols), "f32")
    built = build(text, "row_column")
    for got, expected in zip(built.run([x], seed=1, sanitize=True), reference(text, [x]), strict=True):
        close(got, expected, 1e-5)


@pytest.mark.parametrize("element", ["f16", "bf16"])
@pytest.mark.parametrize("chip", ["sm_100", "sm_120"])
def test_sums_of_mixed_precision_on_chips_that_have_them(chip, element):
    text = scaled_rows(37, 65, element)
    x = random_array(np.random.default_rng(0), (37, 65), element)
    built = build(text, "row_column", chip)
    assert f"add.rn.f32.{element}" in built.ptx
    for got, expected in zip(built.run([x], seed=1, sanitize=True), reference(text, [x]), strict=True):
        close(got, expected, TOLERANCE[element])


@pytest.mark.parametrize(("rows", "cols"), [(2000, 768), (4099, 40), (1111, 1030), (40, 2048), (33, 4000)])
def test_one_read_of_the_input_serves_rows_and_columns(rows, cols):
    text = scaled_rows(rows, cols)
    x = random_array(np.random.default_rng(0), (rows, cols), "f32")
    built = build(text, "row_column")
    for got, expected in zip(built.run([x]), reference(text, [x]), strict=True):
        close(got, expected, 1e-5)
    assert moved_bytes(built) == built.traffic
    assert built.traffic[:2] == (x.nbytes, x.nbytes)


@pytest.mark.parametrize(
    ("rows", "cols", "mode"), [(300, 30522, "resident"), (40, 50000, "staged"), (3, 131072, "loop")]
)
def test_totals_go_with_every_schedule_of_rows(rows, cols, mode):
    text = scaled_rows(rows, cols, columns=False)
    x = random_array(np.random.default_rng(0), (rows, cols), "f32")
    built = build(text, "row_column")
    assert built.schedule.parameter("mode") == mode
    for got, expected in zip(built.run([x]), reference(text, [x]), strict=True):
        close(got, expected, 1e-5)
    assert moved_bytes(built) == built.traffic


@pytest.mark.parametrize(("rows", "cols"), [(7, 40), (701, 33), (3001, 64), (500, 1500)])
def test_the_first_of_equal_maxima_wins_in_every_column(rows, cols):
    x = np.random.default_rng(0).integers(0, 6, (rows, cols)).astype(np.float32)
    x[:, 1] = -np.inf
    x[rows // 2 :, 2] = np.nan
    sums, values, places = build(both_argmax(rows, cols), "row_column").run([x])
    at = np.argmax(x, 0)
    np.testing.assert_array_equal(places, at)
    np.testing.assert_array_equal(values, x[at, np.arange(cols)])
    keep = ~np.isnan(x).any(1)
    np.testing.assert_array_equal(sums[keep], x.sum(1)[keep])


@pytest.mark.parametrize(("rows", "cols", "labels"), [(70, 40, 70), (600, 100, 33), (40, 2000, 4000), (20, 50000, 5)])
def test_a_small_total_that_rows_depend_on_is_computed_by_every_block(rows, cols, labels):
    text = divided_rows(rows, cols, labels)
    rng = np.random.default_rng(0)
    x, b = random_array(rng, (rows, cols), "f32"), np.abs(random_array(rng, (labels,), "f32"))
    built = build(text, "row_column")
    for got, expected in zip(built.run([x, b]), reference(text, [x, b]), strict=True):
        close(got, expected, 1e-6)
    assert moved_bytes(built) == built.traffic
    assert built.traffic[:2] == (x.nbytes, built.schedule.grid[0] * b.nbytes)


def test_a_total_of_many_elements_is_a_kernel_of_its_own():
    why = reason(divided_rows(64, 32, 1 << 15), "row_column")
    assert why is not None
    assert "1 results of 32768 elements" in why


LAYOUTS = [(32, 4, 4, 6, 3), (8, 8, 1, 4, 2), (64, 1, 4, 12, 4), (256, 1, 2, 5, 1), (16, 16, 4, 3, 1), (32, 1, 1, 9, 3)]


def schedule_of(lanes: int, rows_per_block: int, vector: int, blocks: int, group: int) -> Schedule:
    groups = blocks // group if group > 1 else 0
    parameters = (("group", group), ("lanes", lanes), ("mode", "resident"), ("rows_per_block", rows_per_block))
    scratch = (("f32", (blocks + groups) * 96), ("f32", (blocks + groups) * 8))
    return Schedule(
        "row_column", (blocks, 1, 1), (lanes * rows_per_block, 1, 1), vector, 0, parameters, (), scratch, groups + 1
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_number_of_threads_rows_and_blocks_folds_the_same(layout):
    text = scaled_rows(101, 96)
    x = random_array(np.random.default_rng(0), (101, 96), "f32")
    built = build(text, "row_column", schedule=schedule_of(*layout))
    for got, expected in zip(built.run([x]), reference(text, [x]), strict=True):
        close(got, expected, 1e-5)
    assert moved_bytes(built) == built.traffic


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("seed", [1, 2])
def test_blocks_and_warps_in_any_order_do_not_race(layout, seed):
    x = random_array(np.random.default_rng(0), (101, 96), "f32")
    built = build(scaled_rows(101, 96), "row_column", schedule=schedule_of(*layout))
    for got, expected in zip(built.run([x], seed=seed, sanitize=True), built.run([x]), strict=True):
        np.testing.assert_array_equal(got, expected)


WRONG = [((32, 4, 4, 60, 1), "grid x is 60"), ((32, 4, 4, 6, 4), "group is 4")]
WRONG += [((32, 4, 3, 6, 3), "vector is 3"), ((64, 2, 4, 6, 3), "rows_per_block is 2")]


@pytest.mark.parametrize(("layout", "message"), WRONG)
def test_an_edited_schedule_that_would_be_wrong_is_refused(layout, message):
    with pytest.raises(PassError, match=message):
        build(scaled_rows(101, 96), "row_column", schedule=schedule_of(*layout))


def test_a_schedule_with_too_little_scratch_is_refused():
    schedule = replace(schedule_of(32, 4, 4, 6, 3), scratch=(("f32", 96), ("f32", 8)))
    with pytest.raises(PassError, match="scratch is"):
        build(scaled_rows(101, 96), "row_column", schedule=schedule)


def test_many_blocks_are_folded_in_groups_and_tickets_return_to_zero():
    built = build(scaled_rows(65536, 768), "row_column")
    blocks, group = built.schedule.grid[0], int(built.schedule.parameter("group"))
    assert blocks > 128
    assert group > 1
    assert blocks % group == 0
    assert built.schedule.tickets == blocks // group + 1
    parts = blocks + blocks // group
    assert built.schedule.scratch == (("f32", parts * 768), ("f32", parts * 8))
    assert "atom.global.add.f32" not in built.ptx


def test_results_have_the_same_bits_every_time():
    x = random_array(np.random.default_rng(0), (3000, 96), "f32")
    built = build(scaled_rows(3000, 96), "row_column")
    for first, second in zip(built.run([x]), built.run([x]), strict=True):
        np.testing.assert_array_equal(first, second)


def test_columns_that_need_a_total_are_refused_before_a_kernel_is_emitted():
    """Every thread has its columns, one has the total."""
    why = reason(shifted_columns(16, 70), "row_column")
    assert why is not None
    assert "its result is needed before all rows are folded" in why


def test_columns_whose_running_values_fit_no_registers_are_refused():
    why = reason(scaled_rows(64, 40000), "row_column")
    assert why is not None
    assert "do not fit into registers" in why


def test_rows_alone_are_left_to_the_row_template():
    why = reason(scaled_rows(64, 64, columns=False, total=False), "row_column")
    assert why is not None
    assert "nothing is reduced over the rows" in why


def test_rows_that_wait_for_all_rows_are_refused():
    text = scaled_rows(64, 32, total=False)
    late = """
  %b = linalg.generic {indexing_maps = [#id, #col, #row], iterator_types = ["parallel", "reduction"]}
      ins(%a, %o : tensor<64x32xf32>, tensor<32xf32>) outs(%zr : tensor<64xf32>) {
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %r = arith.addf %p, %acc : f32
    linalg.yield %r : f32
  } -> tensor<64xf32>
  return %q, %b, %o :"""
    why = reason(text.replace("\n  return %q, %s, %o :", late), "row_column")
    assert why is not None
    assert "depend on a reduction over all rows" in why


@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
@pytest.mark.parametrize(
    "text",
    [
        scaled_rows(65536, 768),
        scaled_rows(65536, 64, "bf16"),
        scaled_rows(4096, 2048),
        scaled_rows(4096, 30522, columns=False),
        scaled_rows(4096, 50000, columns=False),
        both_argmax(4096, 1024),
    ],
)
def test_registers_suffice_for_every_schedule(chip, text):
    report = check(build(text, "row_column", chip=chip).ptx, chip)
    assert not report.errors
    assert [use.spill_stores + use.stack for use in report.kernels.values()] == [0]
