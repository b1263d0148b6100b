"""One question about layouts, stated over merged axes for ``layout_search.py`` and answered in those of the mesh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from mlirstitch.passes.partitioning.dim_parts import DimParts
from mlirstitch.passes.partitioning.exchange import make_exchange
from mlirstitch.passes.partitioning.layout import DimSplit, Layout
from mlirstitch.passes.partitioning.layout_search import Axis, Edge, LayoutSearch, State
from mlirstitch.passes.partitioning.link_cost import Charge, LinkCost, twins_cost
from mlirstitch.passes.partitioning.steps import Exchange, Slice, Step, Transfer

Place = Mapping[str, int]


class LayoutQuestion:
    """One search, over merged axes, and its answer in the axes of the mesh.

    With two ``costs`` the value is on the mesh of the first and wanted on that of the second, which has the same axes.

    Mesh axes of size 1 are left out. Axes that follow each other, in the same dim or as partial axes with the same
    combiner, on both sides become one. The part that an axis numbers depends on the product of the sizes alone, so
    nothing is lost but ways that treat the merged axes apart.
    """

    def __init__(
        self,
        costs: tuple[LinkCost, ...],
        time_axes: Mapping[str, int],
        shape: tuple[int, ...],
        element_bytes: int,
        source: Layout,
        wanted: Layout,
    ) -> None:
        self.costs = costs
        self.time_axes = time_axes
        self.sizes = {**costs[0].mesh.sizes, **time_axes}
        self.shape, self.element_bytes, self.source, self.wanted = shape, element_bytes, source, wanted
        self.dims = [DimParts(size) for size in shape]
        start, goal = self._canonical(source), self._canonical(wanted)
        self.combiners = (dict(start.partial), dict(goal.partial))
        self.axes = self._merged(start, goal)
        self.start = self._state(start, 0)
        self.goal = self._state(goal, len(self.costs) - 1)
        self.exchanges: dict[tuple[State, State], Exchange] = {}

    def steps(self) -> tuple[Step, ...]:
        """The cheapest steps; slices of one dim that follow each other are one. Raises :class:`PlanError` if there are
        none."""
        search = LayoutSearch(
            self.dims,
            self.axes,
            self.element_bytes,
            self.start,
            self.goal,
            self.costs,
            self._exchange_cost,
            lambda size: twins_cost(self.costs[0], self.costs[-1], size),
        )
        steps: list[Step] = []
        for state, edge in search.path():
            if edge.step is Slice and self._idle(state, edge.state):
                continue
            step = self._step(state, edge)
            if steps and isinstance(step, Slice) and isinstance(last := steps[-1], Slice) and last.dim == step.dim:
                steps[-1] = replace(step, axes=last.axes + step.axes, before=last.before)
            else:
                steps.append(step)
        return tuple(steps)

    def layout(self, state: State) -> Layout:
        """A state as a layout; the two ends as they were given."""
        if state == self.start:
            return self.source
        if state == self.goal:
            return self.wanted
        return self._plain_layout(state)

    def _plain_layout(self, state: State) -> Layout:
        dims = tuple(
            replace(parts.kinds[kind], axes=self._names(axes)) if axes else DimSplit()
            for parts, (kind, axes) in zip(self.dims, state.dims, strict=True)
        )
        partial = sorted((name, combiner) for axis, combiner in state.partial for name in self.axes[axis].names)
        return Layout(dims, tuple(partial))

    def _canonical(self, layout: Layout) -> Layout:
        """Without axes of size 1 where they change nothing, and equal cuts written alike."""
        dims: list[DimSplit] = []
        for parts, split in zip(self.dims, layout.dims, strict=True):
            axes = tuple(axis for axis in split.axes if self._matters(axis))
            if split.axes and not axes and not parts.same(parts.kind(split, 1), 0, 1):
                axes = split.axes[:1]  # the one part of the windows of a convolution need not be the whole
            kind = parts.kind(split, math.prod(self.sizes[axis] for axis in axes)) if axes else 0
            dims.append(replace(parts.kinds[kind], axes=axes) if axes else DimSplit())
        return Layout(tuple(dims), tuple(entry for entry in layout.partial if self._matters(entry[0])))

    def _matters(self, axis: str) -> bool:
        """Axes of time are kept even if they have one place: who walks through time looks for them."""
        return self.sizes[axis] > 1 or axis in self.time_axes

    def _merged(self, start: Layout, goal: Layout) -> list[Axis]:
        used = {*start.axes, *goal.axes}
        groups = [[axis] for axis in self.sizes if axis in used]
        roles = [_roles(layout) for layout in (start, goal)]

        def joined(left: list[str], right: list[str]) -> bool:
            same = (left[-1] in self.time_axes) == (right[0] in self.time_axes)
            return same and all(_follows(role.get(left[-1]), role.get(right[0])) for role in roles)

        while pair := next(((x, y) for x in groups for y in groups if x is not y and joined(x, y)), None):
            pair[0].extend(pair[1])
            groups = [group for group in groups if group is not pair[1]]
        spare = self._spare(used)
        return [
            Axis(tuple(group), math.prod(self.sizes[axis] for axis in group), group[0] in self.time_axes)
            for group in (*groups, *([spare] if spare else []))
        ]

    def _spare(self, used: set[str]) -> list[str]:
        """Axes that neither layout names, if devices along them share a host and others do not: devices that have the
        same can share what they send between hosts."""
        names = [axis for axis, size in self.costs[0].mesh.axes if axis not in used and size > 1]
        crossing = [axis for axis in used if axis not in self.time_axes]
        near = [axis for axis in names if not self.costs[0].crosses((axis,))]
        moves = len(self.costs) == 2
        return near if moves or (crossing and self.costs[0].crosses(crossing)) else []

    def _state(self, layout: Layout, side: int) -> State:
        dims: list[tuple[int, tuple[int, ...]]] = []
        for parts, split in zip(self.dims, layout.dims, strict=True):
            merged = tuple(dict.fromkeys(self._axis(axis) for axis in split.axes))
            dims.append((parts.kinds.index(replace(split, axes=())) if merged else 0, merged))
        partial = {(self._axis(axis), combiner) for axis, combiner in layout.partial}
        return State(tuple(dims), tuple(sorted(partial)), side)

    def _axis(self, name: str) -> int:
        return next(number for number, axis in enumerate(self.axes) if name in axis.names)

    def _names(self, axes: Sequence[int]) -> tuple[str, ...]:
        return tuple(name for axis in axes for name in self.axes[axis].names)

    def _idle(self, before: State, after: State) -> bool:
        """Whether a slice only names the same parts differently."""
        return all(
            axes == later and parts.same(kind, kind_later, math.prod(self.axes[axis].size for axis in axes))
            for parts, (kind, axes), (kind_later, later) in zip(self.dims, before.dims, after.dims, strict=True)
        )

    def _exchange_cost(self, state: State, target: State) -> Charge:
        if (state, target) not in self.exchanges:
            self.exchanges[state, target] = self._exchange(state, target)
        step = self.exchanges[state, target]
        return Charge(step.seconds, step.bytes)

    def _exchange(self, state: State, target: State) -> Exchange:
        cost, before, after = self.costs[state.side], self._plain_layout(state), self._plain_layout(target)
        step = make_exchange(before, after, self.shape, self.sizes, frozenset(self.time_axes), cost.host_of)
        kept = [axis for axis in self.time_axes if axis in before.axes and axis in after.axes]
        moments: dict[tuple[int, ...], list[tuple[Place, Place, int]]] = {}
        for source_place, target_place, size in step.messages():
            sender = dict(zip(step.axes, source_place, strict=True))
            receiver = dict(zip(step.axes, target_place, strict=True))
            moment = tuple(receiver[axis] for axis in kept if axis in receiver)
            moments.setdefault(moment, []).append((sender, receiver, size * self.element_bytes))
        space = tuple(axis for axis in step.axes if axis not in self.time_axes)
        charges = [cost.exchange(space, messages) for messages in moments.values()]
        return replace(
            step,
            seconds=max((charge.seconds for charge in charges), default=0.0),
            bytes=max((charge.bytes for charge in charges), default=0),
            times=math.prod(self.time_axes[axis] for axis in kept),
        )

    def _step(self, state: State, edge: Edge) -> Step:
        before, after = self.layout(state), self.layout(edge.state)
        if edge.step is Exchange:
            return replace(self.exchanges[state, edge.state], before=before, after=after)
        cost: dict[str, Any] = {"seconds": edge.charge.seconds, "bytes": edge.charge.bytes, "times": edge.times}
        if edge.step is Transfer:
            return Transfer("move", self.costs[0].mesh, self.costs[-1].mesh, before=before, after=after, **cost)
        arguments = tuple(
            self._names(argument) if isinstance(argument, tuple) else argument for argument in edge.arguments
        )
        return edge.step(*arguments, before=before, after=after, **cost)


Role = tuple[str, int | str, int]


def _roles(layout: Layout) -> dict[str, Role]:
    roles: dict[str, Role] = {a: ("cut", d, n) for d, s in enumerate(layout.dims) for n, a in enumerate(s.axes)}
    return {**roles, **{axis: ("partial", combiner, 0) for axis, combiner in layout.partial}}


def _follows(left: Role | None, right: Role | None) -> bool:
    """Whether axes with these roles may be one: both without, partial alike, or one after the other in a dim."""
    if left is None or right is None:
        return left is right
    return left[:2] == right[:2] and (left[0] == "partial" or right[2] == left[2] + 1)
