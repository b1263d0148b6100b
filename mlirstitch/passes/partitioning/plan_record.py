"""A plan that keeps its rules as data: what a plan file holds, and how such data becomes a plan again.

A rule is the name of a method of :class:`Plan` with its arguments as JSON. Sets of ops are written as ``0-5,8``, or as
what they were chosen by: ``forward``, ``backward``, ``optimizer``, ``stage 0 of 2``. Rules are kept in the order in
which they were given, because a rule says what later ones find cut already.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.graph import Graph
from mlirstitch.passes.partitioning.phases import BACKWARD, FORWARD, OPTIMIZER
from mlirstitch.passes.partitioning.placement import Moment, Note
from mlirstitch.passes.partitioning.plan import Axes, Plan

Rule = dict[str, Any]
"""``{"rule": NAME, ...}`` with the arguments of the method of that name; schema in ``plan_file.schema.json``."""

Time = int | str | tuple[str, int] | None


class RecordedPlan(Plan):
    """A plan that knows the rules it was made by.

    Attributes:
        rules: in the order in which they were given.
        recomputed: ops of the function as it was before that the backward pass computes again in ``graph``.
    """

    rules: list[Rule]

    def __init__(
        self, graph: Graph, mesh: Mesh, *, micro_batches: int | None = None, recomputed: tuple[int, ...] = ()
    ) -> None:
        super().__init__(graph, mesh, micro_batches=micro_batches)
        self.rules = []
        self.recomputed = recomputed
        phases = ((FORWARD, self.forward), (BACKWARD, self.backward), (OPTIMIZER, self.optimizer))
        self._names_of_ops = {ops: name for name, ops in reversed(phases) if ops}

    def trans(
        self,
        dims: str,
        *,
        space: Axes = (),
        time: Time = None,
        among: Iterable[int] | None = None,
        storage: bool | None = None,
    ) -> tuple[Note, ...]:
        """As :meth:`Plan.trans`."""
        chosen = None if among is None else tuple(among)
        rule: Rule = {"rule": "trans", "dims": dims, **_axes(space, time)}
        if chosen is not None:
            rule["among"] = self._written(chosen)
        if storage is not None:
            rule["storage"] = storage
        notes = super().trans(dims, space=space, time=time, among=chosen, storage=storage)
        self.rules.append(rule)
        return notes

    def trans_op(self, op: int, loop: int, *, space: Axes = (), time: Time = None) -> None:
        """As :meth:`Plan.trans_op`."""
        rule = {"rule": "trans_op", "op": op, "loop": loop, **_axes(space, time)}
        super().trans_op(op, loop, space=space, time=time)
        self.rules.append(rule)

    def time_axis(self, name: str, parts: int) -> None:
        """As :meth:`Plan.time_axis`."""
        super().time_axis(name, parts)
        self.rules.append({"rule": "time_axis", "name": name, "parts": parts})

    def note(self, notes: Iterable[Note]) -> None:
        """As :meth:`Plan.note`."""
        kept = tuple(notes)
        super().note(kept)
        self.rules.append({"rule": "note", "notes": [dataclasses.asdict(note) for note in kept]})

    def inside_of_time(self, axis: str) -> None:
        """As :meth:`Plan.inside_of_time`."""
        super().inside_of_time(axis)
        self.rules.append({"rule": "inside_of_time", "axis": axis})

    def replicate(self, ops: Iterable[int], axes: Axes = ()) -> None:
        """As :meth:`Plan.replicate`."""
        chosen = tuple(ops)
        rule = {"rule": "replicate", "ops": self._written(chosen), "axes": _names(axes)}
        super().replicate(chosen, axes)
        self.rules.append(rule)

    def store(self, argument: str, dim: int, space: Axes) -> None:
        """As :meth:`Plan.store`."""
        rule = {"rule": "store", "argument": argument, "dim": dim, "space": _names(space)}
        super().store(argument, dim, space)
        self.rules.append(rule)

    def reduce_in_every_part(self, values: Iterable[int]) -> None:
        """As :meth:`Plan.reduce_in_every_part`."""
        chosen = tuple(values)
        rule = {"rule": "reduce_in_every_part", "values": written(chosen)}
        super().reduce_in_every_part(chosen)
        self.rules.append(rule)

    def gather_again(self, argument: str) -> None:
        """As :meth:`Plan.gather_again`."""
        rule = {"rule": "gather_again", "argument": argument}
        super().gather_again(argument)
        self.rules.append(rule)

    def assign(self, ops: Iterable[int], mesh: Mesh) -> None:
        """As :meth:`Plan.assign`."""
        chosen = tuple(ops)
        rule = {"rule": "assign", "ops": self._written(chosen), "mesh": mesh_json(mesh)}
        super().assign(chosen, mesh)
        self.rules.append(rule)

    def keep_at(self, argument: str, mesh: Mesh) -> None:
        """As :meth:`Plan.keep_at`."""
        rule = {"rule": "keep_at", "argument": argument, "mesh": mesh_json(mesh)}
        super().keep_at(argument, mesh)
        self.rules.append(rule)

    def stages(self, count: int) -> tuple[tuple[int, ...], ...]:
        """As :meth:`Plan.stages`; sets of ops that are a stage are written as such."""
        found = super().stages(count)
        for number, ops in enumerate(found):
            if ops:
                self._names_of_ops.setdefault(ops, f"stage {number} of {count}")
        return found

    def order_rules(self) -> list[Rule]:
        """The op-orders given so far: ``{"first": MOMENT, "then": MOMENT}``."""
        return [{"first": self._moment(order.first), "then": self._moment(order.then)} for order in self._orders]

    def _moment(self, moment: Moment) -> Rule:
        return {"ops": self._written(moment.ops), **({"at": dict(moment.at)} if moment.at else {})}

    def _written(self, ops: Sequence[int]) -> str:
        return self._names_of_ops.get(tuple(ops)) or written(ops)


def replay(plan: Plan, rules: Sequence[Mapping[str, Any]], orders: Sequence[Mapping[str, Any]]) -> None:
    """Give a plan rules and orders that were kept as data, as the schema of plan files allows them.

    Raises:
        PlanError: a rule does not fit the plan's graph or mesh; names the rule.
    """
    for number, rule in enumerate(rules):
        try:
            _apply(plan, rule)
        except PlanError as error:
            raise PlanError(f"rules[{number}]: {error.message}", hint=error.hint, source=error.source) from error
    sets = _Sets(plan)
    for number, order in enumerate(orders):
        try:
            first, then = (
                plan.moment(sets.read(order[side]["ops"]), **order[side].get("at", {})) for side in ("first", "then")
            )
        except PlanError as error:
            raise PlanError(f"order[{number}]: {error.message}", hint=error.hint, source=error.source) from error
        plan.order(first, then)


def _apply(plan: Plan, rule: Mapping[str, Any]) -> None:
    sets = _Sets(plan)
    given = {key: value for key, value in rule.items() if key != "rule"}
    for key in ("ops", "among"):
        if key in given:
            given[key] = sets.read(given[key])
    if "values" in given:
        given["values"] = read_numbers(given["values"], len(plan.graph.values), "value")
    if "mesh" in given:
        given["mesh"] = read_mesh(given["mesh"], plan.mesh)
    if isinstance(given.get("time"), dict):
        given["time"] = (given["time"]["axis"], given["time"]["parts"])
    if "notes" in given:
        given["notes"] = [Note(n["op"], n["loop"], tuple(n["axes"]), n["reason"]) for n in given["notes"]]
    getattr(plan, rule["rule"])(**given)


class _Sets:
    """Sets of ops of a plan's graph by what they are written as; stages are looked for once."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._read: dict[str, tuple[int, ...]] = {}

    def read(self, text: str) -> tuple[int, ...]:
        """The ops. Raises :class:`PlanError` for other texts and ops that there are not."""
        if text not in self._read:
            self._read[text] = self._find(text)
        return self._read[text]

    def _find(self, text: str) -> tuple[int, ...]:
        if text in (FORWARD, BACKWARD, OPTIMIZER):
            return self._plan.phases.ops(text)
        words = text.split()
        if len(words) == 4 and words[0] == "stage" and words[2] == "of" and words[1].isdigit() and words[3].isdigit():
            number, count = int(words[1]), int(words[3])
            if number >= count:
                raise PlanError(f"there is no {text}", hint="stages are numbered from 0")
            return self._plan.stages(count)[number]
        return read_numbers(text, len(self._plan.graph.ops), "op")


