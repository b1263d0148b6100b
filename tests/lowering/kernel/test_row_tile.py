"""Template row_tile: reductions along rows of which some inputs are transposed."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import build, moved_bytes, random_array, reason, reference
from tile_programs import row_totals, transposed_softmax

from mlirstitch.driver.ptxas import check as assemble
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.template import Schedule

TOLERANCE = {"f32": 2e-5, "f64": 1e-13, "f16": 2e-2}


def check(text, shapes, element, template="row_tile", **options):
    """Numbers against float64, no race in any order of warps, and the bytes that were promised."""
    rng = np.random.default_rng(0)
    inputs = [random_array(rng, s, element) for s in shapes]
    built = build(text, template, **options)
    got = built.run(inputs, sanitize=True, seed=9)
    for value, expected in zip(got, reference(text, inputs), strict=True):
        scale = max(1.0, float(np.abs(expected).max()))
        np.testing.assert_allclose(value.astype(np.float64), expected, atol=TOLERANCE[element] * scale)
    assert moved_bytes(built) == built.traffic
    return built


@pytest.mark.parametrize(
    ("rows", "cols", "element"),
    [(64, 128, "f32"), (96, 256, "f16"), (96, 48, "f64"), (40, 96, "f32"), (32, 96, "f32"), (64, 33 * 32, "f32")],
)
@pytest.mark.parametrize("keep", [False, True])
def test_totals_of_rows_over_a_transposed_input(rows, cols, element, keep):
    text, shapes = row_totals(rows, cols, element, keep)
    check(text, shapes, element)


@pytest.mark.parametrize(("rows", "cols", "batch"), [(32, 96, 3), (64, 512, 1), (16, 2048, 2)])
def test_softmax_of_a_transposed_input_with_a_batch(rows, cols, batch):
    text, shapes = transposed_softmax(rows, cols, batch)
    check(text, shapes, "f32")


def test_a_row_that_fits_into_shared_memory_is_read_once_for_all_passes():
    text, shapes = transposed_softmax(64, 512)
    built = check(text, shapes, "f32")
    assert built.traffic == (64 * 512 * 4,) * 3
    assert built.ptx.count("bar.sync") == 1


@pytest.mark.parametrize("element", ["f32", "f16"])
def test_whole_sectors_wide_accesses_and_no_bank_conflicts(element):
    text, shapes = row_totals(512, 1024, element)
    built = build(text, "row_tile")
    built.run([random_array(np.random.default_rng(1), s, element) for s in shapes])
    counted = built.counted[-1]
    assert counted.shared_conflicts == 0
    full = 3 * 512 * 1024 * (4 if element == "f32" else 2)
    totals = 2 * 512
    assert (counted.sectors_loaded + counted.sectors_stored) * 32 <= full + totals * 32
    assert built.schedule.vector == built.schedule.parameter("vector_down") == (4 if element == "f32" else 8)
    assert built.ptx.count("bar.sync") <= 2


def test_reading_along_the_rows_touches_many_times_the_sectors():
    text, shapes = row_totals(128, 256, "f32")
    inputs = [random_array(np.random.default_rng(2), s, "f32") for s in shapes]
    touched = []
    for template in ("row_tile", "row"):
        built = build(text, template)
        built.run(inputs)
        touched.append(built.counted[-1].sectors_loaded)
    assert touched[1] > 2 * touched[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (row_totals(65, 128, "f32")[0], "do not cover 65 rows of 128 elements evenly"),
        (row_totals(64, 129, "f32")[0], "do not cover 64 rows of 129 elements evenly"),
        (row_totals(2, 4096, "f32")[0], "reading along the rows touches"),
    ],
)
def test_what_tiles_do_not_cover_is_left_to_the_row_template(text, words):
    assert words in reason(text, "row_tile")
    assert reason(text, "row") is None


PARAMETERS = {"lanes": 8, "rows_per_block": 8, "slab": 4, "vector_down": 4}


@pytest.mark.parametrize(
    ("grid", "block", "vector", "changes", "words"),
    [
        (7, 64, 4, {}, "grid x is 7, not 8"),
        (8, 128, 4, {}, "block x is 128"),
        (8, 64, 3, {}, "vector is 3"),
        (8, 64, 4, {"lanes": 12}, "lanes is 12"),
        (8, 64, 4, {"rows_per_block": 7}, "rows_per_block is 7"),
        (8, 64, 4, {"slab": 3}, "slab is 3"),
        (8, 64, 4, {"slab": None}, "slab is missing"),
        (8, 64, 4, {"vector_down": 3}, "vector_down is 3"),
        (1, 512, 4, {"rows_per_block": 64, "slab": 16}, "bytes of shared memory"),
    ],
)
def test_a_wrong_schedule_is_refused(grid, block, vector, changes, words):
    text, _ = row_totals(64, 512 if "slab" in changes and changes["slab"] == 16 else 128, "f32")
    parameters = {name: value for name, value in (PARAMETERS | changes).items() if value is not None}
    schedule = Schedule("row_tile", (grid, 1, 1), (block, 1, 1), vector, parameters=tuple(parameters.items()))
    with pytest.raises(PassError, match=words):
        build(text, "row_tile", schedule=schedule)


@pytest.mark.parametrize(("lanes", "rows", "slab"), [(8, 8, 1), (8, 32, 2), (16, 16, 2), (32, 2, 1), (4, 16, 8)])
def test_any_slab_and_number_of_rows_gives_the_numbers(lanes, rows, slab):
    text, shapes = row_totals(64, 128, "f32")
    down = 4 if rows % 4 == 0 else 2
    parameters = (("lanes", lanes), ("rows_per_block", rows), ("slab", slab), ("vector_down", down))
    schedule = Schedule("row_tile", (64 // rows, 1, 1), (lanes * rows, 1, 1), 4, parameters=parameters)
    check(text, shapes, "f32", schedule=schedule)


def test_totals_beside_a_transpose_hold_the_bar_of_registers_and_instructions():
    text, _ = row_totals(4096, 1024, "f32")
    built = build(text, "row_tile")
    report = assemble(built.ptx, "sm_90")
    (use,) = report.kernels.values()
    assert use.spill_stores + use.stack == 0
    assert use.registers <= 70
    assert built.ptx.count(";") <= 297
    assert built.ptx.count("bar.sync") <= 2


@pytest.mark.parametrize("chip", ["sm_80", "sm_90"])
def test_registers_suffice_where_rows_are_read_again(chip):
    report = assemble(build(transposed_softmax(1024, 4096)[0], "row_tile", chip=chip).ptx, chip)
    assert not report.errors
    assert [use.spill_stores + use.stack for use in report.kernels.values()] == [0]
