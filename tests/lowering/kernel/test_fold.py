"""Folding across vector lanes, threads and warps: signs of zero, pairs of reductions, how often threads meet."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import build, random_array, reference
from row_programs import fold

from mlirstitch.passes.stitching.template import Schedule


@pytest.mark.parametrize(("rows", "cols"), [(4, 4096), (512, 1024), (3, 37), (2, 8)])
def test_zeros_of_both_signs_sum_up_to_plus_zero(rows, cols):
    """What a chunk starts from must not show: eager's sum of -0.0 is +0.0, and so is that of idle threads."""
    built = build(fold((rows, cols), (1,), "f32", "arith.addf", "0.0"), "row")
    x = np.full((rows, cols), -0.0, np.float32)
    x[0, ::2] = 0.0
    (got,) = built.run([x], sanitize=True)
    assert not got.any()
    assert not np.signbit(got).any()


def sums(rows: int, cols: int, ops: tuple[str, ...], element: str = "f32") -> str:
    """One result ``[rows, cols]`` per op: what the k-th op makes of a row of ``x * (k + 1)``, in every column."""
    full, row = f"tensor<{rows}x{cols}x{element}>", f"tensor<{rows}x{element}>"
    suffix = "f" if element[0] in "bf" else "i"
    lines = []
    for k, op in enumerate(ops):
        factor = f"{k + 1}.0" if suffix == "f" else str(k + 1)
        lines.append(f"""
  %k{k} = arith.constant {factor} : {element}
  %i{k} = linalg.fill ins(%c : {element}) outs(%e : {row}) -> {row}
  %r{k} = linalg.generic {{indexing_maps = [#id, #row], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%i{k} : {row}) {{
  ^bb0(%x: {element}, %acc: {element}):
    %t = arith.mul{suffix} %x, %k{k} : {element}
    %s = arith.{op} %t, %acc : {element}
    linalg.yield %s : {element}
  }} -> {row}
  %y{k} = linalg.generic {{indexing_maps = [#row, #id], iterator_types = ["parallel", "parallel"]}}
      ins(%r{k} : {row}) outs(%o : {full}) {{
  ^bb0(%x: {element}, %out: {element}):
    linalg.yield %x : {element}
  }} -> {full}""")
    results = ", ".join([full] * len(ops))
    return f"""#id = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
func.func @f(%a: {full}) -> ({results}) {{
  %c = arith.constant {"0.0" if suffix == "f" else "0"} : {element}
  %o = tensor.empty() : {full}
  %e = tensor.empty() : {row}{"".join(lines)}
  return {", ".join(f"%y{k}" for k in range(len(ops)))} : {results}
}}"""


def row_schedule(rows: int, lanes: int, vector: int = 4, rows_per_block: int = 1) -> Schedule:
    parameters = (("lanes", lanes), ("mode", "resident"), ("rows_per_block", rows_per_block), ("unroll", 1))
    return Schedule(
        "row", (-(-rows // rows_per_block), 1, 1), (lanes * rows_per_block, 1, 1), vector, parameters=parameters
    )


@pytest.mark.parametrize("element", ["f32", "f64", "i32", "i64"])
@pytest.mark.parametrize("lanes", [4, 8, 16, 32, 64, 256, 512, 1024])
def test_a_pair_of_folds_gives_the_bits_of_single_ones(lanes, element):
    """Pairs share shuffles; every total still is the fold of the same tree."""
    rows, cols = 5, 8 * lanes
    schedule = row_schedule(rows, lanes, 2, rows_per_block=max(1, 32 // lanes))
    x = random_array(np.random.default_rng(lanes), (rows, cols), element)
    add = "addf" if element[0] == "f" else "addi"
    together = build(sums(rows, cols, (add, add, add), element), "row", schedule=schedule)
    got = together.run([x], sanitize=True, seed=3)
    for k in range(3):
        alone = build(sums(rows, cols, (add,), element), "row", schedule=schedule)
        (expected,) = alone.run([x * x.dtype.type(k + 1)])
        np.testing.assert_array_equal(got[k], expected)


@pytest.mark.parametrize(("ops", "shuffles"), [(("addf",), 5), (("addf", "addf"), 6), (("addf", "maximumf"), 10)])
def test_two_reductions_of_one_sort_take_one_shuffle_more_than_one(ops, shuffles):
    built = build(sums(64, 1024, ops), "row", schedule=row_schedule(64, 32, rows_per_block=4))
    assert built.ptx.count("shfl.sync") == shuffles


def test_pairs_keep_nan_and_infinity_in_their_row():
    rows, cols = 4, 512
    x = random_array(np.random.default_rng(0), (rows, cols), "f32")
    x[0, 7], x[1, 500], x[2, 0] = np.nan, np.inf, -np.inf
    text = sums(rows, cols, ("maximumf", "maximumf"))
    got = build(text, "row", schedule=row_schedule(rows, 128)).run([x], sanitize=True)
    for mine, expected in zip(got, reference(text, [x]), strict=True):
        np.testing.assert_array_equal(mine.astype(np.float64), expected.astype(np.float64))
