"""``stitch-schedule``: how every cluster runs."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.stitching.template import Cluster, find_template
from mlirstitch.passes.structured import functions
from mlirstitch.target import Target


@register_pass
@dataclass(frozen=True)
class StitchSchedule(Pass):
    """Write ``stitch.schedule`` on every cluster function: the best schedule of the first template that applies.

    A function that already has a schedule, or that a library computes, is left as it is.
    """

    NAME = "stitch-schedule"

    def run(self, op: ir.Operation) -> None:
        target = Target.parse(stitch.TARGET.require(op))
        for function in functions(op):
            if stitch.CLUSTER.name not in function.attributes or stitch.LIBRARY.get(function) is not None:
                continue
            if stitch.SCHEDULE.get(function) is None:
                _schedule(function, target)


def _schedule(function: ir.Operation, target: Target) -> None:
    cluster = Cluster.of_function(function)
    template, reasons = find_template(cluster, target)
    if template is None:
        raise refusal(function, f"no kernel template can compute this cluster: {reasons}", "cut it into smaller ones")
    schedules = template.schedules(cluster, target)
    if not schedules:
        raise refusal(function, f"the template {template.name} applies but offers no schedule")
    stitch.SCHEDULE.set(function, schedules[0])
