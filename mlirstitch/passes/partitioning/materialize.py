"""From a placed graph to a distributed program: one task per op and place in time, and the steps between layouts.

An op wants each operand in the layout that its cuts imply; what a value is converted by follows from the layout it was
computed in (SuperScaler, section 4: dependency and communication). A conversion that was made for one reader serves the
next; of several layouts a value already has, the cheapest is the start of a new conversion.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.conversion import Converter
from mlirstitch.passes.partitioning.graph import GraphOp
from mlirstitch.passes.partitioning.layout import Layout, replicated
from mlirstitch.passes.partitioning.phases import BACKWARD, FORWARD, OPTIMIZER, phases_of
from mlirstitch.passes.partitioning.placement import At, PlacedGraph
from mlirstitch.passes.partitioning.program import (
    COLLECTIVE,
    COMPUTE,
    LOCAL,
    ORDER,
    TRANSFER,
    Buffer,
    DistributedProgram,
    Task,
)
from mlirstitch.passes.partitioning.rates import Rates
from mlirstitch.passes.partitioning.splits import layout_of
from mlirstitch.passes.partitioning.steps import Accumulate, Exchange, Slice, Step, Transfer
from mlirstitch.target import Links, Target

Partial = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Held:
    """A value as the devices of a mesh have it: for every place of its layout's time axes the number of a buffer."""

    mesh: Mesh
    layout: Layout
    buffers: dict[At, int]


def materialize(placed: PlacedGraph, target: Target, links: Links) -> DistributedProgram:
    """The program of a plan.

    Raises:
        PlanError: an op has no legal way to get an operand.
    """
    return _Materializer(placed, target, links).program()


@dataclass
class _Draft:
    """Buffers and tasks so far."""

    buffers: list[Buffer] = field(default_factory=list)
    tasks: list[Task] = field(default_factory=list)
    of_op: dict[int, list[int]] = field(default_factory=dict)


