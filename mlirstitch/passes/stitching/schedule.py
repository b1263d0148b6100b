"""``stitch-schedule``: how every cluster runs."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.stitching.template import Cluster, Schedule, find_schedule, templates
from mlirstitch.passes.structured import functions
from mlirstitch.target import Target


@register_pass
@dataclass(frozen=True)
class StitchSchedule(Pass):
    """Write ``stitch.schedule`` on every cluster function: the best schedule of the first template that applies.

    A schedule that the chip cannot run (registers, shared memory, size of the launch) makes way for the next one. A
    function that already has a schedule keeps it; one that does not fit the cluster or the chip is refused. A function
    that a library computes is left as it is.
    """

    NAME = "stitch-schedule"

    def run(self, op: ir.Operation) -> None:
        target = stitch.target_of(op)
        for function in functions(op):
            if stitch.CLUSTER.name not in function.attributes or stitch.LIBRARY.get(function) is not None:
                continue
            given = stitch.SCHEDULE.get(function)
            if given is None:
                stitch.SCHEDULE.set(function, _choose(function, target))
            else:
                _check(function, given, target)


def _choose(function: ir.Operation, target: Target) -> Schedule:
    """The first schedule that can run. Raises :class:`PassError` with what every template said if there is none."""
    schedule, reasons = find_schedule(Cluster.of_function(function), target)
    if schedule is None:
        raise refusal(function, f"no kernel template can compute this cluster: {reasons}", "cut it into smaller ones")
    return schedule


def _check(function: ir.Operation, given: Schedule, target: Target) -> None:
    """Refuse a schedule that names no template, or does not fit the cluster or the chip."""
    template = next((template for template in templates() if template.name == given.template), None)
    if template is None:
        known = ", ".join(template.name for template in templates())
        raise refusal(function, f"stitch.schedule: no kernel template is named {given.template!r}", f"known: {known}")
    cluster = Cluster.of_function(function)
    reason = template.refusal(cluster, given, target)
    if reason is not None:
        hint = "correct the schedule, or leave it out and let the compiler choose"
        raise refusal(function, f"its stitch.schedule does not fit, template {template.name}: {reason}", hint)