def written(numbers: Iterable[int]) -> str:
    """Numbers as text, ascending: ``0-5,8``; ``""`` for none."""
    ordered = sorted(set(numbers))
    runs = itertools.groupby(enumerate(ordered), lambda pair: pair[1] - pair[0])
    ends = [[pair[1] for pair in run] for _, run in runs]
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in ends)


def read_numbers(text: str, count: int, what: str) -> tuple[int, ...]:
    """The inverse of :func:`written`. Raises :class:`PlanError` for other texts, and for numbers from ``count`` on."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        low, dash, high = part.partition("-")
        if not (low.isdecimal() and (high.isdecimal() if dash else True)):
            raise PlanError(f"cannot read {text!r} as a set of {what}s", hint="write 0-5,8")
        first, last = int(low), int(high if dash else low)
        if first > last or last >= count:
            raise PlanError(f"there is no {what} {part}", hint=f"{what}s are 0 to {count - 1}")
        found += range(first, last + 1)
    return tuple(sorted(set(found)))


def mesh_json(mesh: Mesh) -> Rule:
    """A mesh as JSON: sizes of its axes, outermost first, and its devices where they are not 0, 1, ..."""
    plain = mesh.devices == tuple(range(mesh.size))
    return {"axes": [list(axis) for axis in mesh.axes], **({} if plain else {"devices": list(mesh.devices)})}


def read_mesh(data: Mapping[str, Any], within: Mesh | None = None) -> Mesh:
    """The inverse of :func:`mesh_json`. Raises :class:`PlanError` for what is no mesh, or not part of ``within``."""
    axes = tuple((name, size) for name, size in data["axes"])
    count = 1
    for _, size in axes:
        count *= size
        if count > _MOST_DEVICES:
            raise PlanError(f"a mesh of more than {_MOST_DEVICES} devices", hint="give a smaller mesh")
    mesh = Mesh(axes, tuple(data.get("devices", range(count))))
    strange = sorted(set(mesh.devices) - set(within.devices)) if within is not None else []
    if strange:
        raise PlanError(f"device {strange[0]} is not in the mesh {within}", hint="a part has devices of the whole mesh")
    return mesh


_MOST_DEVICES = 1 << 20


def _names(axes: Axes) -> list[str]:
    return [axes] if isinstance(axes, str) else list(axes)


def _axes(space: Axes, time: Time) -> Rule:
    found: Rule = {}
    if space:
        found["space"] = _names(space)
    if isinstance(time, tuple):
        found["time"] = {"axis": time[0], "parts": time[1]}
    elif time is not None:
        found["time"] = time
    return found
