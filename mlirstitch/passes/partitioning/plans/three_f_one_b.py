"""3F1B (SuperScaler, arXiv 2301.08984, section 2): three forward passes to one backward, as AlphaFold 2 recycles.

The forward passes run the same stages on their own results; gradients go through the last.
"""

from __future__ import annotations

import itertools

from mlirstitch.passes.partitioning.placement import Moment
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plans.pipeline_parallel import AXIS, TIME, cut_batch
from mlirstitch.passes.partitioning.recycling import passes_of, recycled_stages

PASSES = 3
Task = tuple[str, int]
"""``F1``, ``F2``, ``F3`` or ``B``, and the number of the micro-batch."""


def three_f_one_b(plan: Plan) -> None:
    """A pipeline for three forward passes to one backward: every stage does one task of each in turn."""
    stages = plan.mesh.sizes[AXIS]
    passes = passes_of(plan.graph, plan.phases, PASSES)
    micro_batches = cut_batch(plan)
    weighty = plan.reading_weights()
    for stage, ops in enumerate(recycled_stages(plan.graph, plan.phases, passes, stages)):
        plan.assign(ops, plan.mesh.at(pp=stage))
        timed = [op for op in ops if op in weighty and plan.is_cut(op, TIME)]
        tasks = {f"F{number + 1}": [op for op in timed if passes.get(op) == number] for number in range(PASSES)}
        tasks["B"] = [op for op in timed if op in plan.backward]
        order = three_f_one_b_order(stages, micro_batches, stage)
        moments: list[Moment] = [plan.moment(tasks[task], micro=m) for task, m in order if tasks[task]]
        for first, then in itertools.pairwise(moments):
            plan.order(first, then)


def three_f_one_b_order(stages: int, micro_batches: int, stage: int) -> list[Task]:
    """The tasks of a stage (numbered from 0), in order: F1(m + 2), F2(m + 1), F3(m), B(m - (S - i)), i from 1."""
    behind = stages - (stage + 1)
    tasks: list[Task] = []
    for m in range(-2, micro_batches + behind):
        turn = (("F1", m + 2), ("F2", m + 1), ("F3", m), ("B", m - behind))
        tasks += [(name, number) for name, number in turn if 0 <= number < micro_batches]
    return tasks
