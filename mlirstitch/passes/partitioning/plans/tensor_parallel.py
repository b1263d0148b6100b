"""Tensor parallelism (Megatron-LM, arXiv 1909.08053) and sequence parallelism (arXiv 2205.05198)."""

from __future__ import annotations

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.plan import Plan

AXIS = "tp"
_INSIDE = ("heads", "hidden")
_ELSE = "vocabulary"
_ALONG = ("sequence", "batch")


def tensor_parallel(plan: Plan) -> None:
    """Heads of attention and the inner width of MLPs are cut: one sum behind each such block.

    A function without either is cut along its vocabulary. Where two widths in a row would be cut, the second stays
    whole: its op reads what the first made, and sums it.
    """
    found = [name for name in _INSIDE if plan.classes.has(name)] or [_ELSE]
    if not plan.classes.has(found[0]):
        raise PlanError("the function has no heads, hidden width or vocabulary to cut", hint="choose another plan")
    for name in found:
        plan.trans(name, space=AXIS)


def sequence_parallel(plan: Plan) -> None:
    """As tp, and what lies between the blocks is cut along the sequence: sums become scatters and gathers."""
    tensor_parallel(plan)
    outside = [op for op in (*plan.forward, *plan.backward) if not plan.is_cut(op, AXIS)]
    for name in _ALONG:
        if plan.classes.has(name):
            plan.trans(name, space=AXIS, among=outside, storage=False)
            plan.inside_of_time(AXIS)
            return
    raise PlanError("the function has no sequence and no batch to cut", hint="choose plan tp")
