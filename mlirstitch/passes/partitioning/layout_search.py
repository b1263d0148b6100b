"""The cheapest way from one layout to another: a shortest path over the steps, with cost from ``link_cost.py``.

nnScaler (OSDI'24, section 4.1) searches over RVD vectors and aligns devices apart; here layouts name mesh axes, so that
the order of devices is part of a state. Axes with equal roles on both sides are merged first (``conversion.py``), which
leaves few. A state is a layout over merged axes; between two meshes it also says on which of them the value is.

Time axes are cut and combined inside a device. Those that vanish do so before anything else, where they can: a gradient
is reduced once, after the last micro-batch. Those that appear are sliced late, because all that is done after them is
done at every place in time.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.dim_parts import DimParts
from mlirstitch.passes.partitioning.link_cost import Charge, LinkCost
from mlirstitch.passes.partitioning.steps import (
    Accumulate,
    AllGather,
    AllReduce,
    AllToAll,
    Concat,
    Exchange,
    Neutralize,
    ReduceScatter,
    Slice,
    Step,
    Transfer,
)

STEP_PENALTY = 1e-9
"""Seconds added to every step in the search, so that of equally fast ways the one with fewer steps is taken."""
EDGES = 20_000
"""Steps looked at; a search that has not ended then gives the best of what it found, the direct ways included. Up to
three merged axes that does not happen."""
DIRECT = (Concat, Accumulate, AllReduce, ReduceScatter)
"""Steps before sends and receives, where only plain cuts are in question."""


class State(NamedTuple):
    """A layout: per dim the kind of its cut and the merged axes, merged partial axes with combiner; and which mesh."""

    dims: tuple[tuple[int, tuple[int, ...]], ...]
    partial: tuple[tuple[int, str], ...]
    side: int = 0


@dataclass(frozen=True)
class Axis:
    """Mesh axes, or time axes, that are moved together."""

    names: tuple[str, ...]
    size: int
    time: bool


@dataclass(frozen=True)
class Edge:
    """A step of kind ``step`` to ``state``; ``arguments`` as that class takes them, with merged axes."""

    step: type[Step]
    arguments: tuple[Any, ...]
    state: State
    charge: Charge
    times: int

    @property
    def weight(self) -> float:
        """Cost in the search."""
        return self.charge.seconds * self.times + STEP_PENALTY * (2 if self.step is Exchange else 1)


@dataclass
class LayoutSearch:
    """One question: how to get from ``start`` to ``goal``.

    Attributes:
        dims: sizes and cuts of the dims.
        axes: the merged axes.
        element_bytes: bytes of an element.
        costs: of the mesh, or of the two meshes.
        exchange_cost: cost of sends and receives between two states, exactly; slow.
        move_cost: cost of sending every device's ``bytes`` to its twin on the second mesh.
    """

    dims: Sequence[DimParts]
    axes: Sequence[Axis]
    element_bytes: int
    start: State
    goal: State
    costs: Sequence[LinkCost]
    exchange_cost: Callable[[State, State], Charge]
    move_cost: Callable[[int], Charge] = lambda size: Charge()

    def __post_init__(self) -> None:
        self._common = [self._common_axes(dim) for dim in range(len(self.dims))]

    def path(self) -> list[tuple[State, Edge]]:
        """The steps, each with the state before it. Raises :class:`PlanError` if there is no way."""
        best: dict[State, float] = {self.start: 0.0}
        came: dict[State, tuple[State, Edge]] = {}
        heap: list[tuple[float, int, State, tuple[State, State] | None]] = [(0.0, 0, self.start, None)]
        done: set[State] = set()
        count = itertools.count(1)
        edges = 0
        plain = all(len(parts.kinds) == 1 for parts in self.dims)

        def relax(state: State, edge: Edge) -> None:
            cost = best[state] + edge.weight
            if cost < best.get(edge.state, math.inf) and cost < best.get(self.goal, math.inf):
                best[edge.state], came[edge.state] = cost, (state, edge)
                heapq.heappush(heap, (cost, next(count), edge.state, None))

        for state, edge in self._plain_path(self.start):
            relax(state, edge)
        while heap and edges <= EDGES:
            cost, _, state, exchange = heapq.heappop(heap)
            if exchange is not None:
                if cost < best.get(self.goal, math.inf):
                    relax(exchange[0], self._exchange(*exchange))
                continue
            if state == self.goal:
                break
            if state in done:
                continue
            done.add(state)
            found = list(self._edges(state))
            edges += len(found)
            for edge in found:
                relax(state, edge)
            if any(e.step in (Concat, Accumulate) for e in found) or (
                plain and any(edge.step not in DIRECT for edge in self._way(came, state))
            ):
                continue
            if (lower := self._exchange_bound(state)) is not None and cost + lower < best.get(self.goal, math.inf):
                heapq.heappush(heap, (cost + lower, next(count), state, (state, self._exchange_target(state))))
        if self.goal not in best:
            for state, edge in self._direct_path():
                relax(state, edge)
        return self._steps(came)

    def _direct_path(self) -> Iterator[tuple[State, Edge]]:
        """Sends and receives at once, whatever they cost."""
        state = self.start
        if state.side != self.goal.side:
            edge = next(e for e in self._edges(state) if e.step is Transfer)
            yield state, edge
            state = edge.state
        edge = self._exchange(state, self._exchange_target(state))
        yield state, edge
        yield from self._plain_path(edge.state)

    def _way(self, came: dict[State, tuple[State, Edge]], state: State) -> Iterator[Edge]:
        while state != self.start:
            state, edge = came[state]
            yield edge

    def _steps(self, came: dict[State, tuple[State, Edge]]) -> list[tuple[State, Edge]]:
        steps: list[tuple[State, Edge]] = []
        state = self.goal
        while state != self.start:
            if state not in came:
                raise PlanError("no sequence of steps leads from one layout to the other")
            steps.append(came[state])
            state = came[state][0]
        return steps[::-1]

    def _plain_path(self, state: State) -> Iterator[tuple[State, Edge]]:
        """Combine everything, gather everything, then slice: a first bound. Ends early where that is not possible."""
        order = (Concat, Accumulate, AllReduce, AllGather, Transfer, Neutralize, Slice)
        seen = {state}
        while state != self.goal:
            candidates = [e for e in self._edges(state) if e.step in order and e.state not in seen]
            candidates = [e for e in candidates if e.step is not Slice or self._towards_goal(e.state)]
            if not candidates:
                return
            edge = min(candidates, key=lambda e: (order.index(e.step), sum(len(a) for _, a in e.state.dims)))
            yield state, edge
            state = edge.state
            seen.add(state)

    def _towards_goal(self, state: State) -> bool:
        return all(
            not axes or (kind == goal and axes == target[: len(axes)])
            for (kind, axes), (goal, target) in zip(state.dims, self.goal.dims, strict=True)
        )

    # What a state is.

    def _number(self, axes: Sequence[int]) -> int:
        return math.prod(self.axes[axis].size for axis in axes)

    def bytes(self, *states: State) -> int:
        """Of the largest part; with several states, no part in one shares more with a part in the others."""
        extents = (
            [d.largest(kind, self._number(axes)) for d, (kind, axes) in zip(self.dims, state.dims, strict=True)]
            for state in states
        )
        return math.prod(min(extent) for extent in zip(*extents, strict=True)) * self.element_bytes

    def _times(self, *states: State) -> int:
        """Places of the time axes that all states have."""
        found = (
            {a for _, axes in s.dims for a in axes if self.axes[a].time}
            | {a for a, _ in s.partial if self.axes[a].time}
            for s in states
        )
        return self._number(sorted(set.intersection(*found)))

    def _settled(self, dim: int, kind: int, axes: tuple[int, ...]) -> bool:
        """Whether the last of ``axes`` is where the goal has it, with the same parts up to there."""
        wanted_kind, wanted = self.goal.dims[dim]
        return wanted[: len(axes)] == axes and self.dims[dim].same(kind, wanted_kind, self._number(axes))

    def _common_axes(self, dim: int) -> int:
        """How many of the first axes of a dim both layouts have, with the same parts: they stay where they are."""
        kind, axes = self.start.dims[dim]
        return max((n for n in range(1, len(axes) + 1) if self._settled(dim, kind, axes[:n])), default=0)

    def _names(self, axes: Sequence[int]) -> tuple[str, ...]:
        return tuple(name for axis in axes for name in self.axes[axis].names)

    # Edges.

    def _edges(self, state: State) -> Iterator[Edge]:
        vanishing = list(self._vanish(state))
        if vanishing:
            yield vanishing[0]
            return
        cost, size, times = self.costs[state.side], self.bytes(state), self._times(state)
        goal_partial = set(self.goal.partial)
        reducible = [(a, c) for a, c in state.partial if (a, c) not in goal_partial and not self.axes[a].time]
        used = {a for _, axes in state.dims for a in axes} | {a for a, _ in state.partial}
        free = [axis for axis in range(len(self.axes)) if axis not in used]
        if self.start.side != self.goal.side and state.side == self.start.side:
            charge = self.move_cost(size)
            yield Edge(Transfer, (), state._replace(side=self.goal.side), charge, times)
        yield from self._reductions(state, reducible, cost, size, times)
        yield from self._gathers(state, cost, times)
        yield from self._all_to_alls(state, cost, size, times)
        for axis in free:
            yield from self._slices(state, axis)
        yield from self._recuts(state)
        yield from self._neutralizations(state, free, cost, size, times)

    def _vanish(self, state: State) -> Iterator[Edge]:
        cost = self.costs[state.side]
        for dim, (kind, axes) in enumerate(state.dims):
            if not axes or not self.axes[axes[-1]].time or self._settled(dim, kind, axes):
                continue
            number = self._number(axes)
            if self.dims[dim].gathers(kind, number, number // self.axes[axes[-1]].size):
                after = _with_dim(state, dim, kind, axes[:-1])
                yield Edge(
                    Concat, (dim, axes[-1:]), after, cost.local(2 * self.bytes(after)), self._times(state, after)
                )
        for axis, combiner in state.partial:
            if self.axes[axis].time and (axis, combiner) not in self.goal.partial:
                after = _without_partial(state, (axis,))
                charge = cost.local(3 * (self.axes[axis].size - 1) * self.bytes(state))
                yield Edge(Accumulate, ((axis,), combiner), after, charge, self._times(state, after))

    def _reductions(
        self, state: State, reducible: list[tuple[int, str]], cost: LinkCost, size: int, times: int
    ) -> Iterator[Edge]:
        if not reducible:
            return
        combiner = reducible[0][1]
        axes = [axis for axis, _ in reducible]
        for count in range(len(axes), 0, -1):
            for chosen in itertools.combinations(axes, count):
                charge = cost.all_reduce(self._names(chosen), size)
                yield Edge(AllReduce, (chosen, combiner), _without_partial(state, chosen), charge, times)
        for dim in range(len(state.dims)):
            for chosen in self._sequences(state, dim, axes):
                charge = cost.reduce_scatter(self._names(chosen), size)
                for after in self._cuts(_without_partial(state, chosen), dim, chosen):
                    yield Edge(ReduceScatter, (dim, chosen, combiner), after, charge, times)

    def _sequences(self, state: State, dim: int, axes: list[int]) -> list[tuple[int, ...]]:
        """What may be appended to the cut of a dim: single axes, all of them, and the run that the goal has next."""
        have = state.dims[dim][1]
        wanted = self.goal.dims[dim][1]
        run = (
            tuple(itertools.takewhile(lambda a: a in axes, wanted[len(have) :])) if wanted[: len(have)] == have else ()
        )
        return list(dict.fromkeys([s for s in (run, tuple(axes)) if len(s) > 1] + [(axis,) for axis in axes]))

    def _cuts(self, state: State, dim: int, more: tuple[int, ...]) -> Iterator[State]:
        """States in which ``more`` axes cut a dim, inside of the parts that it has now."""
        kind, axes = state.dims[dim]
        wanted_kind, wanted = self.goal.dims[dim]
        longer = axes + more
        towards = wanted[: len(longer)] == longer
        kinds = {kind} if axes else {0}
        kinds |= {0} | ({wanted_kind} if towards else set())
        for candidate in sorted(kinds, key=lambda k: (k != wanted_kind, k)):
            if self.dims[dim].inside(candidate, self._number(longer), kind, self._number(axes)):
                yield _with_dim(state, dim, candidate, longer)

    def _gathers(self, state: State, cost: LinkCost, times: int) -> Iterator[Edge]:
        for dim, (kind, axes) in enumerate(state.dims):
            for count in range(1, len(axes) + 1 - self._common[dim]):
                kept, gone = axes[:-count], axes[-count:]
                if self.axes[gone[0]].time:
                    break
                if self.dims[dim].gathers(kind, self._number(axes), self._number(kept)):
                    after = _with_dim(state, dim, kind, kept)
                    charge = cost.all_gather(self._names(gone), self.bytes(after))
                    yield Edge(AllGather, (dim, gone), after, charge, times)

    def _all_to_alls(self, state: State, cost: LinkCost, size: int, times: int) -> Iterator[Edge]:
        for dim, (kind, axes) in enumerate(state.dims):
            for count in range(1, len(axes) + 1 - self._common[dim]):
                kept, gone = axes[:-count], axes[-count:]
                if self.axes[gone[0]].time:
                    break
                if not self.dims[dim].gathers(kind, self._number(axes), self._number(kept)):
                    continue
                middle = _with_dim(state, dim, kind, kept)
                charge = cost.all_to_all(self._names(gone), size)
                for other in range(len(state.dims)):
                    if other != dim:
                        for after in self._cuts(middle, other, gone):
                            yield Edge(AllToAll, (dim, other, gone), after, charge, times)

    def _slices(self, state: State, axis: int) -> Iterator[Edge]:
        for dim, (_, axes) in enumerate(state.dims):
            if self.axes[axis].time and self.goal.dims[dim][1][: len(axes) + 1] != (*axes, axis):
                continue
            for after in self._cuts(state, dim, (axis,)):
                if not self.axes[axis].time or self._settled(dim, after.dims[dim][0], after.dims[dim][1]):
                    yield Edge(Slice, (dim, (axis,)), after, Charge(), self._times(after))

    def _recuts(self, state: State) -> Iterator[Edge]:
        """The same axes cut a dim in smaller parts: a halo is cut off."""
        for dim, (kind, axes) in enumerate(state.dims):
            number = self._number(axes)
            if not axes or (kind == 0 and self.goal.dims[dim][0] == 0):
                continue
            towards = self.goal.dims[dim][1][: len(axes)] == axes
            for candidate in sorted({0} | ({self.goal.dims[dim][0]} if towards else set())):
                if candidate != kind and self.dims[dim].inside(candidate, number, kind, number):
                    after = _with_dim(state, dim, candidate, axes)
                    yield Edge(Slice, (dim, ()), after, Charge(), self._times(state))

    def _neutralizations(self, state: State, free: list[int], cost: LinkCost, size: int, times: int) -> Iterator[Edge]:
        missing = [(a, c) for a, c in self.goal.partial if a in free]
        if missing and all(c == missing[0][1] for _, c in state.partial):
            after = state._replace(partial=tuple(sorted((*state.partial, *missing))))
            chosen = tuple(a for a, _ in missing)
            yield Edge(Neutralize, (chosen, missing[0][1]), after, cost.local(size), times)

    # Sends and receives.

    def _exchange_target(self, state: State) -> State:
        """The goal, except what a step after it does inside the device: parts that only time cuts, neutral elements."""
        dims = list(self.goal.dims)
        for dim, (kind, axes) in enumerate(dims):
            while axes and self.axes[axes[-1]].time and not self._has_settled(state, dim, kind, axes):
                if not self.dims[dim].inside(
                    kind, self._number(axes), kind if axes[:-1] else 0, self._number(axes[:-1])
                ):
                    break
                axes = axes[:-1]
            dims[dim] = (kind if axes else 0, axes)
        return State(tuple(dims), tuple(p for p in self.goal.partial if p in state.partial), state.side)

    def _has_settled(self, state: State, dim: int, kind: int, axes: tuple[int, ...]) -> bool:
        have_kind, have = state.dims[dim]
        return have[: len(axes)] == axes and self.dims[dim].same(have_kind, kind, self._number(axes))

    def _lasts(self, axis: int, state: State, target: State) -> bool:
        """Whether a time axis stands for the same parts in both."""
        return any(
            axis in axes and self._has_settled(state, dim, kind, axes[: axes.index(axis) + 1])
            for dim, (kind, axes) in enumerate(target.dims)
        )

    def _exchange(self, state: State, target: State) -> Edge:
        return Edge(Exchange, (), target, self.exchange_cost(state, target), self._times(state, target))

    def _exchange_bound(self, state: State) -> float | None:
        """No exchange costs less, inside one execution; None if it would change nothing or is on the wrong mesh."""
        if state.side != self.goal.side:
            return None
        target = self._exchange_target(state)
        if target == state or any(c != target.partial[0][1] for _, c in target.partial):
            return None
        moved = [d for d in range(len(self.dims)) if state.dims[d] != target.dims[d]]
        reduced = [a for a, c in state.partial if (a, c) not in target.partial]
        pairs = [(d, s) for d in moved for s in (state.dims[d], target.dims[d])]
        used = sorted({a for _, (_, axes) in pairs for a in axes} | set(reduced))
        if any(self.axes[axis].time and not self._lasts(axis, state, target) for axis in used):
            return 0.0
        grid = np.indices([self.axes[axis].size for axis in used]).reshape(len(used), -1)
        place = dict(zip(used, grid, strict=True))
        rest = self.element_bytes
        for dim, (kind, axes) in enumerate(state.dims):
            rest *= 1 if dim in moved else self.dims[dim].largest(kind, self._number(axes))
        count = np.full(grid.shape[1], self._number(reduced))
        wanted, own = np.full(grid.shape[1], rest), np.full(grid.shape[1], rest)
        for dim in moved:
            parts, (kind, axes), (goal, target_axes) = self.dims[dim], state.dims[dim], target.dims[dim]
            low, high = (ends[self._part(axes, place)] for ends in parts.parts(kind, self._number(axes)))
            first, end = (e[self._part(target_axes, place)] for e in parts.parts(goal, self._number(target_axes)))
            wanted = wanted * (end - first)
            own = own * np.maximum(0, np.minimum(high, end) - np.maximum(low, first))
            if parts.gathers(kind, self._number(axes), 1):
                lows, highs = parts.parts(kind, self._number(axes))
                full = lows < highs
                count = count * (np.searchsorted(lows[full], end) - np.searchsorted(highs[full], first, "right"))
        messages = np.where(wanted > 0, count - (own > 0), 0)
        received = np.maximum(0, wanted * self._number(reduced) - own)
        busiest = int(np.argmax(received))
        bound = self.costs[state.side].exchange_bound(
            self._names([a for a in used if not self.axes[a].time]),
            int(messages[busiest]),
            self.bytes(state, target),
            int(received[busiest]),
        )
        return bound * self._times(state, target)

    def _part(self, axes: Sequence[int], place: dict[int, Any]) -> Any:
        number: Any = 0
        for axis in axes:
            number = number * self.axes[axis].size + place[axis]
        return number


def _with_dim(state: State, dim: int, kind: int, axes: tuple[int, ...]) -> State:
    dims = list(state.dims)
    dims[dim] = (kind if axes else 0, axes)
    return state._replace(dims=tuple(dims))


def _without_partial(state: State, axes: Sequence[int]) -> State:
    return state._replace(partial=tuple(p for p in state.partial if p[0] not in axes))
