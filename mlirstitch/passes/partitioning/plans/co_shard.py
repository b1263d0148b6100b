"""Co-shard (SuperScaler, arXiv 2301.08984, section 2): ops cut in time on one device, so that one part lives at once.

The inner width of MLPs and the heads of attention are cut in time. Every part runs from the input of its block to its
share of the block's sum before the next part starts, and again in the backward pass, which computes it a second time.
"""

from __future__ import annotations

from collections.abc import Iterable

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.graph import GraphOp
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.splits import legal_splits

TIME = "coshard"
_INSIDE = ("heads", "hidden")
_PARTS = 4


def co_shard(plan: Plan) -> None:
    """Heads and inner widths are cut in time on each device, and computed again backward: one part lives at once."""
    _cut(plan)
    for late, copies in _gradients_of_copies(plan):
        plan.order(plan.moment(late), plan.moment(copies))


def co_shard_recompute(plan: Plan) -> tuple[int, ...]:
    """The forward ops that co-shard computes again: those whose results are cut."""
    _cut(plan)
    constant = plan.graph.constant_ops()
    return tuple(op for op in plan.forward if op not in constant and _results_are_cut(plan, plan.graph.ops[op]))


def _cut(plan: Plan) -> None:
    found = [name for name in _INSIDE if plan.classes.has(name)]
    if not found:
        raise PlanError("the function has no heads and no hidden width to cut", hint="choose another plan")
    for name in found:
        plan.trans(name, time=(TIME, plan.micro_batches or _PARTS), storage=False)


def _results_are_cut(plan: Plan, op: GraphOp) -> bool:
    cut = plan.cut_loops(op.number, TIME)
    return bool(cut) and not any(legal_splits(op)[loop].combiner for loop in cut)


def _gradients_of_copies(plan: Plan) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Groups of second computations that read each other, each with the ops whose results they wait for.

    A group has all it reads when the forward pass is over; it is to wait for the gradient that it meets. That is what
    readers of the group read beside it, if it does not depend on the group.
    """
    graph = plan.graph
    found: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for group in _connected(plan):
        results = {use.value for op in group for use in graph.ops[op].results}
        readers = [op for op in graph.ops if not op.recomputes and any(use.value in results for use in op.inputs)]
        behind = _depending(plan, group)
        beside = {graph.values[use.value].producer for op in readers for use in op.inputs} - behind
        late = sorted(beside & set(plan.backward) - {op.number for op in graph.ops if op.recomputes})
        if late:
            found.append((tuple(late), group))
    return found


def _connected(plan: Plan) -> list[tuple[int, ...]]:
    """Second computations in groups, by what they read of each other."""
    group: dict[int, set[int]] = {}
    for op in plan.graph.ops:
        if not op.recomputes:
            continue
        producers = {plan.graph.values[use.value].producer for use in op.inputs}
        joined = {op.number}
        for producer in sorted(producers & set(group)):
            joined |= group[producer]
        for member in joined:
            group[member] = joined
    return [tuple(sorted(members)) for first, members in sorted(group.items()) if first == min(members)]


def _depending(plan: Plan, ops: Iterable[int]) -> set[int]:
    """Ops that depend on some ops, and those."""
    found = set(ops)
    for op in plan.graph.ops:
        if any(plan.graph.values[use.value].producer in found for use in op.inputs):
            found.add(op.number)
    return found
