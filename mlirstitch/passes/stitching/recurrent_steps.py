"""Contractions that are steps of a sequence: too short for a library call each.

The next step waits for one, and the call waits for its launch, longer than it computes. A kernel of ours takes up the
gates around it, so that a step is one launch instead of two and the product does not go through memory.
"""

from __future__ import annotations

from mlir import ir

from mlirstitch.passes.op_kind import MATMUL_OPS
from mlirstitch.passes.stitching.graph import Graph, tensor_bytes
from mlirstitch.passes.structured import shape_of
from mlirstitch.target import Target

FEWEST_STEPS = 8
"""Contractions with one operand in common that are taken for steps of a sequence."""


def recurrent_steps(graph: Graph, target: Target) -> frozenset[int]:
    """Nodes that are matmuls with an operand that several share, each done sooner than a launch begins.

    A loop nest loads both factors of every product, from the level-2 cache at worst.
    """
    readers: dict[ir.Value, list[int]] = {}
    for node, op in enumerate(graph.ops):
        if op.name in MATMUL_OPS:
            for value in graph.reads[node]:
                readers.setdefault(value, []).append(node)
    steps = {node for nodes in readers.values() if len(nodes) >= FEWEST_STEPS for node in nodes}
    return frozenset(node for node in steps if _loaded(graph, node) <= target.launch_seconds * target.l2_bandwidth)


def _loaded(graph: Graph, node: int) -> int:
    """Bytes of the factors of all products."""
    factors = list(graph.ops[node].operands)[:2]
    each = sum(tensor_bytes(value) // max(1, _elements(value)) for value in factors)
    return graph.iteration_space(node) * each


def _elements(value: ir.Value) -> int:
    count = 1
    for extent in shape_of(value):
        count *= extent
    return count
