"""Graphs of hand-written functions, for tests."""

from __future__ import annotations

from mlir import ir

from mlirstitch.dialects import parse_module
from mlirstitch.passes.partitioning.graph import Graph, GraphOp
from mlirstitch.passes.partitioning.linalg_graph import graph_of
from mlirstitch.passes.pipeline import run_pipeline
from mlirstitch.passes.structured import main_function

KEEP: list[ir.Module] = []

MAPS = """
#id1 = affine_map<(d0) -> (d0)>
#id2 = affine_map<(d0, d1) -> (d0, d1)>
#row = affine_map<(d0, d1) -> (d0)>
#column = affine_map<(d0, d1) -> (d1)>
"""

FILL = """%z = arith.constant {value} : f32
%e = tensor.empty() : tensor<4x6xf32>
%f = linalg.fill ins(%z : f32) outs(%e : tensor<4x6xf32>) -> tensor<4x6xf32>"""
"""A 4 x 6 tensor %f of one value."""

GATHER = """%e = tensor.empty() : tensor<5x8xf32>
%r = linalg.generic {{indexing_maps = [#row, #id2], iterator_types = ["parallel", "parallel"]}}
  ins(%i : tensor<5xi64>) outs(%e : tensor<5x8xf32>) {{
  ^bb0(%a: i64, %o: f32):
    %p = arith.index_cast %a : i64 to index
    %q = linalg.index 1 : index
    {more}
    linalg.yield %t : f32
}} -> tensor<5x8xf32>
return %r : tensor<5x8xf32>"""
"""Rows of %w that %i names; ``more`` computes %t from row %p and column %q."""

SCAN = """%z = arith.constant 0.0 : f32
%e = tensor.empty() : tensor<4x8xf32>
%g = tensor.empty() : tensor<4xf32>
%f = linalg.fill ins(%z : f32) outs(%g : tensor<4xf32>) -> tensor<4xf32>
%r:2 = linalg.generic {indexing_maps = [#id2, #id2, #row], iterator_types = ["parallel", "reduction"]}
  ins(%x : tensor<4x8xf32>) outs(%e, %f : tensor<4x8xf32>, tensor<4xf32>) {
  ^bb0(%a: f32, %b: f32, %c: f32):
    %s = arith.addf %c, %a : f32
    linalg.yield %s, %s : f32, f32
} -> (tensor<4x8xf32>, tensor<4xf32>)
return %r#0 : tensor<4x8xf32>"""
"""Prefix sums of the rows of %x."""


def main_of(text: str, *passes: str) -> ir.Operation:
    """The function @main of a module text after some passes, kept alive."""
    module = parse_module(text)
    KEEP.append(module)
    if passes:
        run_pipeline(module, ",".join(passes))
    main = main_function(module.operation)
    assert main is not None
    return main


def graph(text: str, *passes: str) -> Graph:
    """The graph of @main after some passes."""
    return graph_of(main_of(text, *passes))


def function(body: str, results: str, **arguments: str) -> str:
    """The text of a function: arguments by name and type; the body must end with ``return``."""
    signature = ", ".join(f'%{n}: {t} {{stitch.name = "{n}"}}' for n, t in arguments.items())
    return f"{MAPS}func.func @main({signature}) -> {results} {{\n{body}\n}}"


def only(found: Graph, name: str) -> GraphOp:
    """The one op of a name."""
    ops = [op for op in found.ops if op.name == name]
    assert len(ops) == 1, [op.name for op in found.ops]
    return ops[0]
