"""Cutting a function into stages of a pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.graph import Graph, GraphOp
from mlirstitch.passes.partitioning.phases import BACKWARD, FORWARD, OPTIMIZER, Phases

_SLACK = 0.3
"""How far from equal shares a stage may start, in shares, so that little crosses."""


def stages_of(
    graph: Graph, phases: Phases, count: int, weightless: Collection[int] = ()
) -> tuple[tuple[int, ...], ...]:
    """All ops in ``count`` stages: numbers of the ops of each, ascending; a stage may be empty.

    Forward ops go by about equal shares of the forward work (flops and bytes), cut where few bytes cross, never before
    a stage they read from. An op that
    reads arguments of the function alone (a transposed weight) goes where its result is first read. An update goes
    where its argument is first read; a backward op where the weight is that it reads, else with its latest reader.
    The work of ``weightless`` ops does not count: a plan that computes them elsewhere has no use for their stage.

    Raises:
        PlanError: no such number of stages.
    """
    if count < 1:
        raise PlanError(f"{count} stages: there is at least one")
    forward = phases.ops(FORWARD)
    apart = set(computed_from_weights(graph, forward))
    chain = [number for number in forward if number not in apart]
    return stages_from_forward(graph, phases, stages_of_chain(graph, chain, count, weightless), count)


def stages_of_chain(graph: Graph, chain: Sequence[int], count: int, weightless: Collection[int] = ()) -> dict[int, int]:
    """The stages of some forward ops by their work, as :func:`stages_of` cuts them."""
    assigned: dict[int, int] = {}
    work = [0.0 if number in weightless else _work(graph, graph.ops[number]) for number in chain]
    cuts = _cuts(graph, chain, work, count)
    for place, number in enumerate(chain):
        share = sum(cut <= place for cut in cuts)
        assigned[number] = max([share, *_stages(graph, assigned, graph.ops[number])])
    return assigned


def stages_from_forward(
    graph: Graph, phases: Phases, forward: Mapping[int, int], count: int
) -> tuple[tuple[int, ...], ...]:
    """All ops in stages, given those of the forward ops that depend on an input."""
    assigned = dict(forward)
    for number in reversed(computed_from_weights(graph, phases.ops(FORWARD))):
        readers = _reader_stages(graph, assigned, graph.ops[number])
        assigned[number] = min(readers, default=0)
    _backward_stages(graph, phases, assigned)
    _remaining(graph, assigned)
    stages: list[list[int]] = [[] for _ in range(count)]
    for op in graph.ops:
        stages[assigned.get(op.number, 0)].append(op.number)
    return tuple(tuple(stage) for stage in stages)


def _work(graph: Graph, op: GraphOp) -> float:
    """Flops, and bytes at ten flops each: what machines have had for decades in dense arithmetic, within a factor."""
    if op.kind in ("view", "constant"):
        return 0.0
    moved = sum(graph.values[use.value].bytes for use in (*op.inputs, *op.results))
    return op.flops + 10.0 * moved


def _cuts(graph: Graph, chain: Sequence[int], work: Sequence[float], count: int) -> list[int]:
    """Places in a chain of ops where stages start: where fewest bytes cross, near equal shares of the work."""
    done = list(itertools.accumulate(work, initial=0.0))
    crossing = _crossing(graph, chain)
    cuts: list[int] = []
    for stage in range(1, count):
        ideal, slack = done[-1] * stage / count, done[-1] * _SLACK / count
        near = [place for place in range(1, len(chain)) if abs(done[place] - ideal) <= slack]
        if not near:
            near = [min(range(len(chain)), key=lambda place: abs(done[place] - ideal), default=0)]
        cuts.append(min(near, key=lambda place: (crossing[place], abs(done[place] - ideal))))
    return cuts


def _crossing(graph: Graph, chain: Sequence[int]) -> list[int]:
    """For every place in a chain the bytes that ops before it compute and ops from it on read."""
    position = {number: place for place, number in enumerate(chain)}
    changes = [0] * (len(chain) + 1)
    for place, number in enumerate(chain):
        for use in graph.ops[number].results:
            last = max((position[user] for user in graph.values[use.value].users if user in position), default=place)
            if last > place:
                changes[place + 1] += graph.values[use.value].bytes
                changes[last + 1] -= graph.values[use.value].bytes
    return list(itertools.accumulate(changes))


def computed_from_weights(graph: Graph, forward: Sequence[int]) -> list[int]:
    """Forward ops that no input of the function reaches."""
    reached = {value for value in graph.arguments if graph.values[value].role not in ("weight", "constant")}
    found: list[int] = []
    for number in forward:
        op = graph.ops[number]
        if any(use.value in reached for use in op.inputs):
            reached.update(use.value for use in op.results)
        else:
            found.append(number)
    return found


def _stages(graph: Graph, assigned: dict[int, int], op: GraphOp) -> list[int]:
    """Stages of the ops that compute what an op reads, as far as known."""
    producers = (graph.values[use.value].producer for use in op.inputs)
    return [assigned[producer] for producer in producers if producer in assigned]


def _reader_stages(graph: Graph, assigned: dict[int, int], op: GraphOp) -> list[int]:
    """Stages of the ops that read what an op computes, as far as known."""
    return [assigned[u] for use in op.results for u in graph.values[use.value].users if u in assigned]


def _argument_stages(graph: Graph, assigned: dict[int, int]) -> dict[int, int]:
    """The first stage that reads each argument of the function."""
    found: dict[int, int] = {}
    for value in graph.arguments:
        readers = [assigned[user] for user in graph.values[value].users if user in assigned]
        if readers and graph.values[value].role != "input":
            found[value] = min(readers)
    return found


def _backward_stages(graph: Graph, phases: Phases, assigned: dict[int, int]) -> None:
    """Where weights are read (the gradient of a layer's input) the weight's stage; else that of the latest reader.

    A gradient is read by the gradients of what came before it, so that walking backwards meets the readers first. What
    a value's producer was cannot tell: the gradient of a weight reads activations of the stage before.
    """
    home = _argument_stages(graph, assigned)
    _update_stages(graph, phases, assigned, home)
    weights = dict(home)
    constant = graph.constant_ops()
    for number in computed_from_weights(graph, phases.ops(FORWARD)):
        if number not in constant:
            weights.update((use.value, assigned[number]) for use in graph.ops[number].results)
    for number in reversed(phases.ops(BACKWARD)):
        op = graph.ops[number]
        read = [weights[use.value] for use in op.inputs if use.value in weights]
        readers = _reader_stages(graph, assigned, op)
        if read or readers:
            assigned[number] = max(read or readers)


def _update_stages(graph: Graph, phases: Phases, assigned: dict[int, int], home: dict[int, int]) -> None:
    """Updates: where their argument is first read, and with them the ops that lead to them."""
    for value, argument in zip(graph.returned, graph.mutated, strict=True):
        producer = graph.values[value].producer
        if argument in home and producer >= 0:
            assigned.setdefault(producer, home[argument])
    for number in reversed(phases.ops(OPTIMIZER)):
        readers = _reader_stages(graph, assigned, graph.ops[number])
        if readers:
            assigned.setdefault(number, max(readers))


def _remaining(graph: Graph, assigned: dict[int, int]) -> None:
    """Ops that nothing above reached: with their readers, else with what they read."""
    for op in reversed(graph.ops):
        if op.number not in assigned:
            readers = _reader_stages(graph, assigned, op)
            assigned[op.number] = max(readers) if readers else max(_stages(graph, assigned, op), default=0)
