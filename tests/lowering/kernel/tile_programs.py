"""Programs for the tests of template tile: transposes beside element-wise work."""

from __future__ import annotations

from collections.abc import Sequence

FLOATS = ("f16", "bf16", "f32", "f64")


def tensor(shape: Sequence[int], element: str) -> str:
    return f"tensor<{''.join(f'{extent}x' for extent in shape)}{element}>"


def affine(dims: Sequence[int], rank: int) -> str:
    return f"affine_map<({', '.join(f'd{i}' for i in range(rank))}) -> ({', '.join(f'd{d}' for d in dims)})>"


def combine(element: str) -> str:
    if element == "i1":
        return "arith.xori"
    return "arith.addf" if element in FLOATS else "arith.addi"


def pointwise(
    name: str, shape: Sequence[int], element: str, operands: Sequence[tuple[str, str, Sequence[int]]], body: str = ""
) -> str:
    """``%name``: the operands (name, type, dims read) combined; ``body`` computes ``%r`` from ``%x0``, ``%x1`` ..."""
    rank = len(shape)
    maps = [affine(dims, rank) for _, _, dims in operands] + [affine(range(rank), rank)]
    if not body:
        twice = (
            "arith.ori" if element == "i1" else combine(element)
        )  # the exclusive or of a value and itself reads nothing
        body = f"%r0 = {twice} %x0, %x0 : {element}\n"
        for number in range(1, len(operands)):
            body += f"    %r{number} = {combine(element)} %r{number - 1}, %x{number} : {element}\n"
        body += f"    linalg.yield %r{len(operands) - 1} : {element}"
    kinds = [kind.removesuffix(">").split("x")[-1].removeprefix("tensor<") for _, kind, _ in operands]
    arguments = ", ".join(f"%x{i}: {kind}" for i, kind in enumerate(kinds))
    out = tensor(shape, element)
    return f"""  %{name}_empty = tensor.empty() : {out}
  %{name} = linalg.generic {{indexing_maps = [{", ".join(maps)}],
      iterator_types = [{", ".join(['"parallel"'] * rank)}]}}
      ins({", ".join("%" + n for n, _, _ in operands)} : {", ".join(kind for _, kind, _ in operands)})
      outs(%{name}_empty : {out}) {{
  ^bb0({arguments}, %o: {element}):
    {body}
  }} -> {out}
"""


def function(arguments: Sequence[tuple[str, str]], body: str, results: Sequence[tuple[str, str]]) -> str:
    given = ", ".join(f"%{name}: {kind}" for name, kind in arguments)
    names, kinds = (", ".join(part) for part in zip(*((f"%{name}", kind) for name, kind in results), strict=True))
    return f"func.func @f({given}) -> ({kinds}) {{\n{body}  return {names} : {kinds}\n}}"


def permuted(shape: Sequence[int], order: Sequence[int], element: str) -> tuple[str, list[tuple[int, ...]]]:
    """``2 * a.permute(...) + b`` of ``shape``, where ``a`` has dim ``order[k]`` of the result as its dim ``k``."""
    source = tuple(shape[d] for d in order)
    a, b = tensor(source, element), tensor(shape, element)
    body = pointwise("r", shape, element, [("a", a, order), ("b", b, range(len(shape)))])
    return function([("a", a), ("b", b)], body, [("r", b)]), [source, tuple(shape)]


def moved(shape: Sequence[int], order: Sequence[int], element: str) -> tuple[str, list[tuple[int, ...]]]:
    """``a.permute(...).contiguous()``."""
    source = tuple(shape[d] for d in order)
    a, r = tensor(source, element), tensor(shape, element)
    body = pointwise("r", shape, element, [("a", a, order)], f"linalg.yield %x0 : {element}")
    return function([("a", a)], body, [("r", r)]), [source]


def both_ways(rows: int, cols: int, element: str) -> tuple[str, list[tuple[int, ...]]]:
    """``s = 2 a.t() + b``, ``u = 2 a + s.t()`` and ``v = 2 a``: outputs of both orientations that need each other."""
    a, b = tensor((cols, rows), element), tensor((rows, cols), element)
    body = pointwise("s", (rows, cols), element, [("a", a, (1, 0)), ("b", b, (0, 1))])
    body += pointwise("u", (cols, rows), element, [("a", a, (0, 1)), ("s", b, (1, 0))])
    body += pointwise("v", (cols, rows), element, [("a", a, (0, 1))])
    return function([("a", a), ("b", b)], body, [("s", b), ("u", a), ("v", a)]), [(cols, rows), (rows, cols)]


