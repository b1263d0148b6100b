"""Who sends what to whom: intersections of the boxes a coordinate wants with the boxes others have.

This is what always works (SuperScaler, arXiv 2301.08984, section 3.3: a dependency is an intersection of masks), uneven
parts, halos and any order of devices included; the collectives are tested against it.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.access import Box, Range
from mlirstitch.passes.partitioning.layout import DimSplit, Layout, coordinates
from mlirstitch.passes.partitioning.steps import Coordinate, Exchange, Fragment, Receive

Place = dict[str, int]


@dataclass(frozen=True)
class Holders:
    """What stands on the sending side.

    Attributes:
        layout: of the value there.
        axes: the axes coordinates of sources are given for; they include those of the layout.
        sizes: size of every axis.
        shared: axes of ``axes`` whose coordinate means the same at the receiver: all of them on one mesh, the time axes
            between two.
        time: axes of time: a receiver takes a replica of its own time.
        host: the host of a source; None if all are equally near.
    """

    layout: Layout
    axes: tuple[str, ...]
    sizes: Mapping[str, int]
    shared: frozenset[str]
    time: frozenset[str]
    host: Callable[[Coordinate], int] | None = None


@dataclass
class _Replicas:
    """The holders of one part, by host, and whose turn it is: requests go round, so that none of them sends all."""

    by_host: dict[int, list[Place]]
    turn: dict[int, int] = field(default_factory=dict)

    def next(self, host: int) -> Place:
        near = host if host in self.by_host else min(self.by_host)
        turn = self.turn.get(host, 0)
        self.turn[host] = turn + 1
        return self.by_host[near][turn % len(self.by_host[near])]


def fragments(
    holders: Holders,
    wanted: Layout,
    shape: tuple[int, ...],
    axes: tuple[str, ...],
    sizes: Mapping[str, int],
    host: Callable[[Coordinate], int] | None = None,
) -> tuple[Receive, ...]:
    """What every coordinate of ``axes`` receives, so that it has its part of a tensor of ``shape`` in ``wanted``.

    ``sizes`` are those of ``axes``. A coordinate takes from itself what it has; of several replicas it takes one in its
    own host (``host`` gives that of a receiver) if there is one, in turn. Axes over which both layouts are partial stay
    partial; over the others the fragments are combined. Raises :class:`PlanError` if nobody has a part that is wanted.
    """
    return tuple(_Receiver(holders, wanted, shape, axes, sizes, host).receives())


class _Receiver:
    def __init__(
        self,
        holders: Holders,
        wanted: Layout,
        shape: tuple[int, ...],
        axes: tuple[str, ...],
        sizes: Mapping[str, int],
        host: Callable[[Coordinate], int] | None,
    ) -> None:
        self.holders, self.wanted, self.shape, self.axes, self.host = holders, wanted, shape, axes, host
        self.sizes = sizes
        source = holders.layout
        kept = {axis for axis, combiner in wanted.partial if (axis, combiner) in source.partial} & holders.shared
        self.kept = tuple(axis for axis, _ in source.partial if axis in kept)
        self.reduced = tuple(axis for axis, _ in source.partial if axis not in kept)
        self.spare = tuple(axis for axis in holders.axes if axis not in source.axes)
        self.replicas: dict[Coordinate, _Replicas] = {}
        self.parts: dict[int, list[tuple[Range, Place]]] = {}
        self.covers: dict[tuple[int, Range, Coordinate], list[tuple[Range, Place]]] = {}

    def receives(self) -> Iterator[Receive]:
        for at in coordinates(self.axes, self.sizes):
            place = tuple(at[axis] for axis in self.axes)
            yield Receive(place, tuple(self._fragments(at, place)))

    def _fragments(self, at: Place, place: Coordinate) -> Iterator[Fragment]:
        box = self.wanted.box(self.shape, at, self.sizes)
        if any(low >= high for low, high in box):
            return
        for pieces in itertools.product(*(self._cover(dim, wanted, at) for dim, wanted in enumerate(box))):
            parts: Place = {axis: at[axis] for axis in self.kept}
            for _, chosen in pieces:
                parts.update(chosen)
            sources = tuple(
                self._choose({**parts, **values}, at, place) for values in coordinates(self.reduced, self.holders.sizes)
            )
            yield Fragment(tuple(range_ for range_, _ in pieces), sources)

    def _cover(self, dim: int, wanted: Range, at: Place) -> list[tuple[Range, Place]]:
        """Disjoint ranges that make up ``wanted``, each with the place of who has it; the receiver's own first."""
        axes = self.holders.layout.dims[dim].axes
        own = tuple(at[axis] for axis in axes) if self.holders.shared.issuperset(axes) else ()
        key = (dim, wanted, own)
        if key not in self.covers:
            self.covers[key] = self._greedy(dim, wanted, dict(zip(axes, own, strict=True)) if own else None)
        return self.covers[key]

    def _greedy(self, dim: int, wanted: Range, own: Place | None) -> list[tuple[Range, Place]]:
        """First what the receiver has, then the parts in order, as far as they have something still missing."""
        cut, size, sizes = self.holders.layout.dims[dim], self.shape[dim], self.holders.sizes
        if dim not in self.parts:
            ranges = ((cut.range(size, place, sizes), place) for place in coordinates(cut.axes, sizes))
            self.parts[dim] = [part for part in ranges if part[0][0] < part[0][1]]
        parts = self.parts[dim]
        first = bisect.bisect_right(parts, wanted[0], key=lambda part: part[0][1])
        near = itertools.takewhile(lambda part: part[0][0] < wanted[1], parts[first:])
        found: list[tuple[Range, Place]] = []
        missing = [wanted]
        for held, place in itertools.chain([(cut.range(size, own, sizes), own)] if own else [], near):
            missing = _take(missing, held, place, found)
        if not missing:
            return found
        start, end = missing[0]
        raise PlanError(
            f"no device has positions {start} to {end} of dim {dim} of a tensor of shape {list(self.shape)}, "
            f"whose layout is {self.holders.layout}",
            hint="split the op that computes it so that its parts cover the whole tensor",
        )

    def _choose(self, parts: Place, at: Place, place: Coordinate) -> Coordinate:
        """The source for a part: the receiver itself, else the replica whose turn it is."""
        holders = self.holders
        fixed = {**parts, **{axis: at[axis] for axis in self.spare if axis in holders.time and axis in holders.shared}}
        if holders.shared.issuperset(holders.axes) and all(at[axis] == value for axis, value in fixed.items()):
            return tuple(at[axis] for axis in holders.axes)
        free = tuple(axis for axis in holders.axes if axis not in fixed)
        key = tuple(fixed.get(axis, -1) for axis in holders.axes)
        if key not in self.replicas:
            by_host: dict[int, list[Place]] = {}
            for values in coordinates(free, holders.sizes):
                source = tuple({**fixed, **values}[axis] for axis in holders.axes)
                by_host.setdefault(holders.host(source) if holders.host else 0, []).append(values)
            self.replicas[key] = _Replicas(by_host)
        chosen = self.replicas[key].next(self.host(place) if self.host else 0)
        return tuple({**fixed, **chosen}[axis] for axis in holders.axes)


