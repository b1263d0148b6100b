"""Schedules are text that a person edits: one that does not fit its cluster is refused, with the number it breaks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_harness import build
from row_programs import fold, softmax

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.schedule_checks import (
    check_column_schedule,
    check_flat_schedule,
    check_row_column_schedule,
    check_row_schedule,
    check_shared_work,
)
from mlirstitch.passes.stitching.template import Schedule
from mlirstitch.target import Target

SM_90 = Target.parse("sm_90")
FLAT = Schedule("elementwise", (4, 1, 1), (64, 1, 1), 2, 0, (("unroll", 2),))
"""4 x 64 threads, 2 chunks of 2 each: 1024 elements."""
ROW = Schedule(
    "row", (4, 1, 1), (64, 1, 1), 2, 0, (("lanes", 32), ("mode", "resident"), ("rows_per_block", 2), ("unroll", 1))
)
"""4 blocks of 2 rows."""
COLUMN = Schedule("column", (6, 1, 1), (128, 1, 1), 2, 0, (("across", 16), ("mode", "resident"), ("unroll", 1)))
"""3 x 2 blocks of 16 chunks of 2 results, 8 threads a chunk."""


def changed(schedule: Schedule, **changes: Any) -> Schedule:
    """``schedule`` with other fields or parameters; None removes a parameter."""
    fields = {name: value for name, value in changes.items() if hasattr(schedule, name)}
    parameters = {**dict(schedule.parameters), **{k: v for k, v in changes.items() if k not in fields}}
    kept = tuple((name, value) for name, value in parameters.items() if value is not None)
    return replace(schedule, **fields, parameters=kept)


def test_schedules_that_fit_are_taken() -> None:
    for elements in (0, 1, 1023, 1024):
        check_flat_schedule(FLAT, elements, SM_90)
    check_flat_schedule(changed(FLAT, unroll=None), 512, SM_90)
    for rows in (7, 8):
        check_row_schedule(ROW, rows, 64, SM_90)
    check_column_schedule(COLUMN, 40, 3, 100, SM_90)
    check_column_schedule(changed(COLUMN, grid=(24, 1, 1), splits=4, mode="loop"), 40, 3, 100, SM_90)
    check_row_schedule(changed(ROW, mode="loop"), 8, 1 << 20, SM_90)


@pytest.mark.parametrize(
    ("changes", "elements", "message"),
    [
        ({}, 1026, "grid x is 4, not enough blocks for 1026 elements; these compute 1024"),
        ({"vector": 3}, 8, "vector is 3, not 1 or 2 or 4"),
        ({"vector": 0}, 8, "vector is 0"),
        ({"vector": 8}, 8, "vector is 8, not 1 or 2 or 4"),
        ({"unroll": 0}, 8, "unroll is 0"),
        ({"unroll": "x"}, 8, "unroll is 'x', not an integer"),
        ({"block": (0, 1, 1)}, 8, "block x is 0"),
        ({"block": (2048, 1, 1)}, 8, "block x is 2048, not at most 1024"),
        ({"block": (32, 2, 1)}, 8, "block y, z is 2, 1, not 1, 1"),
        ({"grid": (4, 1, 2)}, 8, "grid y, z is 1, 2, not 1, 1"),
        ({"grid": (1 << 31, 1, 1)}, 8, "grid x is 2147483648"),
        ({"grid": (1, 1, 1), "block": (1, 1, 1), "vector": 4, "unroll": 1}, 7, "not enough blocks for 7 elements"),
        ({"rows": 3}, 8, "there is no parameter rows"),
    ],
)
def test_a_flat_schedule_must_cover_the_elements(changes: dict[str, Any], elements: int, message: str) -> None:
    with pytest.raises(PassError, match=message):
        check_flat_schedule(changed(FLAT, **changes), elements, SM_90, widest=4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (3, 1, 1)}, "grid x is 3, not 4 for 8 rows, 2 a block"),
        ({"rows_per_block": 3}, "block x is 64, not lanes x rows_per_block = 96"),
        ({"rows_per_block": 0}, "rows_per_block is 0"),
        ({"rows_per_block": -2}, "rows_per_block is -2"),
        ({"lanes": 64}, "rows_per_block is 2, not 1"),
        ({"splits": 2}, "rows_per_block is 2, not 1, because blocks share a row"),
        ({"splits": 0}, "splits is 0"),
        ({"lanes": 33}, "lanes is 33, not a power of two"),
        ({"lanes": 0}, "lanes is 0"),
        ({"lanes": None}, "lanes is missing"),
        ({"lanes": 16}, "block x is 64, not lanes x rows_per_block = 32"),
        ({"lanes": 8, "block": (16, 1, 1)}, "block x is 16, not a multiple of 32"),
        ({"vector": 8}, "vector is 8, not a divisor of the 60 columns"),
        ({"mode": "streamed"}, "mode is streamed, not resident or loop"),
        ({"unroll": 99}, "unroll is 99"),
    ],
)
def test_a_row_schedule_must_give_every_row_its_threads(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PassError, match=message) as caught:
        check_row_schedule(changed(ROW, **changes), 8, 60, SM_90)
    assert "--to stitched" in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (5, 1, 1)}, "grid x is 5, not 6 for 3 x 40 results, 32 a block"),
        ({"splits": 2, "mode": "loop"}, "grid x is 6, not 12 for 3 x 40 results, 32 a block, 2 blocks each"),
        ({"across": 64}, "across is 64, not a power of two from 1 to 32"),
        ({"across": None}, "across is missing"),
        ({"block": (96, 1, 1)}, "block x is 96, not a power of two"),
        ({"block": (16, 1, 1)}, "block x is 16, not at least 32"),
        ({"vector": 8, "across": 32}, "grid x is 6, not 3"),
        ({"vector": 3}, "vector is 3"),
        ({"mode": "x"}, "mode is x"),
        ({"lanes": 8}, "there is no parameter lanes"),
    ],
)
def test_a_column_schedule_must_give_every_result_its_threads(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PassError, match=message):
        check_column_schedule(changed(COLUMN, **changes), 40, 3, 100, SM_90)


def test_rows_and_columns_too_long_for_registers_are_not_unrolled() -> None:
    with pytest.raises(PassError, match="mode is resident, not loop: 32 threads cannot keep 16384 elements"):
        check_row_schedule(ROW, 8, 16384, SM_90)
    with pytest.raises(PassError, match="mode is resident, not loop: 8 threads cannot keep 4096 elements"):
        check_column_schedule(COLUMN, 40, 3, 4096, SM_90)


def test_shared_rows_need_their_buffers_and_a_cluster_that_allows_it() -> None:
    split = changed(ROW, splits=2, scratch=(("f32", 16),), tickets=8)
    check_shared_work(split, True, (("f32", 16),), 8)
    check_shared_work(ROW, False, (("f32", 8),), 8)
    for schedule, splittable, message in (
        (split, False, "splits is 2, not 1"),
        (replace(split, scratch=(("f32", 8),)), True, "scratch is .*8.*, not .*16"),
        (replace(split, tickets=1), True, "tickets is 1, not 8"),
        (replace(ROW, tickets=1), True, "tickets is 1, not 0"),
    ):
        with pytest.raises(PassError, match=message):
            check_shared_work(schedule, splittable, (("f32", 16),), 8)


DOUBLED = """func.func @f(%x: tensor<100xf32>) -> tensor<100xf32> {
  %e = tensor.empty() : tensor<100xf32>
  %r = linalg.generic {indexing_maps = [affine_map<(d0) -> (d0)>, affine_map<(d0) -> (d0)>],
                       iterator_types = ["parallel"]}
      ins(%x : tensor<100xf32>) outs(%e : tensor<100xf32>) {
  ^bb0(%in: f32, %out: f32):
    %n = arith.addf %in, %in : f32
    linalg.yield %n : f32
  } -> tensor<100xf32>
  return %r : tensor<100xf32>
}"""


@pytest.mark.parametrize("template", ["elementwise", "loop_nest"])
def test_flat_templates_check_the_schedule_they_are_given(template: str) -> None:
    schedule = Schedule(template, (3, 1, 1), (32, 1, 1))
    with pytest.raises(PassError, match="these compute 96"):
        build(DOUBLED, template, schedule=schedule)
    x = np.arange(100, dtype=np.float32)
    (got,) = build(DOUBLED, template, schedule=replace(schedule, grid=(5, 1, 1))).run([x])
    np.testing.assert_array_equal(got, 2 * x)


def test_the_loop_nest_has_no_vectors() -> None:
    with pytest.raises(PassError, match="vector is 2, not 1"):
        build(DOUBLED, "loop_nest", schedule=Schedule("loop_nest", (4, 1, 1), (32, 1, 1), 2))


def test_the_row_template_checks_the_schedule_it_is_given() -> None:
    text = softmax(8, 60)
    with pytest.raises(PassError, match="grid x is 3"):
        build(text, "row", schedule=changed(ROW, grid=(3, 1, 1)))
    x = np.random.default_rng(0).standard_normal((8, 60)).astype(np.float32)
    (got,) = build(text, "row", schedule=ROW).run([x])
    e = np.exp(x - x.max(1, keepdims=True))
    np.testing.assert_allclose(got, e / e.sum(1, keepdims=True), rtol=1e-5)


def test_the_column_template_checks_the_schedule_it_is_given() -> None:
    text = fold((40, 64), (0,), "f32", "arith.addf", "0.0")
    parameters = (("across", 16), ("mode", "loop"), ("unroll", 1))
    schedule = Schedule("column", (2, 1, 1), (64, 1, 1), 2, 0, parameters)
    with pytest.raises(PassError, match="grid x is 1, not 2 for 1 x 64 results, 32 a block"):
        build(text, "column", schedule=replace(schedule, grid=(1, 1, 1)))
    x = np.random.default_rng(0).standard_normal((40, 64)).astype(np.float32)
    (got,) = build(text, "column", schedule=schedule).run([x])
    np.testing.assert_allclose(got, x.sum(0), rtol=1e-5, atol=1e-5)


STAGED = {"mode": "staged", "shared_bytes": 4096}


def test_rows_of_one_block_do_not_share_a_staged_row() -> None:
    """A block has shared memory for one row: two would write theirs to the same place."""
    with pytest.raises(PassError, match="rows_per_block is 2, not 1, because a block has shared memory for one row"):
        check_row_schedule(changed(ROW, **STAGED), 8, 60, SM_90)
    rows = Schedule(
        "row_column", (4, 1, 1), (64, 1, 1), 1, 4096, (("lanes", 32), ("mode", "staged"), ("rows_per_block", 2))
    )
    with pytest.raises(PassError, match="rows_per_block is 2, not 1"):
        check_row_column_schedule(rows, 8, 60, False, SM_90)
    check_row_schedule(
        changed(ROW, **STAGED, block=(64, 1, 1), lanes=64, rows_per_block=1, grid=(8, 1, 1)), 8, 60, SM_90
    )


def test_a_block_has_threads_even_where_there_is_nothing_to_do() -> None:
    with pytest.raises(PassError, match="block x is 0, not at least 1"):
        check_flat_schedule(changed(FLAT, block=(0, 1, 1), grid=(0, 1, 1)), 0, SM_90)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shared_bytes": 4096}, "shared_bytes is 4096, not 0"),
        ({"schemes": ((70, "warp"),)}, "schemes is"),
        ({"parts": (FLAT,)}, "parts is"),
    ],
)
def test_a_field_that_means_nothing_to_the_template_is_refused(changes: dict[str, Any], message: str) -> None:
    for text, template in ((DOUBLED, "elementwise"), (softmax(4, 64), "row")):
        best = build(text, template).schedule
        with pytest.raises(PassError, match=message):
            build(text, template, schedule=replace(best, **changes))
