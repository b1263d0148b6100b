"""What a program would launch and move with one kernel per op: what stitching is measured against."""

from __future__ import annotations

from dataclasses import dataclass

from mlirstitch.dialects import parse_module
from mlirstitch.dialects.walk import walk
from mlirstitch.errors import MlirstitchError
from mlirstitch.passes.op_kind import Kind
from mlirstitch.passes.stitching.graph import build_graph, tensor_bytes


@dataclass(frozen=True)
class Unfused:
    """One kernel per op of the normalised program.

    Attributes:
        memory_bound: kernels of element-wise ops, reductions and data movement.
        compute_bound: contractions, convolutions and poolings.
        bytes: every tensor that a kernel reads or writes, once a kernel.
    """

    memory_bound: int
    compute_bound: int
    bytes: int


def unfused(text: str) -> Unfused:
    """Count the ops of ``@main`` in a normalised linalg module; constants, fills and views are no kernels."""
    module = parse_module(text)
    functions = [op for op in walk(module.operation) if op.name == "func.func"]
    if len(functions) != 1:
        raise MlirstitchError(
            f"expected one function, found {len(functions)}", hint="give the text of the linalg level"
        )
    graph = build_graph(functions[0])
    compute = sum(kind is Kind.COMPUTE for kind in graph.kinds)
    moved = sum(
        tensor_bytes(value) for op, reads in zip(graph.ops, graph.reads, strict=True) for value in (*reads, *op.results)
    )
    return Unfused(len(graph.ops) - compute, compute, moved)
