"""The three primitives: op-trans, op-assign, op-order (SuperScaler, arXiv 2301.08984, section 3), as a Python API.

A plan is a list of rules over one graph. Rules name ops by dim classes (``batch``, ``*.fc1.weight/0``) or by number. A
rule for a class cuts every loop of the class that may be cut, and what may not is noted, never dropped in silence. A
rule that names ops by number is followed or refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from mlirstitch.errors import PlanError
from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.dims import DimClass, DimClasses
from mlirstitch.passes.partitioning.graph import Graph, GraphOp
from mlirstitch.passes.partitioning.layout import Layout, split
from mlirstitch.passes.partitioning.phases import BACKWARD, FORWARD, OPTIMIZER, phases_of
from mlirstitch.passes.partitioning.placement import At, Decisions, Moment, Note, Order, PlacedGraph, Placement, Storage
from mlirstitch.passes.partitioning.splits import layout_of, refusal_of_split

Axes = str | Sequence[str]
DEFAULT_TIME_AXIS = "micro"


class Plan:
    """A partition plan in the making.

    Attributes:
        graph: the function that is planned.
        mesh: all devices.
        classes: the dim classes of the graph.
        forward, backward, optimizer: numbers of the ops of each phase, ascending.
        micro_batches: how many micro-batches named plans make; they choose a number if it is None.
    """

    def __init__(self, graph: Graph, mesh: Mesh, *, micro_batches: int | None = None) -> None:
        self.graph = graph
        self.mesh = mesh
        self.micro_batches = micro_batches
        self.classes = DimClasses.of(graph)
        self.phases = phases_of(graph)
        self.forward = self.phases.ops(FORWARD)
        self.backward = self.phases.ops(BACKWARD)
        self.optimizer = self.phases.ops(OPTIMIZER)
        self._time: dict[str, int] = {}
        self._cuts: list[dict[int, tuple[str, ...]]] = [{} for _ in graph.ops]
        self._meshes: list[Mesh | None] = [None] * len(graph.ops)
        self._stored: dict[int, dict[int, tuple[str, ...]]] = {value: {} for value in graph.arguments}
        self._homes: dict[int, Mesh] = {}
        self._orders: list[Order] = []
        self._notes: list[Note] = []
        self._eager: set[int] = set()
        self._inner: set[str] = set()
        self._gathered_again: set[int] = set()

    def copy(self) -> Plan:
        """A plan with the same rules so far, to try more of them on: a :class:`Plan` that records none."""
        made = Plan.__new__(Plan)
        made.__dict__.update(self.__dict__)
        made._time, made._meshes, made._homes = dict(self._time), list(self._meshes), dict(self._homes)
        made._cuts = [dict(cuts) for cuts in self._cuts]
        made._stored = {value: dict(cuts) for value, cuts in self._stored.items()}
        made._orders, made._notes = list(self._orders), list(self._notes)
        made._eager, made._inner = set(self._eager), set(self._inner)
        made._gathered_again = set(self._gathered_again)
        return made

    # op-trans

    def trans(
        self,
        dims: str,
        *,
        space: Axes = (),
        time: int | str | tuple[str, int] | None = None,
        among: Iterable[int] | None = None,
        storage: bool | None = None,
    ) -> tuple[Note, ...]:
        """Cut every loop of some dim classes, in space, in time, or both.

        Args:
            dims: a name of dim classes, with wildcards.
            space: axes of the mesh, outermost first.
            time: number of parts that one device computes one after the other (axis ``micro``), a time axis that
                exists, or (name, parts) of a new one.
            among: only these ops; all by default.
            storage: whether arguments of the function with such a dim are stored cut in space. By default they are if
                all ops are meant.

        Returns:
            What could not be cut, with the reason; those ops are replicated.

        Raises:
            PlanError: unknown class or axis, or an argument is cut by one axis twice.
        """
        axes = self._space_axes(space) + self._time_axes(time)
        if not axes:
            raise PlanError(f"op-trans of {dims!r} names no axis", hint='give space="tp" or time=4')
        chosen = None if among is None else frozenset(among)
        notes: list[Note] = []
        for found in self.classes.select(dims):
            notes += self._cut_class(found, axes, chosen)
            if storage or (storage is None and chosen is None):
                self._store_class(found, tuple(a for a in axes if a not in self._time))
        self._notes += notes
        return tuple(notes)

    def trans_op(
        self, op: int, loop: int, *, space: Axes = (), time: int | str | tuple[str, int] | None = None
    ) -> None:
        """Cut one loop of one op. Raises :class:`PlanError` with op, loop and reason if that is not legal."""
        axes = self._space_axes(space) + self._time_axes(time)
        if not 0 <= op < len(self.graph.ops):
            raise PlanError(f"there is no op {op}", hint=f"the graph has ops 0 to {len(self.graph.ops) - 1}")
        found = self.graph.ops[op]
        reason = self._refusal(found, loop, axes)
        if reason:
            raise PlanError(f"{found.name} (op {op}), loop {loop}: {reason}", source=found.source)
        self._cut(found, loop, axes)

    def time_axis(self, name: str, parts: int) -> None:
        """Have an axis of time. Raises :class:`PlanError` if its name or size is taken."""
        self._time_axes((name, parts))

    def note(self, notes: Iterable[Note]) -> None:
        """Keep what an earlier rule could not cut."""
        self._notes += notes

    def inside_of_time(self, axis: str) -> None:
        """Where an axis of the mesh and one of time cut the same loop, let that of the mesh be the inner one: in every
        part of time devices along it have neighbouring parts, which are put together without waiting for other parts
        of time. Otherwise a device has neighbouring parts one after the other, as data parallelism wants it."""
        self._inner.update(self._space_axes(axis))

    def replicate(self, ops: Iterable[int], axes: Axes = ()) -> None:
        """Undo cuts of some ops: over ``axes``, or over all."""
        gone = frozenset(_names(axes))
        for op in ops:
            kept = {
                loop: tuple(a for a in cut if gone and a not in gone) for loop, cut in self._cuts[op].items() if gone
            }
            self._cuts[op] = {loop: cut for loop, cut in kept.items() if cut}

    def store(self, argument: str, dim: int, space: Axes) -> None:
        """Keep an argument of the function cut along ``dim`` between steps. Raises :class:`PlanError` if unknown."""
        value = self._argument(argument)
        if not 0 <= dim < len(self.graph.values[value].shape):
            raise PlanError(f"{argument} has no dim {dim}: its shape is {list(self.graph.values[value].shape)}")
        self._store(value, dim, self._space_axes(space))

    def reduce_in_every_part(self, values: Iterable[int]) -> None:
        """Combine partial values over the mesh in every part of time, not once after the last: it takes more
        communication, and no device keeps the whole value over time."""
        self._eager.update(values)

    def gather_again(self, argument: str) -> None:
        """Put an argument that is stored cut together for the forward pass and once more for the backward pass, so
        that no device keeps it whole in between."""
        self._gathered_again.add(self._argument(argument))

    # op-assign

    def assign(self, ops: Iterable[int], mesh: Mesh) -> None:
        """Place some ops on a part of the mesh. Raises :class:`PlanError` if a device is none of the plan's."""
        strange = sorted(set(mesh.devices) - set(self.mesh.devices))
        if strange:
            raise PlanError(
                f"device {strange[0]} is not in the mesh {self.mesh}", hint="take parts with mesh.at(axis=...)"
            )
        for op in ops:
            self._meshes[op] = mesh

    def keep_at(self, argument: str, mesh: Mesh) -> None:
        """Place an argument of the function; by default it lies where its first reader is."""
        self._homes[self._argument(argument)] = mesh

    # op-order

    def order(self, first: Moment | Iterable[tuple[Moment, Moment]], then: Moment | None = None) -> None:
        """Let one moment end before another starts; or a whole schedule, as pairs."""
        pairs = [(first, then)] if isinstance(first, Moment) and then is not None else first
        if isinstance(pairs, Moment):
            raise PlanError("op-order takes two moments", hint="order(first, then)")
        self._orders += [Order(a, b) for a, b in pairs]

    # result

    def place(self) -> PlacedGraph:
        """Apply the rules. Raises :class:`PlanError` if an op is cut by an axis that its devices do not have."""
        placements = tuple(self._placement(op) for op in self.graph.ops)
        storage = tuple(self._storage(value, placements) for value in self.graph.arguments)
        return PlacedGraph(
            self.graph,
            self.mesh,
            tuple(self._time.items()),
            placements,
            storage,
            tuple(self._orders),
            tuple(sorted(self._notes, key=lambda note: (note.op, note.loop))),
            frozenset(self._eager),
            frozenset(self._gathered_again),
        )

    def decisions(self) -> Decisions:
        """What the rules so far came to."""
        arguments = self.graph.arguments
        return Decisions(
            tuple(self._time.items()),
            tuple(tuple(sorted(cuts.items())) for cuts in self._cuts),
            tuple(self._meshes),
            tuple(tuple(sorted(self._stored[value].items())) for value in arguments),
            tuple(self._homes.get(value) for value in arguments),
            tuple(self._orders),
            tuple(self._notes),
            frozenset(self._eager),
            frozenset(self._gathered_again),
        )

    def _placement(self, op: GraphOp) -> Placement:
        mesh = self._meshes[op.number] or self.mesh
        for loop, axes in self._cuts[op.number].items():
            missing = [a for a in axes if a not in mesh.sizes and a not in self._time]
            if missing:
                raise PlanError(
                    f"{op.name} (op {op.number}), loop {loop}: cut by axis {missing[0]}, but placed on a mesh with "
                    f"{', '.join(mesh.names) or 'no axes'}",
                    hint="cut it by an axis of the part of the mesh it is placed on",
                    source=op.source,
                )
        cuts = {loop: self._nested(axes) for loop, axes in self._cuts[op.number].items()}
        return Placement(mesh, tuple(sorted(cuts.items())))

    def _nested(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """Axes of the mesh, of time, and those of the mesh that stand inside of time."""
        return tuple(sorted(axes, key=lambda axis: 1 if axis in self._time else 2 if axis in self._inner else 0))

    def _storage(self, value: int, placements: Sequence[Placement]) -> Storage:
        tensor = self.graph.values[value]
        mesh = self._homes.get(value) or (placements[tensor.users[0]].mesh if tensor.users else self.mesh)
        cuts = {dim: tuple(a for a in axes if a in mesh.sizes) for dim, axes in self._stored[value].items()}
        plain = Layout(tuple(split(cuts.get(dim, ()), size) for dim, size in enumerate(tensor.shape)))
        return Storage(mesh, self._as_first_read(value, plain, placements))

    def _as_first_read(self, value: int, plain: Layout, placements: Sequence[Placement]) -> Layout:
        """The layout in which the first reader wants an argument if its cuts are the same: units of several positions
        (heads) stay whole."""
        tensor = self.graph.values[value]
        if not tensor.users:
            return plain
        op = self.graph.ops[tensor.users[0]]
        in_space = {loop: tuple(a for a in axes if a not in self._time) for loop, axes in placements[op.number].cuts}
        use = next(use for use in op.inputs if use.value == value)
        wanted = layout_of(op, use, in_space)
        same = [d.axes for d in wanted.dims] == [d.axes for d in plain.dims]
        return wanted if same and wanted.covers_once(tensor.shape) else plain

    # rules

    def _cut_class(self, found: DimClass, axes: tuple[str, ...], among: frozenset[int] | None) -> list[Note]:
        notes: list[Note] = []
        done: set[int] = set()
        for op, loop in found.loops:
            if (among is not None and op not in among) or op in done:
                continue
            reason = self._refusal(self.graph.ops[op], loop, axes)
            if reason is None:
                self._cut(self.graph.ops[op], loop, axes)
                done.add(op)
            else:
                notes.append(Note(op, loop, axes, reason))
        return [note for note in notes if note.op not in done]

    def _refusal(self, op: GraphOp, loop: int, axes: tuple[str, ...]) -> str | None:
        if not 0 <= loop < len(op.loops):
            return f"it has loops 0 to {len(op.loops) - 1}"
        used = [axis for cut in self._cuts[op.number].values() for axis in cut if axis in axes]
        if used:
            return f"axis {used[0]} cuts another loop of it, or this one, already"
        return refusal_of_split(op, loop, tuple(self._cuts[op.number]))

    def _cut(self, op: GraphOp, loop: int, axes: tuple[str, ...]) -> None:
        self._cuts[op.number][loop] = (*self._cuts[op.number].get(loop, ()), *axes)

    def _store_class(self, found: DimClass, axes: tuple[str, ...]) -> None:
        for value, dim in found.dims:
            if value in self._stored and axes:
                self._store(value, dim, axes)

    def _store(self, value: int, dim: int, axes: tuple[str, ...]) -> None:
        cuts = self._stored[value]
        if any(axis in cut for cut in cuts.values() for axis in axes):
            return
        cuts[dim] = (*cuts.get(dim, ()), *axes)

    # names

    def _space_axes(self, space: Axes) -> tuple[str, ...]:
        axes = _names(space)
        for axis in axes:
            if axis not in self.mesh.sizes:
                raise PlanError(f"the mesh has no axis {axis!r}", hint=f"its axes are {', '.join(self.mesh.names)}")
        if len(set(axes)) != len(axes):
            raise PlanError(f"axis named twice: {', '.join(axes)}")
        return axes

    def _time_axes(self, time: int | str | tuple[str, int] | None) -> tuple[str, ...]:
        if time is None:
            return ()
        if isinstance(time, str):
            if time not in self._time:
                raise PlanError(f"there is no time axis {time!r}", hint="make one: time=(name, parts)")
            return (time,)
        name, parts = (DEFAULT_TIME_AXIS, time) if isinstance(time, int) else time
        if parts < 1 or name in self.mesh.sizes or self._time.get(name, parts) != parts:
            known = f"it has {self._time[name]} parts" if name in self._time else "its name or size is taken"
            raise PlanError(f"time axis {name!r} with {parts} parts: {known}", hint="give another: time=(name, parts)")
        self._time[name] = parts
        return (name,)

    def _argument(self, name: str) -> int:
        for value in self.graph.arguments:
            if self.graph.values[value].name == name:
                return value
        raise PlanError(f"the function has no argument {name!r}")

    # choices of ops

    def is_cut(self, op: int, axis: str) -> bool:
        """Whether an axis cuts a loop of an op."""
        return any(axis in cut for cut in self._cuts[op].values())

    def cut_loops(self, op: int, axis: str) -> tuple[int, ...]:
        """The loops of an op that an axis cuts."""
        return tuple(loop for loop, axes in sorted(self._cuts[op].items()) if axis in axes)

    def may_cut(self, op: int, loop: int, axis: str) -> bool:
        """Whether op-trans by an axis would be legal."""
        return self._refusal(self.graph.ops[op], loop, (axis,)) is None

    def reading_weights(self) -> frozenset[int]:
        """The ops that depend on a weight or another argument that is no input."""
        reached = {value for value in self.graph.arguments if self.graph.values[value].role != "input"}
        found: set[int] = set()
        for op in self.graph.ops:
            if any(use.value in reached for use in op.inputs):
                found.add(op.number)
                reached.update(use.value for use in op.results)
        return frozenset(found)

    def gradients(self) -> tuple[int, ...]:
        """Values that the backward pass hands to the optimizer, ascending."""
        optimizer, backward = set(self.optimizer), set(self.backward)
        return tuple(
            value.number
            for value in self.graph.values
            if value.producer in backward and optimizer.intersection(value.users)
        )

    def using(self, argument: str) -> tuple[int, ...]:
        """The ops that read an argument of the function."""
        return self.graph.values[self._argument(argument)].users

    def stages(self, count: int) -> tuple[tuple[int, ...], ...]:
        """All ops in ``count`` stages of about equal forward work, for pipelines: see :func:`stages_of`."""
        from mlirstitch.passes.partitioning.stages import stages_of

        return stages_of(self.graph, self.phases, count)

    def moment(self, ops: Iterable[int], **at: int) -> Moment:
        """Some ops at some place in time: ``plan.moment(ops, micro=3)``. Raises :class:`PlanError` for other axes."""
        for axis, place in at.items():
            if axis not in self._time or not 0 <= place < self._time[axis]:
                raise PlanError(f"there is no time {axis}={place}", hint=f"time axes: {self._time or 'none'}")
        where: At = tuple((axis, at[axis]) for axis in self._time if axis in at)
        return Moment(tuple(sorted(set(ops))), where)

    @property
    def steps_of_time(self) -> int:
        """How many places all time axes have together."""
        return math.prod(self._time.values())


def _names(axes: Axes) -> tuple[str, ...]:
    return (axes,) if isinstance(axes, str) else tuple(axes)
