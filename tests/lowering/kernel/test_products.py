"""Sums of products with a matrix in templates row and column: wide loads, each element once, errors against float64."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_harness import build, moved_bytes, random_array, reason

EPSILON = {"f32": 2.0**-24, "f16": 2.0**-24, "bf16": 2.0**-24, "f64": 2.0**-53}
"""Of the sum: 16-bit floats are widened before they are multiplied."""
ROW, COLUMN = "(d0, d1) -> (d0, d1)", "(d0, d1) -> (d1, d0)"


def product(rows: int, cols: int, element: str, matrix: str, activation: str = "") -> str:
    """``matrix x vector + bias`` with f32 sums (f64 for f64); the matrix lies in rows, or in columns."""
    total = "f64" if element == "f64" else "f32"
    shape = (rows, cols) if matrix == ROW else (cols, rows)
    widen = (
        ""
        if total == element
        else f"%wa = arith.extf %a : {element} to {total}\n%wx = arith.extf %x : {element} to {total}"
    )
    a, x = ("%a", "%x") if total == element else ("%wa", "%wx")
    w = f"tensor<{shape[0]}x{shape[1]}x{element}>"
    return f"""
#m = affine_map<{matrix}>
#v = affine_map<(d0, d1) -> (d1)>
#o = affine_map<(d0, d1) -> (d0)>
#e = affine_map<(d0) -> (d0)>
func.func private @f(%w: {w}, %x: tensor<{cols}x{element}>, %b: tensor<{rows}x{total}>) -> tensor<{rows}x{total}> {{
  %z = arith.constant 0.0 : {total}
  %n = tensor.empty() : tensor<{rows}x{total}>
  %f = linalg.fill ins(%z : {total}) outs(%n : tensor<{rows}x{total}>) -> tensor<{rows}x{total}>
  %s = linalg.generic {{indexing_maps = [#m, #v, #o], iterator_types = ["parallel", "reduction"]}}
      ins(%w, %x : {w}, tensor<{cols}x{element}>) outs(%f : tensor<{rows}x{total}>) {{
  ^bb0(%a: {element}, %x_: {element}, %acc: {total}):
    {widen.replace("%x :", "%x_ :")}
    %r = math.fma {a}, {"%x_" if x == "%x" else x}, %acc : {total}
    linalg.yield %r : {total}
  }} -> tensor<{rows}x{total}>
  %y = linalg.generic {{indexing_maps = [#e, #e, #e], iterator_types = ["parallel"]}}
      ins(%s, %b : tensor<{rows}x{total}>, tensor<{rows}x{total}>) outs(%n : tensor<{rows}x{total}>) {{
  ^bb0(%p: {total}, %q: {total}, %old: {total}):
    %r = arith.addf %p, %q : {total}
    linalg.yield %r : {total}
  }} -> tensor<{rows}x{total}>
  return %y : tensor<{rows}x{total}>
}}"""


def values(rows: int, cols: int, element: str, matrix: str) -> list[np.ndarray]:
    source = np.random.default_rng(rows * cols)
    shape = (rows, cols) if matrix == ROW else (cols, rows)
    total = "f64" if element == "f64" else "f32"
    return [
        random_array(source, shape, element),
        random_array(source, (cols,), element),
        random_array(source, (rows,), total),
    ]


@pytest.mark.parametrize("element", EPSILON)
@pytest.mark.parametrize(("rows", "cols"), [(64, 1024), (37, 129), (1, 5000), (300, 8), (4, 20000), (2048, 64)])
@pytest.mark.parametrize("matrix", [ROW, COLUMN], ids=["row", "column"])
def test_products_are_within_the_error_of_their_sum(rows: int, cols: int, element: str, matrix: str) -> None:
    template = None if rows == 1 else "row" if matrix == ROW else "column"
    built = build(product(rows, cols, element, matrix), template)
    w, x, b = values(rows, cols, element, matrix)
    (got,) = built.run([w, x, b], seed=rows, sanitize=True)
    wide = (w if matrix == ROW else w.T).astype(np.float64)
    exact, sizes = wide @ x.astype(np.float64) + b, np.abs(wide) @ np.abs(x.astype(np.float64)) + np.abs(b)
    # A thread adds up at most cols / 8 terms, one after the other; what threads fold adds a few more.
    depth = cols / 8 + 16
    assert np.all(np.abs(got - exact) <= depth * EPSILON[element] * sizes)
    assert moved_bytes(built) == built.traffic


@pytest.mark.parametrize(("element", "width"), [("f32", 4), ("f16", 8), ("bf16", 8)])
@pytest.mark.parametrize("matrix", [ROW, COLUMN], ids=["row", "column"])
def test_the_matrix_is_read_once_by_the_widest_loads(element: str, width: int, matrix: str) -> None:
    built = build(product(1024, 1024, element, matrix))
    assert built.schedule.template == ("row" if matrix == ROW else "column")
    assert built.schedule.vector == width
    assert "ld.global.nc.v4.b32" in built.ptx or "ld.global.v4.b32" in built.ptx
    assert built.traffic[0] == 1024 * 1024 * (2 if width == 8 else 4)


def test_columns_of_a_matrix_are_no_rows_though_the_vector_is_contiguous() -> None:
    why = reason(product(64, 1024, "f32", COLUMN), "row")
    assert why is not None
    assert "not contiguous in any input" in why
