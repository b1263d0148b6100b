"""Functions that run the same forward pass several times on its own results: which op belongs to which pass.

Nothing in the IR tells the passes apart but that they read the same weights. The readers of a weight in the forward
pass, in the order of the function, fall into equal runs, one a pass; an op that reads no weight belongs to the latest
pass that it reads from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.graph import Graph
from mlirstitch.passes.partitioning.phases import FORWARD, Phases
from mlirstitch.passes.partitioning.stages import computed_from_weights, stages_from_forward, stages_of_chain


def passes_of(graph: Graph, phases: Phases, count: int) -> dict[int, int]:
    """For every forward op that depends on an input its pass, from 0.

    Raises:
        PlanError: no weight is read as often in each of ``count`` passes, or only some of the passes are there.
    """
    apart = set(computed_from_weights(graph, phases.ops(FORWARD)))
    chain = [number for number in phases.ops(FORWARD) if number not in apart]
    begins = _by_weights(_weights_read(graph, chain), count)
    found: dict[int, int] = {}
    for number in chain:
        producers = (graph.values[use.value].producer for use in graph.ops[number].inputs)
        found[number] = max([begins.get(number, 0), *(found[producer] for producer in producers if producer in found)])
    if set(begins.values()) != set(range(count)):
        raise PlanError(f"the function does not run its weights in {count} forward passes", hint="choose plan pp-1f1b")
    return found


def recycled_stages(graph: Graph, phases: Phases, passes: Mapping[int, int], count: int) -> tuple[tuple[int, ...], ...]:
    """All ops in ``count`` stages: those of the first pass by work, those of others where their weights are."""
    first = [number for number in passes if passes[number] == 0]
    assigned = stages_of_chain(graph, first, count)
    reads = _weights_read(graph, passes)
    home: dict[int, int] = {}
    for number in first:
        for value in reads[number]:
            home[value] = min(assigned[number], home.get(value, count))
    for number in passes:
        if number not in assigned:
            producers = [graph.values[use.value].producer for use in graph.ops[number].inputs]
            same = [assigned[p] for p in producers if p in assigned and passes.get(p) == passes[number]]
            weights = [home[value] for value in reads[number] if value in home]
            assigned[number] = max([0, *weights, *same])
    return stages_from_forward(graph, phases, assigned, count)


def _by_weights(reads: Mapping[int, Sequence[int]], count: int) -> dict[int, int]:
    """The pass of every op that reads a weight which all passes read as often."""
    readers: dict[int, list[int]] = {}
    for number, values in reads.items():
        for value in values:
            readers.setdefault(value, []).append(number)
    found: dict[int, int] = {}
    for numbers in readers.values():
        if len(numbers) % count == 0:
            for rank, number in enumerate(numbers):
                found[number] = max(found.get(number, 0), rank * count // len(numbers))
    return found


def _weights_read(graph: Graph, chain: Iterable[int]) -> dict[int, list[int]]:
    """For every op the values it reads that are weights or computed from weights alone."""
    constant = graph.constant_ops()
    weights = {value for value in graph.arguments if graph.values[value].role == "weight"}
    for op in graph.ops:
        reads = [use.value for use in op.inputs if graph.values[use.value].producer not in constant]
        if reads and all(value in weights for value in reads):
            weights.update(use.value for use in op.results)
    return {
        number: list(dict.fromkeys(use.value for use in graph.ops[number].inputs if use.value in weights))
        for number in chain
    }
