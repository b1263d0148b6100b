"""Which ops of a training step belong to the forward pass, the backward pass, and the optimizer.

Nothing in the IR says so; it follows from dependences. The *loss* is the first result that mutates nothing, and the ops
it depends on are forward. The optimizer are the ops without reductions from which on an update depends on the old
contents of what it mutates, and those that only prepare a gradient for them. All else is backward.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlirstitch.passes.partitioning.graph import REDUCTION, Graph, GraphOp

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"


@dataclass(frozen=True)
class Phases:
    """Phase of every op, by number. ``loss`` is the number of the loss, -1 if every result mutates an argument."""

    of: tuple[str, ...]
    loss: int

    def ops(self, phase: str) -> tuple[int, ...]:
        """Numbers of the ops of one phase, ascending."""
        return tuple(number for number, found in enumerate(self.of) if found == phase)


def phases_of(graph: Graph) -> Phases:
    """Phases of a function. One without a mutated argument is all forward."""
    loss = next((v for v, m in zip(graph.returned, graph.mutated, strict=True) if m < 0), -1)
    if all(argument < 0 for argument in graph.mutated):
        return Phases((FORWARD,) * len(graph.ops), loss)
    forward = _forward(graph, loss)
    optimizer = _optimizer(graph, forward)
    return Phases(
        tuple(
            FORWARD if number in forward else OPTIMIZER if number in optimizer else BACKWARD
            for number in range(len(graph.ops))
        ),
        loss,
    )


def _forward(graph: Graph, loss: int) -> set[int]:
    found: set[int] = set()
    stack = [loss] if loss >= 0 else []
    while stack:
        producer = graph.values[stack.pop()].producer
        if producer >= 0 and producer not in found:
            found.add(producer)
            stack.extend(use.value for use in graph.ops[producer].inputs)
    return found


def _optimizer(graph: Graph, forward: set[int]) -> set[int]:
    updates = _updates(graph, forward)
    new_contents = {v for v, m in zip(graph.returned, graph.mutated, strict=True) if m >= 0}
    other_results = set(graph.returned) - new_contents
    found: set[int] = set()
    for op in reversed(graph.ops):
        if op.number in forward or REDUCTION in op.kinds:
            continue
        results = [use.value for use in op.results]
        users = {user for value in results for user in graph.values[value].users}
        ends_here = users <= found and not other_results.intersection(results)
        if ends_here and (op.number in updates or users):
            found.add(op.number)
    return found


def _updates(graph: Graph, forward: set[int]) -> set[int]:
    """Ops that depend on the old contents of a mutated argument by ops that keep its shape, none of them forward."""
    owned: set[int] = {argument for argument in graph.mutated if argument >= 0}
    reached: set[int] = set()
    for op in graph.ops:
        if op.number not in forward and REDUCTION not in op.kinds and _keeps_shape(graph, op, owned):
            reached.add(op.number)
            owned.update(use.value for use in op.results)
    return reached


def _keeps_shape(graph: Graph, op: GraphOp, values: set[int]) -> bool:
    shapes = {graph.values[use.value].shape for use in op.results}
    return any(use.value in values and graph.values[use.value].shape in shapes for use in op.inputs)