def merged_heads(batch: int, heads: int, length: int, width: int, element: str) -> tuple[str, list[tuple[int, ...]]]:
    """``b + a.transpose(1, 3).reshape(B, width, length * heads)``: a merge that ends in a dim which was not last."""
    a = tensor((batch, heads, length, width), element)
    t = tensor((batch, width, length, heads), element)
    r = tensor((batch, width, length * heads), element)
    body = pointwise("t", (batch, width, length, heads), element, [("a", a, (0, 3, 2, 1))])
    body += f"  %c = tensor.collapse_shape %t [[0], [1], [2, 3]] : {t} into {r}\n"
    body += pointwise("r", (batch, width, length * heads), element, [("c", r, (0, 1, 2)), ("b", r, (0, 1, 2))])
    return (
        function([("a", a), ("b", r)], body, [("r", r)]),
        [(batch, heads, length, width), (batch, width, length * heads)],
    )


def row_totals(rows: int, cols: int, element: str, keep: bool = True) -> tuple[str, list[tuple[int, ...]]]:
    """``s = 2 a.t() + b``, ``s.sum(-1)`` and ``s.max(-1)``; with ``keep``, ``s`` is returned too."""
    a, b, r = tensor((cols, rows), element), tensor((rows, cols), element), tensor((rows, 1), element)
    body = f"""  %zero = arith.constant 0.0 : {element}
  %low = arith.constant {"0xFF800000" if element == "f32" else "-1.0e30" if element != "f16" else "0xFC00"} : {element}
  %er = tensor.empty() : {r}
  %z0 = linalg.fill ins(%zero : {element}) outs(%er : {r}) -> {r}
  %l0 = linalg.fill ins(%low : {element}) outs(%er : {r}) -> {r}
"""
    body += pointwise("s", (rows, cols), element, [("a", a, (1, 0)), ("b", b, (0, 1))])
    full, row = "affine_map<(d0, d1) -> (d0, d1)>", "affine_map<(d0, d1) -> (d0, 0)>"
    for name, start, op in (("t", "z0", "addf"), ("m", "l0", "maximumf")):
        body += f"""  %{name} = linalg.generic {{indexing_maps = [{full}, {row}],
      iterator_types = ["parallel", "reduction"]}} ins(%s : {b}) outs(%{start} : {r}) {{
  ^bb0(%x: {element}, %acc: {element}):
    %r = arith.{op} %x, %acc : {element}
    linalg.yield %r : {element}
  }} -> {r}
"""
    results = [("s", b), ("t", r), ("m", r)] if keep else [("t", r), ("m", r)]
    return function([("a", a), ("b", b)], body, results), [(cols, rows), (rows, cols)]


def transposed_softmax(rows: int, cols: int, batch: int = 1) -> tuple[str, list[tuple[int, ...]]]:
    """``softmax(a.transpose(1, 2) + b, -1)`` with a batch."""
    a, b = tensor((batch, cols, rows), "f32"), tensor((batch, rows, cols), "f32")
    r = tensor((batch, rows, 1), "f32")
    full, row = "affine_map<(d0, d1, d2) -> (d0, d1, d2)>", "affine_map<(d0, d1, d2) -> (d0, d1, 0)>"
    body = f"""  %zero = arith.constant 0.0 : f32
  %low = arith.constant 0xFF800000 : f32
  %er = tensor.empty() : {r}
  %z0 = linalg.fill ins(%zero : f32) outs(%er : {r}) -> {r}
  %l0 = linalg.fill ins(%low : f32) outs(%er : {r}) -> {r}
"""
    once = "%r = arith.addf %x0, %x1 : f32\n    linalg.yield %r : f32"
    body += pointwise("s", (batch, rows, cols), "f32", [("a", a, (0, 2, 1)), ("b", b, (0, 1, 2))], once)
    body += f"""  %m = linalg.generic {{indexing_maps = [{full}, {row}],
      iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%s : {b}) outs(%l0 : {r}) {{
  ^bb0(%x: f32, %acc: f32):
    %r = arith.maximumf %x, %acc : f32
    linalg.yield %r : f32
  }} -> {r}
  %t = linalg.generic {{indexing_maps = [{full}, {row}, {row}], iterator_types = ["parallel", "parallel", "reduction"]}}
      ins(%s, %m : {b}, {r}) outs(%z0 : {r}) {{
  ^bb0(%x: f32, %y: f32, %acc: f32):
    %d = arith.subf %x, %y : f32
    %e = math.exp %d : f32
    %r = arith.addf %e, %acc : f32
    linalg.yield %r : f32
  }} -> {r}
  %eo = tensor.empty() : {b}
  %o = linalg.generic {{indexing_maps = [{full}, {row}, {row}, {full}],
      iterator_types = ["parallel", "parallel", "parallel"]}}
      ins(%s, %m, %t : {b}, {r}, {r}) outs(%eo : {b}) {{
  ^bb0(%x: f32, %y: f32, %z: f32, %out: f32):
    %d = arith.subf %x, %y : f32
    %e = math.exp %d : f32
    %q = arith.divf %e, %z : f32
    linalg.yield %q : f32
  }} -> {b}
"""
    return function([("a", a), ("b", b)], body, [("o", b)]), [(batch, cols, rows), (batch, rows, cols)]
