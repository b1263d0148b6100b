"""Attributes that keep a partition plan in the IR: on the module, on ops and on arguments of the whole function.

Device programs have ops of their own (:mod:`mlirstitch.dialects.dist`); before they are made, a plan is what these
attributes say, so that it can be printed, read again, and edited by hand:

| attribute | on | says |
|---|---|---|
| ``dist.mesh``, ``dist.devices`` | module | axes and devices of the whole mesh |
| ``dist.time`` | module | name and size of every axis of time |
| ``dist.orders`` | module | op-order: one group of ops ends before another starts, each at a place in time |
| ``dist.cuts`` | op | for every loop the axes that cut it, outermost first |
| ``dist.mesh``, ``dist.devices`` | op, argument | the part of the mesh it is computed or kept on, if any is named |
| ``dist.groups`` | op | the groups of ``dist.orders`` that it is in |
| ``dist.notes`` | op | what it was asked to be cut by and why it is not |
| ``dist.reduce_in_every_part`` | op | numbers of results that are combined in every part of time, not once |
| ``dist.recompute`` | op | the backward pass computes it again (``dist-recompute``); it stays when a plan is dropped |
| ``dist.store`` | argument | for every dim the axes by which it is stored cut |
| ``dist.gather_again`` | argument | it is put together once for the forward and once for the backward pass |
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from mlir import ir

from mlirstitch.dialects import dist, stitch
from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.stitch import ARGUMENT, INTEGER, INTEGERS, STRING, UNIT, Codec, StitchAttribute
from mlirstitch.dialects.walk import walk

PREFIX = "dist."
MODULE, FUNCTION, OP = "builtin.module", "func.func", "op"
Pairs = tuple[tuple[str, int], ...]
Names = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class OrderEntry:
    """One entry of ``dist.orders``: group ``first`` at a place in time ends before group ``then`` at another starts."""

    first: int
    first_at: Pairs
    then: int
    then_at: Pairs


@dataclass(frozen=True)
class NoteEntry:
    """One entry of ``dist.notes``."""

    loop: int
    axes: tuple[str, ...]
    reason: str


def _array(attr: ir.Attribute) -> list[ir.Attribute]:
    if not isinstance(attr, ir.ArrayAttr):
        raise ValueError(f"is {attr}")
    return list(attr)


def _fields(attr: ir.Attribute, names: Sequence[str]) -> list[ir.Attribute]:
    if not isinstance(attr, ir.DictAttr) or sorted(entry.name for entry in attr) != sorted(names):
        raise ValueError(f"has the entry {attr}, which has not the fields {', '.join(names)}")
    return [attr[name] for name in names]


def _read_pairs(attr: ir.Attribute) -> Pairs:
    found: dict[str, int] = {}
    for entry in _array(attr):
        pair = _array(entry)
        if len(pair) != 2:
            raise ValueError(f"has the entry {entry}, which is no pair of name and number")
        name, number = STRING.read(pair[0]), INTEGER.read(pair[1])
        if name in found:
            raise ValueError(f"names {name!r} twice")
        found[name] = number
    return tuple(found.items())


def _write_pairs(pairs: Pairs) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.ArrayAttr.get([STRING.write(n), INTEGER.write(size)]) for n, size in pairs])


def _read_names(attr: ir.Attribute) -> Names:
    return tuple(tuple(STRING.read(name) for name in _array(entry)) for entry in _array(attr))


def _write_names(names: Names) -> ir.Attribute:
    return ir.ArrayAttr.get([ir.ArrayAttr.get([STRING.write(name) for name in entry]) for entry in names])


def _read_orders(attr: ir.Attribute) -> tuple[OrderEntry, ...]:
    found: list[OrderEntry] = []
    for entry in _array(attr):
        first, first_at, then, then_at = _fields(entry, ("first", "first_at", "then", "then_at"))
        found.append(OrderEntry(INTEGER.read(first), _read_pairs(first_at), INTEGER.read(then), _read_pairs(then_at)))
    return tuple(found)


def _write_orders(orders: tuple[OrderEntry, ...]) -> ir.Attribute:
    return ir.ArrayAttr.get(
        [
            ir.DictAttr.get(
                {
                    "first": INTEGER.write(order.first),
                    "first_at": _write_pairs(order.first_at),
                    "then": INTEGER.write(order.then),
                    "then_at": _write_pairs(order.then_at),
                }
            )
            for order in orders
        ]
    )


def _read_notes(attr: ir.Attribute) -> tuple[NoteEntry, ...]:
    found: list[NoteEntry] = []
    for entry in _array(attr):
        loop, axes, reason = _fields(entry, ("loop", "axes", "reason"))
        found.append(NoteEntry(INTEGER.read(loop), tuple(map(STRING.read, _array(axes))), STRING.read(reason)))
    return tuple(found)


def _write_notes(notes: tuple[NoteEntry, ...]) -> ir.Attribute:
    return ir.ArrayAttr.get(
        [
            ir.DictAttr.get(
                {
                    "loop": INTEGER.write(note.loop),
                    "axes": ir.ArrayAttr.get([STRING.write(axis) for axis in note.axes]),
                    "reason": STRING.write(note.reason),
                }
            )
            for note in notes
        ]
    )


PAIRS: Codec[Pairs] = Codec("array of [name, number]", _write_pairs, _read_pairs)
NAMES: Codec[Names] = Codec("array of arrays of names", _write_names, _read_names)
ORDER_ENTRIES: Codec[tuple[OrderEntry, ...]] = Codec("array of orders", _write_orders, _read_orders)
NOTE_ENTRIES: Codec[tuple[NoteEntry, ...]] = Codec("array of notes", _write_notes, _read_notes)

MESH = StitchAttribute(dist.MESH, (MODULE, FUNCTION, OP, ARGUMENT), PAIRS, "axes of a mesh, outermost first")
DEVICES = StitchAttribute(dist.DEVICES, (MODULE, FUNCTION, OP, ARGUMENT), INTEGERS, "its devices, row-major")
TIME = StitchAttribute("dist.time", (MODULE,), PAIRS, "axes of time, in the order in which loops over them nest")
ORDERS = StitchAttribute("dist.orders", (MODULE,), ORDER_ENTRIES, "op-order between groups of ops")
CUTS = StitchAttribute("dist.cuts", (OP,), NAMES, "for every loop the axes that cut it")
GROUPS = StitchAttribute("dist.groups", (OP,), INTEGERS, "the groups of dist.orders that the op is in")
NOTES = StitchAttribute("dist.notes", (OP,), NOTE_ENTRIES, "what the op was asked to be cut by and is not")
EAGER = StitchAttribute("dist.reduce_in_every_part", (OP,), INTEGERS, "results combined in every part of time")
STORE = StitchAttribute("dist.store", (ARGUMENT,), NAMES, "for every dim the axes by which it is stored cut")
AGAIN = StitchAttribute("dist.gather_again", (ARGUMENT,), UNIT, "put together once for each pass")
RECOMPUTE = StitchAttribute("dist.recompute", (OP,), UNIT, "computed again by the backward pass")
PLAN_ATTRIBUTES: tuple[StitchAttribute[Any], ...] = (
    MESH,
    DEVICES,
    TIME,
    ORDERS,
    CUTS,
    GROUPS,
    NOTES,
    EAGER,
    STORE,
    AGAIN,
)
"""What a plan writes and takes off again. ``dist.recompute`` is older than the plan: graphs are made with it."""


def clear(module: ir.Operation, function: ir.Operation) -> None:
    """Take the plan off a module and its function."""
    for op in (module, *_children(function)):
        for attribute in PLAN_ATTRIBUTES:
            attribute.remove(op)
    if "arg_attrs" in function.attributes:
        entries = stitch.group_attributes(function, ARGUMENT)
        kept = [{name: attr for name, attr in entry.items() if not name.startswith(PREFIX)} for entry in entries]
        with function.context:
            function.attributes["arg_attrs"] = ir.ArrayAttr.get([ir.DictAttr.get(entry) for entry in kept])


def verify(module: ir.Operation) -> None:
    """Check every ``dist.*`` attribute and every device program of a module.

    Each attribute is known, stands where it may and has a legal value; axes are those of the mesh or of time, none is
    named twice on one op or argument; devices are those of the mesh; groups of op-orders have ops. What needs the
    graph (which loops may be cut) is checked where a plan is read.

    Raises:
        PassError: naming the op.
    """
    sizes, times, devices = _axes_of_module(module)
    groups: set[int] = set()
    for op in walk(module):
        for place, name, attr in _entries(op):
            _known(op, place, name).check(op, attr)
            if name in (CUTS.name, STORE.name):
                _check_axes(op, name, NAMES.read(attr), sizes if name == STORE.name else {**sizes, **times})
            elif name == DEVICES.name and op != module and sizes:
                _check_devices(op, INTEGERS.read(attr), devices)
        groups.update(GROUPS.get(op) or ())
        if op.name == FUNCTION and DEVICES.name in op.attributes:
            dist.verify_device_program(op)
    for order in ORDERS.get(module) or ():
        _check_order(module, order, groups, times)


def _axes_of_module(module: ir.Operation) -> tuple[dict[str, int], dict[str, int], frozenset[int]]:
    sizes, times = dict(MESH.get(module) or ()), dict(TIME.get(module) or ())
    for name, size in (*sizes.items(), *times.items()):
        if size < 1:
            raise refusal(module, f"axis {name!r} has size {size}", "sizes are positive")
    both = [name for name in times if name in sizes]
    if both:
        raise refusal(module, f"axis {both[0]!r} is one of the mesh and one of time", "give one another name")
    return sizes, times, frozenset(DEVICES.get(module) or ())


def _check_axes(op: ir.Operation, name: str, cuts: Names, known: dict[str, int]) -> None:
    seen: list[str] = []
    for axis in (axis for axes in cuts for axis in axes):
        if axis not in known:
            raise refusal(op, f"{name} names the axis {axis!r}", f"axes are {', '.join(known) or 'none'}")
        if axis in seen:
            raise refusal(op, f"{name} names the axis {axis!r} twice", "an axis cuts one loop or dim")
        seen.append(axis)


def _check_devices(op: ir.Operation, devices: Sequence[int], known: frozenset[int]) -> None:
    strange = [device for device in devices if device not in known]
    if strange:
        raise refusal(op, f"device {strange[0]} is not in the mesh", "dist.devices of the module lists them")


def _check_order(module: ir.Operation, order: OrderEntry, groups: set[int], times: dict[str, int]) -> None:
    for group, at in ((order.first, order.first_at), (order.then, order.then_at)):
        if group not in groups:
            raise refusal(module, f"dist.orders names group {group}, which no op is in", "dist.groups of ops says")
        for axis, place in at:
            if not 0 <= place < times.get(axis, 0):
                raise refusal(module, f"dist.orders names the time {axis}={place}", f"axes of time: {times or 'none'}")


def _known(op: ir.Operation, place: str, name: str) -> StitchAttribute[Any]:
    found = next((attribute for attribute in (*PLAN_ATTRIBUTES, RECOMPUTE) if attribute.name == name), None)
    if found is None:
        listed = ", ".join(attribute.name for attribute in PLAN_ATTRIBUTES)
        raise refusal(op, f"the attribute {name} is unknown", f"attributes of plans are {listed}")
    where = place if place in (MODULE, FUNCTION, ARGUMENT) else OP
    if where not in found.places:
        raise refusal(op, f"the attribute {name} may not stand on {place}", f"it belongs on {', '.join(found.places)}")
    return found


def _entries(op: ir.Operation) -> Iterator[tuple[str, str, ir.Attribute]]:
    for name in op.attributes:
        if name.startswith(PREFIX):
            yield op.name, name, op.attributes[name]
    if op.name == FUNCTION and "arg_attrs" in op.attributes:
        for entry in stitch.group_attributes(op, ARGUMENT):
            for name, attr in entry.items():
                if name.startswith(PREFIX):
                    yield ARGUMENT, name, attr


def _children(function: ir.Operation) -> list[ir.Operation]:
    return [op.operation for op in function.regions[0].blocks[0].operations]
