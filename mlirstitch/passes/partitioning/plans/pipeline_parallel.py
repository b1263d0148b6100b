"""Pipelines: GPipe (arXiv 1811.06965), 1F1B (PipeDream-flush, arXiv 2006.09503), interleaved (arXiv 2104.04473).

A plan of this sort cuts the batch in time and the function in stages; op-order makes the schedule. Orders follow
SuperScaler, section 5: on stage i of S forward m goes before forward n for m < n, likewise backward; in 1F1B
forward m + S - i goes before backward m, and backward m before forward m + S - i + 1 (numbered from 1).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mlirstitch.passes.partitioning.placement import Moment
from mlirstitch.passes.partitioning.plan import Plan

AXIS, TIME = "pp", "micro"
Task = tuple[str, int]
"""``F`` or ``B``, and the number of the micro-batch."""


def gpipe(plan: Plan) -> None:
    """A pipeline that runs all micro-batches forward, then all backward."""
    micro_batches = _stage(plan, plan.mesh.sizes[AXIS])
    stages = plan.mesh.sizes[AXIS]
    _order(plan, [gpipe_order(micro_batches)] * stages)


def one_f_one_b(plan: Plan) -> None:
    """A pipeline where every stage alternates between forward and backward, which keeps few activations."""
    micro_batches = _stage(plan, plan.mesh.sizes[AXIS])
    stages = plan.mesh.sizes[AXIS]
    _order(plan, [one_f_one_b_order(stages, micro_batches, stage) for stage in range(stages)])


def interleaved(plan: Plan) -> None:
    """A pipeline where every device has two stages, far apart, which shortens the time it waits at both ends."""
    devices = plan.mesh.sizes[AXIS]
    micro_batches = _stage(plan, 2 * devices)
    _order(plan, [one_f_one_b_order(2 * devices, micro_batches, stage) for stage in range(2 * devices)])


def gpipe_order(micro_batches: int) -> list[Task]:
    """The tasks of a stage, in order."""
    return [("F", m) for m in range(micro_batches)] + [("B", m) for m in range(micro_batches)]


def one_f_one_b_order(stages: int, micro_batches: int, stage: int) -> list[Task]:
    """The tasks of a stage (numbered from 0), in order."""
    ahead = min(stages - stage, micro_batches)
    tasks: list[Task] = [("F", m) for m in range(ahead)]
    for m in range(micro_batches):
        tasks.append(("B", m))
        if ahead + m < micro_batches:
            tasks.append(("F", ahead + m))
    return tasks


def cut_batch(plan: Plan) -> int:
    """Cut the batch in time; the number of micro-batches."""
    micro_batches = plan.micro_batches or _micro_batches(plan)
    plan.trans("batch", time=(TIME, micro_batches), storage=False)
    return micro_batches


def order_stages(plan: Plan, stages: Sequence[Sequence[int]], tasks_of_stages: Sequence[Sequence[Task]]) -> None:
    """Put the tasks of every stage in a row. What depends on inputs alone (how many targets count) is no part of them:
    all micro-batches may be needed for it before the first of them goes backward."""
    weighty = plan.reading_weights()
    forward, backward = weighty.intersection(plan.forward), weighty.intersection(plan.backward)
    for ops, tasks in zip(stages, tasks_of_stages, strict=True):
        timed = [op for op in ops if plan.is_cut(op, TIME)]
        phases = {"F": [op for op in timed if op in forward], "B": [op for op in timed if op in backward]}
        moments: list[Moment] = [plan.moment(phases[phase], micro=m) for phase, m in tasks if phases[phase]]
        for first, then in itertools.pairwise(moments):
            plan.order(first, then)


def _stage(plan: Plan, stages: int) -> int:
    """Cut the batch in time and the function in stages; the number of micro-batches."""
    micro_batches = cut_batch(plan)
    for stage, ops in enumerate(plan.stages(stages)):
        plan.assign(ops, plan.mesh.at(pp=stage % plan.mesh.sizes[AXIS]))
    return micro_batches


def _micro_batches(plan: Plan) -> int:
    """At least as many as stages, if the batch allows: the fewest that divide it, else as many as it has elements."""
    batch = max(found.size for found in plan.classes.select("batch"))
    enough = [n for n in range(max(2, plan.mesh.sizes[AXIS]), batch + 1) if batch % n == 0]
    return enough[0] if enough else batch


def _order(plan: Plan, tasks_of_stages: Sequence[Sequence[Task]]) -> None:
    order_stages(plan, plan.stages(len(tasks_of_stages)), tasks_of_stages)
