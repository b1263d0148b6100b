"""Template scatter: rows of updates combined into the rows that indices name."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import DTYPES, build, moved_bytes, reason, reference
from scan_programs import scatter

from mlirstitch.driver.ptxas import check
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.template import Schedule

# rows, columns, updates, dims before the rows
SHAPES = [
    (5, 3, 2, 0),
    (7, 1, 31, 0),
    (33, 128, 32, 0),
    (9, 40, 33, 2),
    (3, 700, 127, 0),
    (1, 4, 1023, 0),
    (20, 64, 1025, 0),
    (2, 36, 2100, 0),
]


def _inputs(rows: int, cols: int, count: int, outer: int, element: str = "f32") -> list[np.ndarray]:
    rng = np.random.default_rng(rows + cols + count)
    lead = (outer,) if outer else ()
    index = rng.integers(0, rows, count)
    if element[0] == "i":
        updates, x = (rng.integers(-99, 99, (*lead, n, cols)) for n in (count, rows))
    else:
        updates, x = (rng.standard_normal((*lead, n, cols)) for n in (count, rows))
    return [index, updates.astype(DTYPES[element]), x.astype(DTYPES[element])]


@pytest.mark.parametrize(("rows", "cols", "count", "outer"), SHAPES)
def test_sums_with_duplicates(rows: int, cols: int, count: int, outer: int) -> None:
    text = scatter(rows, cols, count, outer=outer)
    inputs = _inputs(rows, cols, count, outer)
    (got,) = build(text, "scatter").run(inputs, seed=1, sanitize=True)
    (want,) = reference(text, inputs)
    scale = np.abs(inputs[1]).sum(-2).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-7 * scale + 1e-6)


@pytest.mark.parametrize(
    ("combine", "neutral", "element"),
    [
        ("arith.mulf", "1.0", "f32"),
        ("arith.maximumf", "0xFF800000", "f32"),
        ("arith.minimumf", "0x7C00", "f16"),
        ("arith.addf", "-0.0", "f64"),
        ("arith.addi", "0", "i64"),
        ("arith.maxsi", "-128", "i8"),
    ],
)
def test_every_combination_in_its_type(combine: str, neutral: str, element: str) -> None:
    text = scatter(9, 40, 50, combine, neutral, element)
    inputs = _inputs(9, 40, 50, 0, element)
    (got,) = build(text, "scatter").run(inputs, seed=2, sanitize=True)
    (want,) = reference(text, inputs)
    if element[0] == "i":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5 if element == "f32" else 1e-12)


def test_indices_outside_the_destination_name_no_row() -> None:
    text = scatter(5, 8, 40)
    index, updates, x = _inputs(5, 8, 40, 0)
    index[::3], index[1::3] = -1, 5
    index[0], index[1] = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    (got,) = build(text, "scatter").run([index, updates, x], sanitize=True)
    want = x.astype(np.float64)
    for place, row in enumerate(index):
        if 0 <= row < 5:
            want[row] += updates[place]
    np.testing.assert_allclose(got, want, atol=1e-5)


def test_rows_that_nothing_names_keep_their_bits() -> None:
    text = scatter(4, 8, 3)
    x = np.full((4, 8), -0.0, np.float32)
    x[2] = np.nan
    (got,) = build(text, "scatter").run([np.array([1, 1, 1]), np.ones((3, 8), np.float32), x])
    assert np.signbit(got[0]).all()
    assert np.isnan(got[2]).all()
    np.testing.assert_array_equal(got[1], 3.0)


def test_nan_and_infinities_stay_in_their_rows() -> None:
    text = scatter(4, 8, 4)
    updates = np.ones((4, 8), np.float32)
    updates[1], updates[2] = np.nan, np.inf
    (got,) = build(text, "scatter").run([np.array([0, 1, 2, 3]), updates, np.zeros((4, 8), np.float32)])
    np.testing.assert_array_equal(got, updates)


def test_many_ones_in_one_row_do_not_stall() -> None:
    """2^24 serial additions of one in float32 would stop; here the running value is large, and 5000 ones are added."""
    text = scatter(2, 4, 5000)
    x = np.full((2, 4), 2.0**24, np.float32)
    (got,) = build(text, "scatter").run([np.zeros(5000, np.int64), np.ones((5000, 4), np.float32), x])
    np.testing.assert_array_equal(got[0], 2.0**24 + 5000)


def test_few_rows_are_shared_by_the_warps_of_a_block() -> None:
    built = build(scatter(2, 768, 4096), "scatter")
    assert built.schedule.parameter("parts") == built.schedule.block[0] // 32 == 16
    many = build(scatter(30000, 768, 4096), "scatter")
    assert many.schedule.parameter("parts") == 1


def test_an_update_is_read_once_and_by_its_row_only() -> None:
    built = build(scatter(32, 128, 64), "scatter")
    inputs = _inputs(32, 128, 64, 0)
    built.run(inputs)
    index, updates, before, after = moved_bytes(built)
    assert updates == inputs[1].nbytes
    assert before == after == inputs[2].nbytes
    assert index == 32 * inputs[0].nbytes


@pytest.mark.parametrize(("rows", "cols", "count"), [(3000, 768, 4096), (1000, 64, 20000), (100, 1, 4096)])
def test_kernels_spill_nothing(rows: int, cols: int, count: int) -> None:
    report = check(build(scatter(rows, cols, count), "scatter").ptx, "sm_90")
    assert report.kernels
    assert all(use.spill_stores == use.spill_loads == 0 for use in report.kernels.values())


def test_the_loop_nest_computes_the_same() -> None:
    text = scatter(9, 40, 50)
    inputs = _inputs(9, 40, 50, 0)
    (fast,), (plain,) = build(text, "scatter").run(inputs), build(text, "loop_nest").run(inputs)
    np.testing.assert_allclose(fast, plain, atol=1e-5)


def test_an_index_for_every_element_of_a_row_is_refused() -> None:
    text = scatter(5, 8, 6).replace("-> (n)>", "-> (n, c)>").replace("tensor<6xi64>", "tensor<6x8xi64>")
    assert "an index for every element" in (reason(text, "scatter") or "")
    assert reason(text, "loop_nest") is None


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule("scatter", (4, 1, 1), (32, 1, 1), parameters=(("chunks", 1), ("tiles", 2))), "grid"),
        (Schedule("scatter", (10, 1, 1), (32, 1, 1), parameters=(("chunks", 1), ("tiles", 1))), "tiles"),
        (Schedule("scatter", (10, 1, 1), (48, 1, 1), parameters=(("chunks", 1), ("tiles", 2))), "block x"),
        (Schedule("scatter", (10, 1, 1), (32, 1, 1), 8, parameters=(("chunks", 1), ("tiles", 2))), "vector"),
        (Schedule("scatter", (10, 1, 1), (32, 1, 1), parameters=(("chunks", 0), ("tiles", 2))), "chunks"),
        (Schedule("scatter", (10, 1, 1), (32, 1, 1), parameters=(("tiles", 2),)), "chunks"),
        (Schedule("scatter", (10, 1, 1), (64, 1, 1), parameters=(("chunks", 1), ("parts", 3), ("tiles", 2))), "parts"),
        (Schedule("scatter", (5, 1, 1), (64, 1, 1), parameters=(("chunks", 1), ("parts", 2), ("tiles", 2))), "grid"),
    ],
)
def test_a_schedule_that_does_not_cover_the_rows_is_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(PassError, match=message):
        build(scatter(5, 36, 6), "scatter", schedule=schedule)
