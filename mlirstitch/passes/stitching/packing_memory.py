"""What packing does to memory: tensors that wait for a pack stay alive longer, and arguments are overwritten later."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.passes.stitching.fusion_plan import FusionPlan
from mlirstitch.passes.stitching.graph import Graph, root, tensor_bytes
from mlirstitch.passes.structured import terminator


def run_order_edges(graph: Graph, plan: FusionPlan) -> list[set[int]]:
    """For every cluster of the plan the places of those that must run before it.

    That is what it reads from; and what reads an argument before it makes the argument's new contents, which could not
    be written in place otherwise.
    """
    home = {node: place for place, planned in enumerate(plan.clusters) for node in planned.nodes}
    edges: list[set[int]] = []
    for planned in plan.clusters:
        inside = set(planned.nodes)
        sources = {source for node in planned.nodes for source in graph.predecessors[node]}
        edges.append({home[source] for source in sources if source not in inside})
    for argument, value in _new_contents(graph):
        writer = home[graph.producer[value]] if value in graph.producer else None
        if writer is not None:
            readers = (home[node] for node, values in enumerate(graph.reads) if argument in values)
            edges[writer].update(reader for reader in readers if reader < writer)
    return edges


def _new_contents(graph: Graph) -> list[tuple[ir.Value, ir.Value]]:
    """Arguments of the function with the tensors that become their contents, views looked through."""
    block = graph.function.regions[0].blocks[0]
    arguments = dict(zip(stitch.NAME.of_arguments(graph.function), block.arguments, strict=True))
    mutated = zip(stitch.MUTATES.of_results(graph.function), terminator(block).operands, strict=True)
    return [(arguments[name], root(value)) for name, value in mutated if name is not None and name in arguments]


class Lifetimes:
    """When tensors that go from cluster to cluster are alive; those that ``@main`` returns always are."""

    def __init__(self, graph: Graph, plan: FusionPlan) -> None:
        self._reads: list[dict[ir.Value, int]] = []
        self._made: list[int] = []
        self._last: dict[ir.Value, int] = {}
        passed: dict[ir.Value, int] = {}
        for place, planned in enumerate(plan.clusters):
            inside = set(planned.nodes)
            read: dict[ir.Value, int] = {}
            for node in planned.nodes:
                for value in graph.reads[node]:
                    source = graph.producer.get(value)
                    if source is not None and source not in inside and source not in graph.returned:
                        read[value] = passed[value] = tensor_bytes(value)
                        self._last[value] = place
            self._reads.append(read)
        for planned in plan.clusters:
            results = (value for node in planned.nodes for value in graph.ops[node].results)
            self._made.append(sum(passed.get(value, 0) for value in results))

    def kept_bytes(self, places: Sequence[int], near: Collection[int]) -> int:
        """About how many bytes stay in memory longer if the clusters at ``places`` run at the same time.

        What a cluster waits with is what it reads and nobody reads later; what it makes early is its results. Nothing
        counts if only clusters ``near`` (at places that may as well run at the same time) stand between them.
        """
        first, last = min(places), max(places)
        if all(place in near for place in range(first, last + 1)):
            return 0
        return sum(self._kept(place, last) for place in places)

    def _kept(self, place: int, last: int) -> int:
        waiting = sum(size for value, size in self._reads[place].items() if self._last[value] < last)
        freed = sum(size for value, size in self._reads[place].items() if self._last[value] <= place)
        return max(0, waiting - self._made[place], self._made[place] - freed)
