"""Plans in the IR: what :mod:`mlirstitch.dialects.plan_attributes` says, as a :class:`Plan`, and back.

Reading a plan follows its rules one by one through the three primitives, so that attributes edited by hand are refused
exactly as rules in Python are.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from mlirstitch.dialects import plan_attributes as attributes
from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.plan_attributes import NoteEntry, OrderEntry
from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.graph import Graph
from mlirstitch.passes.partitioning.linalg_graph import graph_of
from mlirstitch.passes.partitioning.placement import Moment, Note, Order
from mlirstitch.passes.partitioning.plan import Plan
from mlirstitch.passes.structured import block_ops, main_function


def planned_function(module: ir.Operation) -> ir.Operation:
    """The function that a plan is for. Raises :class:`PlanError` if the module has none."""
    function = main_function(module)
    if function is None:
        raise PlanError("the module has no public function to partition", hint="name one @main")
    return function


def read_plan(module: ir.Operation) -> Plan:
    """The plan that the attributes of a module describe.

    Raises:
        PassError: an attribute is malformed, or the module has no mesh.
        PlanError: what they say is not legal; it names op, loop and reason.
    """
    attributes.verify(module)
    mesh = _mesh_of(module)
    if mesh is None:
        raise refusal(module, "the module has no mesh", "give one: dist-mesh{axes=dp=2,tp=2}, or dist-plan")
    function = planned_function(module)
    graph = graph_of(function)
    ops = block_ops(function)
    plan = Plan(graph, mesh)
    for name, parts in attributes.TIME.get(module) or ():
        plan.time_axis(name, parts)
    groups: dict[int, list[int]] = {}
    for axis in _inside_of_time(plan, [attributes.CUTS.get(ops[found.index]) or () for found in graph.ops]):
        plan.inside_of_time(axis)
    for found in graph.ops:
        op = ops[found.index]
        _read_op(plan, found.number, op)
        for group in attributes.GROUPS.get(op) or ():
            groups.setdefault(group, []).append(found.number)
    _read_arguments(plan, function)
    for order in attributes.ORDERS.get(module) or ():
        first = plan.moment(groups.get(order.first, ()), **dict(order.first_at))
        then = plan.moment(groups.get(order.then, ()), **dict(order.then_at))
        plan.order(first, then)
    return plan


def write_plan(plan: Plan, module: ir.Operation) -> None:
    """Replace the plan that the attributes of a module describe.

    Args:
        plan: made over the graph of the module's function.
        module: changed in place.
    """
    function = planned_function(module)
    decisions = plan.decisions()
    ops = block_ops(function)
    attributes.clear(module, function)
    _set_mesh(module, plan.mesh)
    if decisions.time_axes:
        attributes.TIME.set(module, decisions.time_axes)
    for found, cuts, mesh in zip(plan.graph.ops, decisions.cuts, decisions.meshes, strict=True):
        op = ops[found.index]
        if cuts:
            by_loop = dict(cuts)
            attributes.CUTS.set(op, tuple(by_loop.get(loop, ()) for loop in range(len(found.loops))))
        if mesh is not None:
            _set_mesh(op, mesh)
        eager = tuple(number for number, use in enumerate(found.results) if use.value in decisions.eager)
        if eager:
            attributes.EAGER.set(op, eager)
    _write_notes(plan.graph, decisions.notes, ops)
    _write_arguments(plan, function)
    _write_orders(plan.graph, decisions.orders, module, ops)


def _mesh_of(op: ir.Operation) -> Mesh | None:
    axes, devices = attributes.MESH.get(op), attributes.DEVICES.get(op)
    if axes is None and devices is None:
        return None
    if axes is None or devices is None:
        missing = attributes.MESH.name if axes is None else attributes.DEVICES.name
        raise refusal(op, f"the attribute {missing} is missing", "dist.mesh and dist.devices stand together")
    return Mesh(axes, devices)


def _set_mesh(op: ir.Operation, mesh: Mesh) -> None:
    attributes.MESH.set(op, mesh.axes)
    attributes.DEVICES.set(op, mesh.devices)


def _inside_of_time(plan: Plan, cuts: Sequence[attributes.Names]) -> list[str]:
    """The axes of the mesh that stand behind one of time where both cut one loop."""
    found: dict[str, None] = {}
    for axes in (axes for loops in cuts for axes in loops):
        timed = [position for position, axis in enumerate(axes) if axis not in plan.mesh.sizes]
        if timed:
            found.update(dict.fromkeys(axis for axis in axes[timed[0] :] if axis in plan.mesh.sizes))
    return list(found)


def _read_op(plan: Plan, number: int, op: ir.Operation) -> None:
    found = plan.graph.ops[number]
    cuts = attributes.CUTS.get(op) or ()
    if cuts and len(cuts) != len(found.loops):
        raise refusal(op, f"dist.cuts has {len(cuts)} entries, the op {len(found.loops)} loops", "one entry a loop")
    for loop, axes in enumerate(cuts):
        space = [axis for axis in axes if axis in plan.mesh.sizes]
        if space:
            plan.trans_op(number, loop, space=space)
        for axis in axes:
            if axis not in plan.mesh.sizes:
                plan.trans_op(number, loop, time=axis)
    mesh = _mesh_of(op)
    if mesh is not None:
        plan.assign((number,), mesh)
    for result in attributes.EAGER.get(op) or ():
        if not 0 <= result < len(found.results):
            raise refusal(op, f"dist.reduce_in_every_part names result {result}, there are {len(found.results)}")
        plan.reduce_in_every_part((found.results[result].value,))
    plan.note(Note(number, note.loop, note.axes, note.reason) for note in attributes.NOTES.get(op) or ())


def _read_arguments(plan: Plan, function: ir.Operation) -> None:
    stores = attributes.STORE.of_arguments(function)
    again = attributes.AGAIN.of_arguments(function)
    axes, devices = attributes.MESH.of_arguments(function), attributes.DEVICES.of_arguments(function)
    for number, value in enumerate(plan.graph.arguments):
        name = plan.graph.values[value].name
        for dim, space in enumerate(stores[number] or ()):
            if space:
                plan.store(name, dim, space)
        if again[number]:
            plan.gather_again(name)
        found, where = axes[number], devices[number]
        if found is not None and where is not None:
            plan.keep_at(name, Mesh(found, where))


def _write_arguments(plan: Plan, function: ir.Operation) -> None:
    decisions, values = plan.decisions(), plan.graph.values
    stores: list[tuple[tuple[str, ...], ...] | None] = []
    for value, stored in zip(plan.graph.arguments, decisions.stored, strict=True):
        by_dim = dict(stored)
        listed = tuple(by_dim.get(dim, ()) for dim in range(len(values[value].shape)))
        stores.append(listed if stored else None)
    again = [True if value in decisions.gathered_again else None for value in plan.graph.arguments]
    attributes.STORE.set_arguments(function, stores)
    attributes.AGAIN.set_arguments(function, again)
    attributes.MESH.set_arguments(function, [mesh.axes if mesh else None for mesh in decisions.homes])
    attributes.DEVICES.set_arguments(function, [mesh.devices if mesh else None for mesh in decisions.homes])


def _write_notes(graph: Graph, notes: tuple[Note, ...], ops: list[ir.Operation]) -> None:
    by_op: dict[int, list[NoteEntry]] = {}
    for note in notes:
        by_op.setdefault(note.op, []).append(NoteEntry(note.loop, note.axes, note.reason))
    for number, entries in by_op.items():
        attributes.NOTES.set(ops[graph.ops[number].index], tuple(entries))


def _write_orders(graph: Graph, orders: tuple[Order, ...], module: ir.Operation, ops: list[ir.Operation]) -> None:
    numbers: dict[tuple[int, ...], int] = {}

    def group(moment: Moment) -> int:
        return numbers.setdefault(tuple(sorted(set(moment.ops))), len(numbers))

    entries = tuple(
        OrderEntry(group(order.first), order.first.at, group(order.then), order.then.at)
        for order in orders
        if order.first.ops and order.then.ops
    )
    if not entries:
        return
    attributes.ORDERS.set(module, entries)
    by_op: dict[int, list[int]] = {}
    for members, number in numbers.items():
        for op in members:
            by_op.setdefault(op, []).append(number)
    for op, groups in by_op.items():
        attributes.GROUPS.set(ops[graph.ops[op].index], tuple(groups))
