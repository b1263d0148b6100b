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
