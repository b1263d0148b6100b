"""Named plans. Each is a short program over the three primitives; several nest over different axes of one mesh.

``named_plan("dp")`` or ``named_plan("dp+tp+pp-1f1b")``. Every plan works on one axis, which the mesh must have: data
parallelism and ZeRO on ``dp``, ``tp`` and ``sp`` on ``tp``, pipelines on ``pp``, experts on ``ep``, images on ``sp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plans.co_shard import TIME, co_shard, co_shard_recompute
from mlirstitch.passes.partitioning.plans.data_parallel import data_parallel, zero_1, zero_2, zero_3
from mlirstitch.passes.partitioning.plans.expert_parallel import expert_parallel, spatial_parallel
from mlirstitch.passes.partitioning.plans.interlaced import interlaced
from mlirstitch.passes.partitioning.plans.pipeline_parallel import gpipe, interleaved, one_f_one_b
from mlirstitch.passes.partitioning.plans.tensor_parallel import sequence_parallel, tensor_parallel
from mlirstitch.passes.partitioning.plans.three_f_one_b import three_f_one_b

__all__ = ["NAMED_PLANS", "NamedPlan", "named_plan", "named_recompute"]

Rules = Callable[[Plan], None]
Recompute = Callable[[Plan], Iterable[int]]
"""Chooses forward ops, by number."""


@dataclass(frozen=True)
class NamedPlan:
    """A plan with a name.

    Attributes:
        name: as in ``--plan``.
        axis: the mesh axis that it cuts by; "" if it cuts in time alone.
        rules: applies it.
        turn: of several plans the one of the lowest turn is applied first. Cuts of weights between steps (ZeRO) come
            inside of those that ops compute with, so that plain gathers undo them; plans that place ops come last.
        recompute: the forward ops that the backward pass is to compute again; it gets a plan without rules.
    """

    name: str
    axis: str
    rules: Rules
    turn: int = 0
    recompute: Recompute | None = None

    @property
    def summary(self) -> str:
        """First line of its documentation."""
        return (self.rules.__doc__ or "").strip().splitlines()[0]


NAMED_PLANS: dict[str, NamedPlan] = {
    plan.name: plan
    for plan in (
        NamedPlan("dp", "dp", data_parallel, turn=1),
        NamedPlan("zero1", "dp", zero_1, turn=1),
        NamedPlan("zero2", "dp", zero_2, turn=1),
        NamedPlan("zero3", "dp", zero_3, turn=1),
        NamedPlan("tp", "tp", tensor_parallel),
        NamedPlan("sp", "tp", sequence_parallel),
        NamedPlan("co-shard", "", co_shard, recompute=co_shard_recompute),
        NamedPlan("expert", "ep", expert_parallel),
        NamedPlan("spatial", "sp", spatial_parallel),
        NamedPlan("pp-gpipe", "pp", gpipe, turn=2),
        NamedPlan("pp-1f1b", "pp", one_f_one_b, turn=2),
        NamedPlan("pp-interleaved", "pp", interleaved, turn=2),
        NamedPlan("interlaced", "pp", interlaced, turn=2),
        NamedPlan("3f1b", "pp", three_f_one_b, turn=2),
    )
}


def named_plan(text: str) -> Rules:
    """The rules of one named plan, or of several joined by ``+``.

    Raises :class:`PlanError` for an unknown name, or two plans on one axis.
    """
    chosen = _chosen(text)

    def rules(plan: Plan) -> None:
        for part in sorted(chosen, key=lambda part: part.turn):
            if part.axis and part.axis not in plan.mesh.sizes:
                raise PlanError(
                    f"plan {part.name} cuts by axis {part.axis}, which the mesh {plan.mesh} lacks",
                    hint=f"give a mesh such as {part.axis}=2",
                )
            part.rules(plan)

    return rules


def named_recompute(text: str) -> Recompute | None:
    """What the named plans together compute again in the backward pass; None if nothing. Raises as the above."""
    parts = [part.recompute for part in _chosen(text) if part.recompute is not None]
    if not parts:
        return None

    def recompute(plan: Plan) -> list[int]:
        # Each on a plan of its own: their rules are tried, not made.
        tried = (Plan(plan.graph, plan.mesh, micro_batches=plan.micro_batches) for _ in parts)
        return sorted({op for part, own in zip(parts, tried, strict=True) for op in part(own)})

    return recompute


def _chosen(text: str) -> list[NamedPlan]:
    chosen: list[NamedPlan] = []
    for name in (part.strip() for part in text.split("+")):
        if name not in NAMED_PLANS:
            raise PlanError(f"unknown plan {name!r}", hint=f"named plans: {', '.join(NAMED_PLANS)}")
        chosen.append(NAMED_PLANS[name])
    axes = [plan.axis for plan in chosen]
    twice = next((axis for axis in axes if axes.count(axis) > 1), None)
    if twice is not None:
        raise PlanError(
            f"plan {text!r} cuts by axis {twice or TIME} twice", hint="join plans that work on different axes"
        )
    return chosen
