"""Template scan: prefix scans of any dim, type and length, and what stands in a kernel with them."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import DTYPES, build, reason, reference
from scan_programs import LOG_ADD_EXP, scan

from mlirstitch.driver.ptxas import check
from mlirstitch.errors import PassError
from mlirstitch.passes.stitching.template import Schedule

# Warps, blocks and tiles that are full, one short and one over; rows in the first, middle and last dim.
SHAPES = [
    ((4, 2), 1),
    ((3, 31), 1),
    ((33, 32), 1),
    ((2, 33), 1),
    ((3, 127), 1),
    ((2, 1023), 1),
    ((1, 1025), 1),
    ((5000,), 0),
    ((1025, 3), 0),
    ((33, 40), 0),
    ((2, 127, 12), 1),
    ((2, 3, 31), 1),
]


ROWS = (("lanes", 32), ("mode", "loop"), ("rows_per_block", 1))
"""Parameters of a schedule of a warp a row."""


def _random(shape: tuple[int, ...], element: str = "f32") -> np.ndarray:
    rng = np.random.default_rng(len(shape) + shape[0])
    if element[0] == "i":
        return rng.integers(-100, 100, shape).astype(DTYPES[element])
    return rng.standard_normal(shape).astype(DTYPES[element])


@pytest.mark.parametrize("inclusive", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("shape", "dim"), SHAPES)
def test_sums_of_every_length_and_dim(shape: tuple[int, ...], dim: int, inclusive: bool) -> None:
    text = scan(shape, dim, inclusive=inclusive)
    x = _random(shape)
    (got,) = build(text, "scan").run([x], seed=1, sanitize=True)
    (want,) = reference(text, [x])
    scale = np.abs(x).cumsum(dim).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=4e-7 * scale)
    assert got.dtype == np.float32


@pytest.mark.parametrize(("shape", "dim"), [((3, 127), 1), ((33, 40), 0)])
def test_an_exclusive_scan_leaves_its_own_element_out(shape: tuple[int, int], dim: int) -> None:
    x = _random(shape)
    (got,) = build(scan(shape, dim, inclusive=False), "scan").run([x], sanitize=True)
    np.testing.assert_allclose(got, x.astype(np.float64).cumsum(dim) - x, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("combine", "start", "element"),
    [
        ("arith.mulf", "1.0", "f64"),
        ("arith.maximumf", "0xFF800000", "f32"),
        ("arith.minimumf", "0x7C00", "f16"),
        ("arith.addi", "0", "i64"),
        ("arith.muli", "1", "i32"),
        ("arith.maxsi", "-128", "i8"),
        (LOG_ADD_EXP, "0xFF800000", "f32"),
    ],
)
@pytest.mark.parametrize(("shape", "dim"), [((3, 70), 1), ((130, 5), 0)])
def test_every_combination_in_its_type(
    combine: str, start: str, element: str, shape: tuple[int, int], dim: int
) -> None:
    text = scan(shape, dim, combine, start, element)
    x = _random(shape, element)
    (got,) = build(text, "scan").run([x], seed=2, sanitize=True)
    (want,) = reference(text, [x])
    if element[0] == "i":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, rtol=1e-5 if element == "f32" else 1e-12, atol=1e-6)


def test_a_scan_of_selections_over_nan_and_infinities() -> None:
    text = scan((3, 40), 1, "arith.maximumf", "0xFF800000")
    x = _random((3, 40))
    x[0, 7], x[1, 0], x[2, 39], x[2, 3] = np.nan, np.inf, np.nan, -np.inf
    (got,) = build(text, "scan").run([x])
    np.testing.assert_array_equal(got, reference(text, [x])[0].astype(np.float32))
    assert np.isnan(got[0, 7:]).all()
    assert not np.isnan(got[0, :7]).any()


def test_the_logarithm_of_a_sum_of_infinities_is_no_nan() -> None:
    text = scan((2, 40), 1, LOG_ADD_EXP, "0xFF800000")
    x = np.full((2, 40), -np.inf, np.float32)
    x[1, 20] = np.inf
    (got,) = build(text, "scan").run([x])
    np.testing.assert_array_equal(got[0], -np.inf)
    np.testing.assert_array_equal(got[1], np.where(np.arange(40) < 20, -np.inf, np.inf))


def test_long_sums_of_ones_do_not_stall() -> None:
    text = scan((2, 5000), 1)
    (got,) = build(text, "scan").run([np.ones((2, 5000), np.float32)])
    np.testing.assert_array_equal(got[1], np.arange(1, 5001, dtype=np.float32))


def test_results_do_not_depend_on_the_order_of_warps() -> None:
    built = build(scan((2, 1023), 1), "scan")
    x = _random((2, 1023))
    runs = [built.run([x], seed=seed)[0].tobytes() for seed in range(3)]
    assert len(dict.fromkeys(runs)) == 1


@pytest.mark.parametrize(("shape", "dim"), [((64, 4096), 1), ((512, 256), 0), ((8, 50257), 1), ((4096, 768), 0)])
def test_kernels_spill_nothing(shape: tuple[int, int], dim: int) -> None:
    report = check(build(scan(shape, dim), "scan").ptx, "sm_90")
    assert report.kernels
    assert all(use.spill_stores == use.spill_loads == 0 for use in report.kernels.values())


@pytest.mark.parametrize("dim", [0, 1])
def test_reductions_of_what_is_scanned_are_folded_on_the_way(dim: int) -> None:
    text = scan((130, 70), dim)
    kept, iterators = ("d1", '"reduction", "parallel"') if dim == 0 else ("d0", '"parallel", "reduction"')
    rest = f"tensor<{(130, 70)[1 - dim]}xf32>"
    text = text.replace(
        "  return %scan#0 : tensor<130x70xf32>",
        f"""  %most = linalg.generic {{
      indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> ({kept})>],
      iterator_types = [{iterators}]}} ins(%scan#0 : tensor<130x70xf32>) outs(%totals : {rest}) {{
  ^bb0(%in: f32, %running: f32):
    %larger = arith.maximumf %running, %in : f32
    linalg.yield %larger : f32
  }} -> {rest}
  return %scan#0, %most : tensor<130x70xf32>, {rest}""",
    ).replace("-> tensor<130x70xf32> {", f"-> (tensor<130x70xf32>, {rest}) {{", 1)
    x = _random((130, 70))
    got = build(text, "scan").run([x], seed=3, sanitize=True)
    for mine, want in zip(got, reference(text, [x]), strict=True):
        np.testing.assert_allclose(mine, want, rtol=0, atol=4e-5)


def test_a_recurrence_that_is_not_associative_is_refused() -> None:
    body = "%half = arith.mulf %total, %in : f32\n    %next = arith.addf %half, %in : f32"
    assert "not known to be associative" in (reason(scan((3, 40), 1, body), "scan") or "")


def test_other_templates_refuse_a_scan() -> None:
    for template in ("row", "column", "row_column", "loop_nest", "elementwise"):
        assert reason(scan((3, 40), 1), template) is not None


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (Schedule("scan", (2, 1, 1), (32, 1, 1), parameters=ROWS), "grid"),
        (Schedule("scan", (3, 1, 1), (32, 1, 1), 8, parameters=ROWS), "vector"),
        (Schedule("scan", (3, 1, 1), (32, 1, 1), parameters=(("across", 32), ("mode", "loop"))), "across"),
        (Schedule("scan", (3, 1, 1), (32, 1, 1), tickets=1, parameters=ROWS), "tickets"),
    ],
)
def test_a_schedule_that_does_not_cover_the_rows_is_refused(schedule: Schedule, message: str) -> None:
    with pytest.raises(PassError, match=message):
        build(scan((3, 100), 1), "scan", schedule=schedule)