def _take(missing: Sequence[Range], held: Range, place: Place, found: list[tuple[Range, Place]]) -> list[Range]:
    """Add to ``found`` what ``held`` has of the missing ranges; what is missing after that."""
    rest: list[Range] = []
    for first, end in missing:
        inner = (max(first, held[0]), min(end, held[1]))
        if inner[0] >= inner[1]:
            rest.append((first, end))
            continue
        found.append((inner, place))
        rest += [part for part in ((first, inner[0]), (inner[1], end)) if part[0] < part[1]]
    return rest


def make_exchange(
    before: Layout,
    after: Layout,
    shape: tuple[int, ...],
    sizes: Mapping[str, int],
    time: frozenset[str] = frozenset(),
    host: Callable[[Mapping[str, int]], int] | None = None,
) -> Exchange:
    """Sends and receives from one layout to another on the same devices, without its cost.

    ``host`` gives the host of a place that has a coordinate for the axes it names, of any place for the others. Raises
    :class:`PlanError` if nobody has something that is wanted, or if ``after`` is partial where ``before`` is not.
    """
    if not set(after.partial) <= set(before.partial):
        raise PlanError(f"sends cannot make a value of layout {before} partial as in {after}")
    aligned = tuple(dim for dim, pair in enumerate(zip(before.dims, after.dims, strict=True)) if pair[0] == pair[1])
    source, wanted = _unaligned(before, aligned), _unaligned(after, aligned)
    reduced = tuple(entry for entry in before.partial if entry not in after.partial)
    source, wanted = replace(source, partial=reduced), replace(wanted, partial=())
    used = {*source.axes, *wanted.axes}
    axes = tuple(axis for axis in sizes if axis in used)
    extents = tuple(
        max(high - low for low, high in (before.dims[dim].range(size, at, sizes) for at in coordinates(cut, sizes)))
        if dim in aligned and (cut := before.dims[dim].axes)
        else size
        for dim, size in enumerate(shape)
    )

    def host_of(place: Coordinate) -> int:
        return host(dict(zip(axes, place, strict=True))) if host else 0

    holders = Holders(source, axes, sizes, frozenset(axes), time, host_of)
    receives = fragments(holders, wanted, extents, axes, sizes, host_of)
    combiner = reduced[0][1] if reduced else ""
    return Exchange(axes, receives, aligned, combiner, before=before, after=after)


def _unaligned(layout: Layout, aligned: tuple[int, ...]) -> Layout:
    return replace(layout, dims=tuple(DimSplit() if d in aligned else s for d, s in enumerate(layout.dims)))


def transfer_kind(receives: Sequence[Receive]) -> str:
    """The name of a pattern of sends; see ``steps.Transfer``."""
    sent: dict[Coordinate, list[tuple[Box, ...]]] = {}
    gathers = False
    for receive in receives:
        boxes: dict[Coordinate, tuple[Box, ...]] = {}
        for fragment in receive.fragments:
            for source in fragment.sources:
                boxes[source] = (*boxes.get(source, ()), fragment.box)
        gathers |= len(boxes) > 1
        for source, what in boxes.items():
            sent.setdefault(source, []).append(what)
    if all(len(targets) == 1 for targets in sent.values()):
        return "gather" if gathers else "move"
    if gathers:
        return "exchange"
    return "broadcast" if all(len(set(targets)) == 1 for targets in sent.values()) else "scatter"