class _Materializer:
    def __init__(self, placed: PlacedGraph, target: Target, links: Links) -> None:
        self.placed = placed
        self.graph = placed.graph
        self.rates = Rates.of(target)
        self.links = links
        self.draft = _Draft()
        self.time = dict(placed.time_axes)
        self.constant = placed.graph.constant_ops()
        self.phases = phases_of(placed.graph)
        self.forward = frozenset(self.phases.ops(FORWARD))
        self._held: dict[int, list[Held]] = {}
        self._delivered: dict[tuple[int, Mesh, Layout, bool], Held] = {}
        self._converters: dict[tuple[Mesh, Mesh], Converter] = {}

    def program(self) -> DistributedProgram:
        arguments = tuple(self._argument(value, number) for number, value in enumerate(self.graph.arguments))
        for op in self.graph.ops:
            self._op(op)
        returned = tuple(self._return(number) for number in range(len(self.graph.returned)))
        self._orders()
        self._hold_updates_back()
        return DistributedProgram(self.placed, tuple(self.draft.buffers), tuple(self.draft.tasks), arguments, returned)

    # values at the edge of the function

    def _argument(self, value: int, number: int) -> int:
        storage = self.placed.storage[number]
        buffer = self._buffer(value, storage.mesh, storage.layout, ())
        self._held[value] = [Held(storage.mesh, storage.layout, {(): buffer})]
        return buffer

    def _return(self, number: int) -> int:
        value = self.graph.returned[number]
        argument = self.graph.mutated[number]
        if argument >= 0:
            storage = self.placed.storage[self.graph.arguments.index(argument)]
            mesh, layout = storage.mesh, storage.layout
        else:
            mesh, layout = self._held[value][0].mesh, replicated(len(self.graph.values[value].shape))
        return self._deliver(value, mesh, layout, self._last_priority()).buffers[()]

    # ops

    def _op(self, op: GraphOp) -> None:
        for use, result in zip(op.results, self._computed(op, self.placed.placements[op.number].mesh), strict=True):
            self._held[use.value] = [result]

    def _computed(self, op: GraphOp, mesh: Mesh) -> list[Held]:
        """The results of an op on the devices of a mesh."""
        placement = self.placed.placements[op.number]
        cuts = dict(placement.cuts)
        wanted, delayed = self._wanted(op, cuts, mesh)
        operands = [
            self._deliver(use.value, mesh, layout, self._priority(op, ()), op.number in self.forward)
            for use, layout in zip(op.inputs, wanted, strict=True)
        ]
        results = [self._with_partial(layout_of(op, use, cuts), delayed) for use in op.results]
        seconds = self.rates.seconds(self.graph, op, placement, self.placed.sizes(mesh))
        held = [Held(mesh, layout, {}) for layout in results]
        view = op.kind == "view"
        for at in self._places(placement.axes):
            reads = tuple(_at(operand, at) for operand in operands)
            writes = tuple(
                self._buffer(use.value, mesh, layout, at, view=view)
                for use, layout in zip(op.results, results, strict=True)
            )
            for result, buffer in zip(held, writes, strict=True):
                result.buffers[at] = buffer
            number = self._task(COMPUTE, mesh, at, reads, writes, self._priority(op, at), op=op.number, seconds=seconds)
            self.draft.of_op.setdefault(op.number, []).append(number)
        return held

    def _wanted(self, op: GraphOp, cuts: dict[int, tuple[str, ...]], mesh: Mesh) -> tuple[list[Layout], Partial]:
        """The layout an op wants each operand in, and the sums that stay partial through it."""
        reduced = tuple((axis, combiner) for axis, combiner in layout_of(op, op.results[0], cuts).partial)
        plain = [
            self._with_partial(layout_of(op, use, cuts), reduced if position in op.inits else ())
            for position, use in enumerate(op.inputs)
        ]
        partial = [self._partial_sums(use.value, mesh) for use in op.inputs]
        for linear in op.linear:
            axes = set.intersection(*(partial[position] for position in linear))
            others = [partial[p] for p in range(len(op.inputs)) if p not in linear]
            axes = {axis for axis in axes if axis not in self.time and all(axis not in other for other in others)}
            axes -= {axis for layout in plain for axis in layout.axes}
            if axes and self._worth_delaying(op, linear):
                extra = tuple((axis, "add") for axis in sorted(axes))
                partial_too = (*linear, *op.inits)  # of the parts of an init all but one are zero
                wanted = [
                    self._with_partial(layout, extra) if position in partial_too else layout
                    for position, layout in enumerate(plain)
                ]
                return wanted, extra
        return plain, ()

    def _partial_sums(self, value: int, mesh: Mesh) -> set[str]:
        """Axes over which every copy of a value on a mesh is a partial sum."""
        here = [held for held in self._held[value] if held.mesh == mesh]
        sums = [{axis for axis, combiner in held.layout.partial if combiner == "add"} for held in here]
        return set.intersection(*sums) if sums else set()

    def _worth_delaying(self, op: GraphOp, linear: Sequence[int]) -> bool:
        """Several sums become one; or one sum gets no larger, and nobody else wants it."""
        values = {op.inputs[position].value for position in linear}
        if any(self.graph.values[value].users != (op.number,) for value in values):
            return False
        before = sum(self.graph.values[value].bytes for value in values)
        return sum(self.graph.values[use.value].bytes for use in op.results) <= before

    @staticmethod
    def _with_partial(layout: Layout, more: Partial) -> Layout:
        return Layout(layout.dims, tuple(sorted({*layout.partial, *more})))

    # conversions

    def _deliver(self, value: int, mesh: Mesh, wanted: Layout, priority: tuple[int, ...], forward: bool = True) -> Held:
        again = value in self.placed.gathered_again
        key = (value, mesh, wanted, forward and again)
        if key not in self._delivered:
            self._delivered[key] = self._convert(value, mesh, wanted, priority)
            if not again:
                self._held[value].append(self._delivered[key])
        return self._delivered[key]

    def _convert(self, value: int, mesh: Mesh, wanted: Layout, priority: tuple[int, ...]) -> Held:
        self._compute_here_too(value, mesh)
        held = self._held[value]
        here = [h for h in held if h.mesh == mesh]
        for candidate in here:
            if candidate.layout == wanted:
                return candidate
        tensor = self.graph.values[value]
        # A window that was cut out may leave out what is wanted now.
        whole = [h for h in here if h.layout.covers_once(tensor.shape)] or held[:1]
        found = [
            (self._converter(h.mesh, mesh).convert(h.layout, wanted, tensor.shape, tensor.element_bytes), h)
            for h in whole
        ]
        _, current = min(found, key=lambda pair: pair[0].seconds)
        for through in (*self._before_time_ends(value, current.layout, wanted), wanted):
            conversion = self._converter(current.mesh, mesh).convert(
                current.layout, through, tensor.shape, tensor.element_bytes
            )
            for step in conversion.steps:
                current = self._step(value, current, step, priority)
        return current

    def _compute_here_too(self, value: int, mesh: Mesh) -> None:
        """A value that depends on no argument is computed where it is wanted, not sent there."""
        producer = self.graph.values[value].producer
        if producer not in self.constant or any(held.mesh == mesh for held in self._held[value]):
            return
        axes = self.placed.placements[producer].axes
        if all(axis in mesh.sizes or axis in self.time for axis in axes):
            op = self.graph.ops[producer]
            for use, result in zip(op.results, self._computed(op, mesh), strict=True):
                self._held[use.value].append(result)

    def _before_time_ends(self, value: int, source: Layout, wanted: Layout) -> tuple[Layout, ...]:
        """What an eager value is in every part of time: as it is wanted, but still to be added up over time."""
        timed = tuple((axis, combiner) for axis, combiner in source.partial if axis in self.time)
        if value not in self.placed.eager or not timed:
            return ()
        return (self._with_partial(wanted, timed),)

    def _converter(self, source: Mesh, wanted: Mesh) -> Converter:
        key = (source, wanted)
        if key not in self._converters:
            self._converters[key] = Converter(source, wanted, self.time, self.links)
        return self._converters[key]

    def _step(self, value: int, held: Held, step: Step, priority: tuple[int, ...]) -> Held:
        """One step of a conversion, at every place of time that it concerns."""
        after = Held(step.wanted_mesh if isinstance(step, Transfer) else held.mesh, step.after, {})
        if isinstance(step, Exchange | Transfer):
            self._exchange(value, held, step, after, priority)
            return after
        lost = [axis for axis in self.time if axis in step.before.axes and axis not in step.after.axes]
        for at in self._places(step.after.axes):
            pieces = [held.buffers[self._merged(at, step.before.axes, gone)] for gone in self._grid(lost)]
            if isinstance(step, Accumulate) and len(pieces) > 1:
                after.buffers[at] = self._chain(value, step, after, at, pieces, priority)
            else:
                after.buffers[at] = self._single(value, step, after, at, tuple(pieces), priority)
        return after

    def _exchange(
        self, value: int, held: Held, step: Exchange | Transfer, after: Held, priority: tuple[int, ...]
    ) -> None:
        """Sends and receives: one task for every place of the time that goes along, of all the places it joins."""
        both = [axis for axis in self.time if axis in step.before.axes and axis in step.after.axes]
        kept = [axis for axis in both if isinstance(step, Transfer) or axis not in step.axes]
        for at in self._grid(kept):
            reads = [buffer for place, buffer in held.buffers.items() if set(at) <= set(place)]
            writes: list[int] = []
            for place in self._places(step.after.axes):
                if set(at) <= set(place):
                    after.buffers[place] = self._buffer(value, after.mesh, step.after, place)
                    writes.append(after.buffers[place])
            sender = held.mesh if isinstance(step, Transfer) else None
            kind = TRANSFER if isinstance(step, Transfer) else COLLECTIVE if step.bytes else LOCAL
            self._task(
                kind, after.mesh, at, tuple(reads), tuple(writes), self._conversion_priority(priority, at),
                value=value, step=step, seconds=step.seconds, link_bytes=step.bytes, sender=sender,
            )  # fmt: skip

    def _single(
        self, value: int, step: Step, after: Held, at: At, reads: tuple[int, ...], priority: tuple[int, ...]
    ) -> int:
        buffer = self._buffer(value, after.mesh, step.after, at, view=isinstance(step, Slice))
        self._task(
            COLLECTIVE if step.bytes else LOCAL, after.mesh, at, reads, (buffer,),
            self._conversion_priority(priority, at),
            value=value, step=step, seconds=step.seconds, link_bytes=step.bytes,
        )  # fmt: skip
        return buffer

    def _chain(self, value: int, step: Step, after: Held, at: At, pieces: list[int], priority: tuple[int, ...]) -> int:
        """Each part is added as soon as it is there, so that one sum lives, not all parts."""
        total = pieces[0]
        for piece in pieces[1:]:
            buffer = self._buffer(value, after.mesh, step.after, at)
            own = self._conversion_priority(priority, self.draft.buffers[piece].at)
            self._task(
                LOCAL, after.mesh, at, (total, piece), (buffer,), own,
                value=value, step=step, seconds=step.seconds / (len(pieces) - 1),
            )  # fmt: skip
            total = buffer
        return total

    # time

    def _places(self, axes: Sequence[str]) -> Iterator[At]:
        """Every place of the time axes among ``axes``."""
        return self._grid([axis for axis in self.time if axis in axes])

    def _grid(self, axes: Sequence[str]) -> Iterator[At]:
        for place in itertools.product(*(range(self.time[axis]) for axis in axes)):
            yield tuple(zip(axes, place, strict=True))

    def _merged(self, at: At, axes: Sequence[str], more: At) -> At:
        """A place of the time axes among ``axes``, from two that name them together."""
        where = {**dict(at), **dict(more)}
        return tuple((axis, where[axis]) for axis in self.time if axis in axes)

    # order

    def _orders(self) -> None:
        for order in self.placed.orders:
            first, then = (self._tasks_at(moment.ops, moment.at) for moment in (order.first, order.then))
            if not first or not then:
                continue
            mesh = self.draft.tasks[first[0]].mesh
            barrier = self._task(ORDER, mesh, (), (), (), (0,), after=tuple(first))
            for number in then:
                task = self.draft.tasks[number]
                self.draft.tasks[number] = replace(task, after=(*task.after, barrier))

    def _hold_updates_back(self) -> None:
        """Parts of an update that need no gradient wait for the last of them all the same: made in idle time, they
        would take memory while activations do."""
        waiting = self._updates_without_gradient()
        last: dict[Mesh, list[int]] = {}
        end = tuple(size - 1 for size in self.time.values())
        for op in self.phases.ops(BACKWARD):
            for number in self.draft.of_op.get(op, ()):
                task = self.draft.tasks[number]
                if all(place == end[list(self.time).index(axis)] for axis, place in task.at):
                    last.setdefault(task.mesh, []).append(number)
        barriers = {mesh: self._task(ORDER, mesh, (), (), (), (0,), after=tuple(tasks)) for mesh, tasks in last.items()}
        for op in waiting:
            for number in self.draft.of_op.get(op, ()):
                task = self.draft.tasks[number]
                if task.mesh in barriers:
                    self.draft.tasks[number] = replace(task, after=(*task.after, barriers[task.mesh]))

    def _updates_without_gradient(self) -> list[int]:
        """Ops of the optimizer that no backward op leads to and that a gradient does not need either, ascending."""
        backward = frozenset(self.phases.ops(BACKWARD))
        fed = {use.value for op in backward for use in self.graph.ops[op].results}
        found: list[int] = []
        for number in self.phases.ops(OPTIMIZER):
            op = self.graph.ops[number]
            if any(use.value in fed for use in op.inputs):
                fed.update(use.value for use in op.results)
            else:
                found.append(number)
        return found

    def _tasks_at(self, ops: Sequence[int], at: At) -> list[int]:
        wanted = dict(at)
        return [
            number
            for op in ops
            for number in self.draft.of_op.get(op, ())
            if all(wanted.get(axis, place) == place for axis, place in self.draft.tasks[number].at)
        ]

    def _priority(self, op: GraphOp, at: At) -> tuple[int, ...]:
        """Forward ops outside of time first, then one place of time after the other, then the rest; by op in each."""
        timed = any(axis in self.time for axis in self.placed.placements[op.number].axes)
        rank = 1 if timed else 0 if op.number in self.forward else 2
        return (rank, *(place for _, place in at), op.number)

    @staticmethod
    def _conversion_priority(priority: tuple[int, ...], at: At) -> tuple[int, ...]:
        return (priority[0], *(place for _, place in at), priority[-1])

    def _last_priority(self) -> tuple[int, ...]:
        return (2, len(self.graph.ops))

    # pieces

    def _buffer(self, value: int, mesh: Mesh, layout: Layout, at: At, *, view: bool = False) -> int:
        tensor = self.graph.values[value]
        number = len(self.draft.buffers)
        size = layout.largest(tensor.shape, self.placed.sizes(mesh)) * tensor.element_bytes
        self.draft.buffers.append(Buffer(number, value, mesh, layout, at, size, view))
        return number

    def _task(
        self,
        kind: str,
        mesh: Mesh,
        at: At,
        reads: tuple[int, ...],
        writes: tuple[int, ...],
        priority: tuple[int, ...],
        *,
        op: int = -1,
        value: int = -1,
        step: Step | None = None,
        sender: Mesh | None = None,
        after: tuple[int, ...] = (),
        seconds: float = 0.0,
        link_bytes: int = 0,
    ) -> int:
        number = len(self.draft.tasks)
        self.draft.tasks.append(
            Task(number, kind, mesh, sender, op, value, step, at, reads, writes, after, seconds, link_bytes, priority)
        )
        return number


def _at(operand: Held, at: At) -> int:
    """The buffer of an operand at a place in time, of which it may know fewer axes."""
    axes = operand.layout.axes
    return operand.buffers[tuple((axis, place) for axis, place in at if axis in axes)]
