"""Cluster functions of independent parts, put together from pieces."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from row_programs import tensor


@dataclass(frozen=True)
class Piece:
    """Ops that read arguments and make results. SSA names are local to the piece; arguments named ``%shared_...`` are
    arguments of the whole function, and pieces that name the same one read the same tensor.
    """

    arguments: tuple[tuple[str, str], ...]
    body: str
    results: tuple[tuple[str, str], ...]


def together(pieces: Sequence[Piece], name: str = "f") -> str:
    """One function that computes all pieces, in this order."""
    arguments: dict[str, str] = {}
    body: list[str] = []
    results: list[tuple[str, str]] = []
    for number, piece in enumerate(pieces):
        arguments.update({_local(value, number): kind for value, kind in piece.arguments})
        body.append(re.sub(r"%[A-Za-z]\w*", lambda found, n=number: _local(found[0], n), piece.body))
        results += [(_local(value, number), kind) for value, kind in piece.results]
    signature = ", ".join(f"{value}: {kind}" for value, kind in arguments.items())
    kinds = ", ".join(kind for _, kind in results)
    values = ", ".join(value for value, _ in results)
    return f"func.func @{name}({signature}) -> ({kinds}) {{\n{''.join(body)}  return {values} : {kinds}\n}}"


def _local(value: str, number: int) -> str:
    return value if value.startswith("%shared_") else f"%p{number}_{value[1:]}"


def reduced(
    shape: Sequence[int],
    dims: Sequence[int],
    element: str = "f32",
    op: str = "arith.addf",
    initial: str = "0.0",
    source: str = "%a",
) -> Piece:
    """``op`` over ``dims`` of an argument."""
    names = ", ".join(f"d{i}" for i in range(len(shape)))
    kept = [i for i in range(len(shape)) if i not in dims]
    full, result = tensor(shape, element), tensor([shape[i] for i in kept], element)
    iterators = ", ".join('"reduction"' if i in dims else '"parallel"' for i in range(len(shape)))
    maps = f"affine_map<({names}) -> ({names})>, affine_map<({names}) -> ({', '.join(f'd{i}' for i in kept)})>"
    body = f"""  %c = arith.constant {initial} : {element}
  %e = tensor.empty() : {result}
  %i = linalg.fill ins(%c : {element}) outs(%e : {result}) -> {result}
  %r = linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}}
      ins({source} : {full}) outs(%i : {result}) {{
  ^bb0(%x: {element}, %acc: {element}):
    %s = {op} %x, %acc : {element}
    linalg.yield %s : {element}
  }} -> {result}
"""
    return Piece(((source, full),), body, (("%r", result),))


def mapped(shape: Sequence[int], op: str = "math.exp", permutation: Sequence[int] | None = None) -> Piece:
    """``op`` of an f32 argument, whose dims stand in the order of ``permutation`` in the result."""
    order = list(permutation) if permutation is not None else list(range(len(shape)))
    names = [f"d{i}" for i in range(len(shape))]
    source, result = tensor(shape, "f32"), tensor([shape[i] for i in order], "f32")
    read = ", ".join(names[order.index(i)] for i in range(len(shape)))
    dims = ", ".join(names)
    iterators = ", ".join(['"parallel"'] * len(shape))
    body = f"""  %e = tensor.empty() : {result}
  %r = linalg.generic {{indexing_maps = [affine_map<({dims}) -> ({read})>, affine_map<({dims}) -> ({dims})>],
      iterator_types = [{iterators}]}} ins(%a : {source}) outs(%e : {result}) {{
  ^bb0(%x: f32, %out: f32):
    %s = {op} %x : f32
    linalg.yield %s : f32
  }} -> {result}
"""
    return Piece((("%a", source),), body, (("%r", result),))


def biased(rows: int, cols: int, bias: str = "%b") -> Piece:
    """A row vector added to every row of an argument."""
    full, row = tensor((rows, cols), "f32"), tensor((cols,), "f32")
    body = f"""  %e = tensor.empty() : {full}
  %r = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d1)>,
      affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel", "parallel"]}}
      ins(%a, {bias} : {full}, {row}) outs(%e : {full}) {{
  ^bb0(%x: f32, %y: f32, %out: f32):
    %s = arith.addf %x, %y : f32
    linalg.yield %s : f32
  }} -> {full}
"""
    return Piece((("%a", full), (bias, row)), body, (("%r", full),))


def rows_and_columns(rows: int, cols: int) -> Piece:
    """``s = sum(x, 1)`` and ``sum(x * s, 0)``: the sums of the columns need those of the rows."""
    full, row, col = tensor((rows, cols), "f32"), tensor((rows,), "f32"), tensor((cols,), "f32")
    maps = "affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>"
    body = f"""  %c = arith.constant 0.0 : f32
  %er = tensor.empty() : {row}
  %ec = tensor.empty() : {col}
  %ir = linalg.fill ins(%c : f32) outs(%er : {row}) -> {row}
  %ic = linalg.fill ins(%c : f32) outs(%ec : {col}) -> {col}
  %s = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%ir : {row}) {{
  ^bb0(%x: f32, %acc: f32):
    %t = arith.addf %x, %acc : f32
    linalg.yield %t : f32
  }} -> {row}
  %q = linalg.generic {{indexing_maps = [{maps}, affine_map<(d0, d1) -> (d1)>],
      iterator_types = ["reduction", "parallel"]}}
      ins(%a, %s : {full}, {row}) outs(%ic : {col}) {{
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %p = arith.mulf %x, %y : f32
    %t = arith.addf %p, %acc : f32
    linalg.yield %t : f32
  }} -> {col}
"""
    return Piece((("%a", full),), body, (("%s", row), ("%q", col)))


def softmax_rows(rows: int, cols: int) -> Piece:
    """``exp(x) / sum(exp(x), 1)``."""
    full, row = tensor((rows, cols), "f32"), tensor((rows,), "f32")
    maps = "affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>"
    body = f"""  %c = arith.constant 0.0 : f32
  %er = tensor.empty() : {row}
  %ef = tensor.empty() : {full}
  %ir = linalg.fill ins(%c : f32) outs(%er : {row}) -> {row}
  %s = linalg.generic {{indexing_maps = [{maps}], iterator_types = ["parallel", "reduction"]}}
      ins(%a : {full}) outs(%ir : {row}) {{
  ^bb0(%x: f32, %acc: f32):
    %u = math.exp %x : f32
    %t = arith.addf %u, %acc : f32
    linalg.yield %t : f32
  }} -> {row}
  %q = linalg.generic {{indexing_maps = [{maps}, affine_map<(d0, d1) -> (d0, d1)>],
      iterator_types = ["parallel", "parallel"]}} ins(%a, %s : {full}, {row}) outs(%ef : {full}) {{
  ^bb0(%x: f32, %y: f32, %out: f32):
    %u = math.exp %x : f32
    %t = arith.divf %u, %y : f32
    linalg.yield %t : f32
  }} -> {full}
"""
    return Piece((("%a", full),), body, (("%q", full),))
