"""What the explorer asks of a cost model: what a pattern saves, and what a kernel moves."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from mlir import ir

from mlirstitch.passes.stitching.cost.delta import pattern_costs
from mlirstitch.passes.stitching.graph import Graph, tensor_bytes
from mlirstitch.target import Target


class Scorer(Protocol):
    """Judges sets of nodes of one graph. Pure: equal questions, equal answers."""

    def gain(self, nodes: Collection[int]) -> float:
        """Seconds that one kernel for the nodes saves over one kernel each; quick and rough."""
        ...

    def moved_bytes(self, nodes: Collection[int], hidden: Collection[int]) -> int:
        """Bytes that one kernel for the nodes reads and writes; results of ``hidden`` ones are not stored."""
        ...


class GraphScorer:
    """Gains by the delta evaluator; every tensor is moved once, and of a slice's source what the slice takes."""

    def __init__(self, graph: Graph, target: Target) -> None:
        self._graph = graph
        self._costs = pattern_costs(graph, target)
        self._readers: dict[ir.Value, list[int]] = {}
        for node, values in enumerate(graph.reads):
            for value in values:
                self._readers.setdefault(value, []).append(node)

    def gain(self, nodes: Collection[int]) -> float:
        """See :class:`Scorer`."""
        return self._costs.pattern_seconds(nodes)

    def moved_bytes(self, nodes: Collection[int], hidden: Collection[int]) -> int:
        """See :class:`Scorer`."""
        graph = self._graph
        inside = frozenset(nodes)
        loaded: dict[ir.Value, int] = {}
        stored = 0
        for node in nodes:
            op = graph.ops[node]
            for value in graph.reads[node]:
                if graph.producer.get(value, -1) not in inside:
                    source = op.results[0] if op.name == "tensor.extract_slice" else value
                    loaded[value] = loaded.get(value, 0) + tensor_bytes(source)
            if node not in hidden:
                stored += sum(tensor_bytes(result) for result in op.results if self._leaves(node, result, inside))
        return stored + sum(min(size, tensor_bytes(value)) for value, size in loaded.items())

    def _leaves(self, node: int, result: ir.Value, inside: Collection[int]) -> bool:
        """The result is read outside, or returned."""
        readers = self._readers.get(result, ())
        return node in self._graph.returned or any(reader not in inside for reader in readers)
