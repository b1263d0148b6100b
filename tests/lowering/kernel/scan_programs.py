"""Cluster functions that scan or scatter, as text."""

from __future__ import annotations

from collections.abc import Sequence

LOG_ADD_EXP = """
    %larger = arith.maximumf %total, %in : {e}
    %smaller = arith.minimumf %total, %in : {e}
    %same = arith.cmpf oeq, %total, %in : {e}
    %apart = arith.subf %smaller, %larger : {e}
    %distance = arith.select %same, %zero, %apart : {e}
    %exp = math.exp %distance : {e}
    %log = math.log1p %exp : {e}
    %next = arith.addf %larger, %log : {e}"""


def tensor(shape: Sequence[int], element: str) -> str:
    """A tensor type."""
    return f"tensor<{'x'.join([*map(str, shape), element])}>"


def scan(
    shape: Sequence[int],
    dim: int,
    combine: str = "arith.addf",
    start: str = "0.0",
    element: str = "f32",
    inclusive: bool = True,
) -> str:
    """``combine`` along ``dim``: the name of an op on %total and %in, or a body that defines %next."""
    rank = len(shape)
    loops = ", ".join(f"d{d}" for d in range(rank))
    kept = ", ".join(f"d{d}" for d in range(rank) if d != dim)
    rest = tensor([n for d, n in enumerate(shape) if d != dim], element)
    kinds = ", ".join('"reduction"' if d == dim else '"parallel"' for d in range(rank))
    full = tensor(shape, element)
    body = combine.format(e=element) if "%" in combine else f"%next = {combine} %total, %in : {element}"
    first = "%next" if inclusive else "%total"
    zero = "0.0" if element.strip("b").startswith("f") else "0"
    return f"""func.func @cluster(%x: {full}) -> {full} {{
  %zero = arith.constant {zero} : {element}
  %start = arith.constant {start} : {element}
  %empty = tensor.empty() : {full}
  %rows = tensor.empty() : {rest}
  %totals = linalg.fill ins(%start : {element}) outs(%rows : {rest}) -> {rest}
  %scan:2 = linalg.generic {{
      indexing_maps = [affine_map<({loops}) -> ({loops})>, affine_map<({loops}) -> ({loops})>,
                       affine_map<({loops}) -> ({kept})>],
      iterator_types = [{kinds}]}} ins(%x : {full}) outs(%empty, %totals : {full}, {rest}) {{
  ^bb0(%in: {element}, %unread: {element}, %total: {element}):
    {body}
    linalg.yield {first}, %next : {element}, {element}
  }} -> ({full}, {rest})
  return %scan#0 : {full}
}}"""


def scatter(
    rows: int,
    cols: int,
    count: int,
    combine: str = "arith.addf",
    neutral: str = "-0.0",
    element: str = "f32",
    outer: int = 0,
    index: str = "i64",
) -> str:
    """Arguments: indices [count], updates [(outer,) count, cols], destination [(outer,) rows, cols]."""
    lead = [outer] if outer else []
    updates, destination = tensor([*lead, count, cols], element), tensor([*lead, rows, cols], element)
    indices = tensor([count], index)
    a = "a, " if outer else ""
    loops, dim = f"{a}d, c, n", len(lead)
    kinds = ", ".join(['"parallel"'] * (dim + 2) + ['"reduction"'])
    return f"""func.func @cluster(%i: {indices}, %u: {updates}, %x: {destination}) -> {destination} {{
  %neutral = arith.constant {neutral} : {element}
  %r = linalg.generic {{
      indexing_maps = [affine_map<({loops}) -> (n)>, affine_map<({loops}) -> ({a}n, c)>,
                       affine_map<({loops}) -> ({a}d, c)>],
      iterator_types = [{kinds}]}} ins(%i, %u : {indices}, {updates}) outs(%x : {destination}) {{
  ^bb0(%named: {index}, %update: {element}, %running: {element}):
    %row = linalg.index {dim} : index
    %own = arith.index_cast %row : index to {index}
    %hit = arith.cmpi eq, %named, %own : {index}
    %term = arith.select %hit, %update, %neutral : {element}
    %next = {combine} %running, %term : {element}
    linalg.yield %next : {element}
  }} -> {destination}
  return %r : {destination}
}}"""
