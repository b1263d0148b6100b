"""Plans for experts (GShard, arXiv 2006.16668) and for images cut in space (with halos)."""

from __future__ import annotations

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.plan import Plan

EXPERT_AXIS, SPATIAL_AXIS = "ep", "sp"


def expert_parallel(plan: Plan) -> None:
    """Every device has some of the experts, and a part of the batch for everything else: tokens go to and fro."""
    if not plan.classes.has("experts"):
        raise PlanError("the function has no experts", hint="choose another plan")
    plan.trans("experts", space=EXPERT_AXIS)
    rest = [op.number for op in plan.graph.ops if not plan.is_cut(op.number, EXPERT_AXIS)]
    plan.trans("batch", space=EXPERT_AXIS, among=rest, storage=False)


def spatial_parallel(plan: Plan) -> None:
    """Images are cut along their height; convolutions get the rows at the borders from the neighbours."""
    name = next((name for name in ("height", "length", "depth") if plan.classes.has(name)), None)
    if name is None:
        raise PlanError("no window walks over a dim of the function", hint="choose another plan")
    plan.trans(name, space=SPATIAL_AXIS)
