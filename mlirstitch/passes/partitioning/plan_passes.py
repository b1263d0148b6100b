"""The three primitives as passes: op-trans, op-assign and op-order write a plan into the IR, rule by rule."""

from __future__ import annotations

import fnmatch
import re
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import plan_attributes
from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.options import option
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.partitioning.linalg_graph import graph_of
from mlirstitch.passes.partitioning.phases import BACKWARD, FORWARD, OPTIMIZER
from mlirstitch.passes.partitioning.placement import Moment
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.partitioning.plan_ir import planned_function, read_plan, write_plan
from mlirstitch.passes.partitioning.plans import named_plan, named_recompute
from mlirstitch.passes.partitioning.recompute import Recompute, mark_recomputed

_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_PHASES = (FORWARD, BACKWARD, OPTIMIZER)
OPS = "numbers (3), ranges (3-7), phases (forward, backward, optimizer) or names of ops with wildcards, separated by ,"
AT = "a place, such as pp=0 or micro=1,half=0"


@register_pass
@dataclass(frozen=True)
class MakeMesh(Pass):
    """Start a plan: write the mesh, ``dist.mesh`` and ``dist.devices`` of the module, and drop a plan it has."""

    NAME = "dist-mesh"

    axes: str = option("", "axes and sizes: dp=2,tp=4")

    def run(self, op: ir.Operation) -> None:
        write_plan(Plan(graph_of(planned_function(op)), Mesh.parse(self.axes)), op)


@register_pass
@dataclass(frozen=True)
class OpTrans(Pass):
    """op-trans: cut loops over axes of the mesh, in parts of time, or both (attributes ``dist.cuts``, ``dist.store``).

    Either ``dims`` names a dim class, every loop of which is cut, or ``ops`` and ``loop`` name single loops, which are
    cut or refused. Of a class, ops that cannot be cut are replicated and say so in ``dist.notes``; with ``strict`` they
    are refused.
    """

    NAME = "dist-op-trans"

    dims: str = option("", "dim class: batch, heads, *.fc1.weight/0")
    ops: str = option("", f"only these ops: {OPS}")
    loop: int = option(-1, "loop of the ops to cut, if dims is not given")
    space: str = option("", "axes of the mesh, outermost first: tp or dp,tp")
    time: str = option("", "parts of time: 4 (axis micro), name=4 for a new axis, or the name of one that exists")
    strict: bool = option(False, "refuse what cannot be cut")

    def run(self, op: ir.Operation) -> None:
        plan = read_plan(op)
        if bool(self.dims) == (self.loop >= 0):
            raise PlanError("op-trans takes either dims or a loop", hint="give dims=batch, or ops=3 loop=0")
        space, time = _names(self.space), _time_of(self.time)
        among = select_ops(plan, self.ops) if self.ops else None
        if self.loop >= 0:
            for number in among if among is not None else select_ops(plan, ""):
                plan.trans_op(number, self.loop, space=space, time=time)
        else:
            notes = plan.trans(self.dims, space=space, time=time, among=among)
            if notes and self.strict:
                found = plan.graph.ops[notes[0].op]
                raise PlanError(
                    f"{found.name} (op {notes[0].op}), loop {notes[0].loop} of {self.dims}: {notes[0].reason}",
                    hint="without strict the op is replicated",
                    source=found.source,
                )
        plan.place()
        write_plan(plan, op)


@register_pass
@dataclass(frozen=True)
class OpAssign(Pass):
    """op-assign: place ops, or an argument, on the part of the mesh at a place (``dist.mesh``, ``dist.devices``).

    With ``stages``, all ops are divided into so many stages of about equal work, which are placed along the axis
    ``along``.
    """

    NAME = "dist-op-assign"

    ops: str = option("", f"which ops: {OPS}")
    argument: str = option("", "name of an argument of the function, in place of ops")
    at: str = option("", AT)
    stages: int = option(0, "how many stages, in place of ops")
    along: str = option("pp", "axis of the stages")

    def run(self, op: ir.Operation) -> None:
        if sum(map(bool, (self.ops, self.argument, self.stages))) != 1:
            raise PlanError("op-assign takes one of ops, argument and stages", hint="give ops=forward at=pp=0")
        plan = read_plan(op)
        if self.stages:
            for stage, ops in enumerate(plan.stages(self.stages)):
                plan.assign(ops, plan.mesh.at(**{self.along: stage}))
        else:
            part = plan.mesh.at(**_place_of(self.at))
            if self.argument:
                plan.keep_at(self.argument, part)
            else:
                plan.assign(select_ops(plan, self.ops), part)
        plan.place()
        write_plan(plan, op)


