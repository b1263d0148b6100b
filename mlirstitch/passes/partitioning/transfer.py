"""Conversion of a value from one mesh to another, as between the stages of a pipeline.

Between meshes with the same axes one search finds the steps on both, and where between them every device sends what it
has to its twin: so a replicated value is cut, sent in parts over the links between hosts, and gathered at the other
side. Other meshes are joined by sends and receives between every pair of a few layouts on either side.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from mlirstitch.passes.partitioning.exchange import Holders, fragments, transfer_kind
from mlirstitch.passes.partitioning.layout import DimSplit, Layout, split
from mlirstitch.passes.partitioning.layout_question import LayoutQuestion
from mlirstitch.passes.partitioning.link_cost import Charge, LinkCost, broadcast_cost, messages_cost
from mlirstitch.passes.partitioning.steps import Step, Transfer


def transfer_steps(
    source_cost: LinkCost,
    wanted_cost: LinkCost,
    time_axes: Mapping[str, int],
    shape: tuple[int, ...],
    element_bytes: int,
    source: Layout,
    wanted: Layout,
) -> tuple[Step, ...]:
    """The cheapest steps found from ``source`` on the mesh of one cost to ``wanted`` on the mesh of the other.

    Raises :class:`PlanError` if nobody has something that is wanted.
    """
    if source_cost.mesh.axes == wanted_cost.mesh.axes:
        costs = (source_cost, wanted_cost)
        return LayoutQuestion(costs, time_axes, shape, element_bytes, source, wanted).steps()
    between = _Between(source_cost, wanted_cost, time_axes, shape, element_bytes)
    return between.best(source, wanted)


class _Between:
    """Ways between two meshes of different shape."""

    def __init__(
        self,
        source: LinkCost,
        wanted: LinkCost,
        time_axes: Mapping[str, int],
        shape: tuple[int, ...],
        element_bytes: int,
    ) -> None:
        self.source, self.wanted, self.time_axes = source, wanted, time_axes
        self.source_sizes = {**source.mesh.sizes, **time_axes}
        self.wanted_sizes = {**wanted.mesh.sizes, **time_axes}
        self.shape, self.element_bytes = shape, element_bytes

    def best(self, source: Layout, wanted: Layout) -> tuple[Step, ...]:
        """Of all pairs of a layout on either side the one that costs least in all; the first of several."""
        kept = _common_time(source, wanted, self.time_axes, (self.source_sizes, self.wanted_sizes))
        leaving = [(x, self._steps(self.source, source, x)) for x in self._leaving(source, kept)]
        arriving = [(x, self._steps(self.wanted, x, wanted)) for x in self._arriving(wanted, kept)]
        best: tuple[Step, ...] = ()
        for (left, before), (arrived, after) in itertools.product(leaving, arriving):
            if best and _seconds((*before, *after)) >= _seconds(best):
                continue
            steps = (*before, self._transfer(left, arrived), *after)
            if not best or _seconds(steps) < _seconds(best):
                best = steps
        return best

    def _steps(self, cost: LinkCost, source: Layout, wanted: Layout) -> tuple[Step, ...]:
        if source == wanted:
            return ()
        return LayoutQuestion((cost,), self.time_axes, self.shape, self.element_bytes, source, wanted).steps()

    def _leaving(self, source: Layout, kept: frozenset[str]) -> Iterator[Layout]:
        """Layouts to leave the first mesh in: as it is, combined, and combined and cut by what was partial.

        Time that both sides have, at the same place, goes along; other time is over, or has not begun.
        """
        timed = _without_time(source, self.time_axes, kept)
        yield timed
        partial = tuple(entry for entry in timed.partial if entry[0] in self.time_axes)
        if partial == timed.partial:
            return
        combined = replace(timed, partial=partial)
        yield combined
        gone = tuple(axis for axis, _ in timed.partial if axis not in self.time_axes)
        for dim, cut in enumerate(combined.dims):
            if not cut.axes:
                yield _with_cut(combined, dim, gone, self.shape)

    def _arriving(self, wanted: Layout, kept: frozenset[str]) -> Iterator[Layout]:
        """Layouts to arrive in: as wanted, and where it is replicated, cut over the axes that nothing uses."""
        timed = _without_time(wanted, self.time_axes, kept)
        whole = replace(timed, partial=tuple(e for e in timed.partial if e[0] in self.time_axes))
        yield whole
        spare = tuple(axis for axis, size in self.wanted.mesh.axes if axis not in whole.axes and size > 1)
        for dim, cut in enumerate(whole.dims):
            if spare and not cut.axes:
                yield _with_cut(whole, dim, spare, self.shape)

    def _transfer(self, before: Layout, after: Layout) -> Transfer:
        source, wanted, times = self.source.mesh, self.wanted.mesh, self.time_axes
        named = tuple(axis for axis in times if axis in (*before.axes, *after.axes))
        source_axes, wanted_axes = (*source.names, *named), (*wanted.names, *named)
        holders = Holders(
            before,
            source_axes,
            self.source_sizes,
            frozenset(named),
            frozenset(named),
            lambda at: self.source.host_of(dict(zip(source_axes, at, strict=True))),
        )
        receives = fragments(
            holders,
            after,
            self.shape,
            wanted_axes,
            self.wanted_sizes,
            lambda at: self.wanted.host_of(dict(zip(wanted_axes, at, strict=True))),
        )
        combiner = next((c for axis, c in before.partial if (axis, c) not in after.partial), "")
        kind = transfer_kind(receives)
        step = Transfer(kind, source, wanted, source_axes, wanted_axes, receives, combiner, before=before, after=after)
        kept = [axis for axis in named if axis in before.axes and axis in after.axes]
        moments: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
        for sender, receiver, size in step.messages():
            place = dict(zip(wanted_axes, receiver, strict=True))
            ends = source.device(dict(zip(source_axes, sender, strict=True))), wanted.device(place)
            moments.setdefault(tuple(place[axis] for axis in kept), []).append((*ends, size * self.element_bytes))
        charges = [self._charge(kind, messages) for messages in moments.values()]
        return replace(
            step,
            seconds=max((charge.seconds for charge in charges), default=0.0),
            bytes=max((charge.bytes for charge in charges), default=0),
            times=math.prod(times[axis] for axis in kept),
        )

    def _charge(self, kind: str, messages: list[tuple[int, int, int]]) -> Charge:
        if kind == "broadcast":
            targets: dict[int, list[int]] = {}
            for sender, receiver, _ in messages:
                targets.setdefault(sender, []).append(receiver)
            return broadcast_cost(self.source.links, targets, max(size for _, _, size in messages))
        senders, receivers, sizes = np.array(messages, dtype=np.int64).T
        return messages_cost(self.source.links, senders, receivers, np.ones_like(sizes), sizes)


def _seconds(steps: tuple[Step, ...]) -> float:
    return math.fsum(step.seconds * step.times for step in steps)


def _with_cut(layout: Layout, dim: int, axes: tuple[str, ...], shape: tuple[int, ...]) -> Layout:
    dims = list(layout.dims)
    dims[dim] = split(axes, shape[dim])
    return replace(layout, dims=tuple(dims))


def _common_time(
    source: Layout, wanted: Layout, time_axes: Mapping[str, int], sizes: tuple[Mapping[str, int], Mapping[str, int]]
) -> frozenset[str]:
    """Time axes that stand for the same parts on both sides: the dim is cut into as many parts before each of them; and
    those that both are partial over."""
    kept = {axis for axis, combiner in source.partial if axis in time_axes and (axis, combiner) in wanted.partial}
    for left, right in zip(source.dims, wanted.dims, strict=True):
        if replace(left, axes=()) != replace(right, axes=()):
            continue
        places = [_time_places(cut.axes, time_axes, size) for cut, size in zip((left, right), sizes, strict=True)]
        same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*places, strict=False))
        kept.update(axis for (axis, _), _ in same)
    return frozenset(kept)


def _time_places(
    axes: tuple[str, ...], time_axes: Mapping[str, int], sizes: Mapping[str, int]
) -> list[tuple[str, int]]:
    """Time axes with the number of parts into which the axes before them cut."""
    return [(a, math.prod(sizes[b] for b in axes[:n])) for n, a in enumerate(axes) if a in time_axes]


def _without_time(layout: Layout, time_axes: Mapping[str, int], kept: frozenset[str]) -> Layout:
    """The layout once all time but ``kept`` is over. Time that axes of the mesh follow in a dim stays: what a device
    has of the dim would have gaps."""
    dims: list[DimSplit] = []
    for cut in layout.dims:
        axes = cut.axes
        while axes and axes[-1] in time_axes and axes[-1] not in kept:
            axes = axes[:-1]
        dims.append(replace(cut, axes=axes) if axes else DimSplit())
    return Layout(tuple(dims), tuple(e for e in layout.partial if e[0] not in time_axes or e[0] in kept))