@register_pass
@dataclass(frozen=True)
class OpOrder(Pass):
    """op-order: some ops at a place in time end before others start (``dist.orders``, ``dist.groups``).

    Orders that contradict each other or the data are refused by ``dist-insert-communication``, which names the cycle.
    """

    NAME = "dist-op-order"

    first: str = option("", f"ops that end: {OPS}")
    first_at: str = option("", f"when: {AT}; always by default")
    then: str = option("", "ops that start, likewise")
    then_at: str = option("", "when, likewise")

    def run(self, op: ir.Operation) -> None:
        plan = read_plan(op)
        plan.order(_moment(plan, self.first, self.first_at), _moment(plan, self.then, self.then_at))
        write_plan(plan, op)


@register_pass
@dataclass(frozen=True)
class WriteNamedPlan(Pass):
    """Write a named plan into the IR, as op-trans, op-assign and op-order would (docs/partitioning.md lists them).

    A plan that recomputes forward ops (co-shard) runs ``dist-recompute`` first.
    """

    NAME = "dist-plan"

    plan: str = option("", "name, or several joined by +: dp+tp")
    mesh: str = option("", "axes and sizes: dp=2,tp=4; the mesh that the module has by default")
    micro_batches: int = option(0, "how many micro-batches; the plan's own choice by default")

    def run(self, op: ir.Operation) -> None:
        mesh = Mesh.parse(self.mesh) if self.mesh else read_plan(op).mesh
        rules, recompute = named_plan(self.plan), named_recompute(self.plan)
        plan = self._empty(op, mesh)
        if recompute is not None:
            mark_recomputed(planned_function(op), [plan.graph.ops[number].index for number in recompute(plan)])
            Recompute().run(op)
            plan = self._empty(op, mesh)
        rules(plan)
        plan.place()
        write_plan(plan, op)

    def _empty(self, op: ir.Operation, mesh: Mesh) -> Plan:
        return Plan(graph_of(planned_function(op)), mesh, micro_batches=self.micro_batches or None)


@register_pass
@dataclass(frozen=True)
class DropPlan(Pass):
    """Take every attribute of a plan off the module and its function."""

    NAME = "dist-drop-plan"

    def run(self, op: ir.Operation) -> None:
        plan_attributes.clear(op, planned_function(op))


def select_ops(plan: Plan, text: str) -> tuple[int, ...]:
    """Numbers of the ops that a text names, ascending. Raises :class:`PlanError` for a part that names none."""
    found: set[int] = set()
    for part in _names(text):
        matched = _RANGE.fullmatch(part)
        if matched:
            first, last = int(matched[1]), int(matched[2] or matched[1])
            chosen = [number for number in range(first, last + 1) if number < len(plan.graph.ops)]
        elif part in _PHASES:
            chosen = list(plan.phases.ops(part))
        else:
            chosen = [op.number for op in plan.graph.ops if fnmatch.fnmatchcase(op.name, part)]
        if not chosen:
            last = len(plan.graph.ops) - 1
            raise PlanError(f"no op is {part!r}", hint=f"name ops by {OPS}; there are ops 0 to {last}")
        found.update(chosen)
    if not found:
        raise PlanError("no ops are named", hint=f"name ops by {OPS}")
    return tuple(sorted(found))


def _moment(plan: Plan, ops: str, at: str) -> Moment:
    return plan.moment(select_ops(plan, ops), **_place_of(at))


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _place_of(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for part in _names(text):
        name, equals, place = part.partition("=")
        if not equals or not place.isdigit() or name in found:
            raise PlanError(f"place {text!r}: cannot read {part!r}", hint="write pp=0, or pp=0,micro=1")
        found[name] = int(place)
    return found


def _time_of(text: str) -> int | str | tuple[str, int] | None:
    if not text:
        return None
    if text.isdigit():
        return int(text)
    name, equals, parts = text.partition("=")
    if not equals:
        return name
    if not parts.isdigit() or not name.isidentifier():
        raise PlanError(f"time {text!r}: cannot read it", hint="write 4, micro=4, or micro")
    return (name, int(parts))
