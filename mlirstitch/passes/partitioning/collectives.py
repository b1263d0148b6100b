"""What the steps of a conversion compute, with numpy: the reference for every other execution of them.

Pieces of a value are arrays by coordinate, a coordinate having one number for each axis of ``sizes`` in order: the axes
of the mesh, then those of time. All orders are fixed, so that results are the same to the bit. A pair that ``argmax``
or ``argmin`` combines is one array with the fields ``value`` and ``index``, see :func:`pair`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlirstitch.passes.partitioning.access import Box, shape_of
from mlirstitch.passes.partitioning.layout import Layout, coordinates
from mlirstitch.passes.partitioning.steps import (
    Accumulate,
    AllGather,
    AllReduce,
    AllToAll,
    Concat,
    Coordinate,
    Exchange,
    Neutralize,
    Receive,
    ReduceScatter,
    Slice,
    Step,
    Transfer,
)

Array = npt.NDArray[Any]
Pieces = dict[Coordinate, Array]


def pair(value: Array, index: Array) -> Array:
    """A value and its index as one array, as ``argmax`` and ``argmin`` combine them."""
    packed = np.empty(value.shape, np.dtype([("value", value.dtype), ("index", index.dtype)]))
    packed["value"], packed["index"] = value, index
    return packed


def combine(left: Array, right: Array, combiner: str) -> Array:
    """Two partial values become one. NaN wins in max, min, argmax and argmin; of equals the lower index."""
    if combiner in ("argmax", "argmin"):
        new, old = right["value"], left["value"]
        better = (new > old) if combiner == "argmax" else (new < old)
        nan_new, nan_old = new != new, old != old
        equal = (new == old) | (nan_new & nan_old)
        better = (better | nan_new) & ~nan_old | (equal & (right["index"] < left["index"]))
        return np.where(better, right, left)
    logical = left.dtype == np.bool_
    operations: dict[str, Callable[[Array, Array], Array]] = {
        "add": np.add,
        "mul": np.multiply,
        "max": np.maximum,
        "min": np.minimum,
        "and": np.logical_and if logical else np.bitwise_and,
        "or": np.logical_or if logical else np.bitwise_or,
    }
    return operations[combiner](left, right)


def cut(value: Array, layout: Layout, sizes: Mapping[str, int]) -> Pieces:
    """The pieces of a whole value in a layout. Partial values are not made: each part of them has all of it."""
    axes = tuple(sizes)
    return {
        tuple(at[axis] for axis in axes): value[_slices(layout.box(value.shape, at, sizes))]
        for at in coordinates(axes, sizes)
    }


def apply_step(
    step: Step, pieces: Mapping[Coordinate, Array], shape: Sequence[int], sizes: Mapping[str, int]
) -> Pieces:
    """The pieces after a step on one mesh, of a value of ``shape``."""
    grid = _Grid(tuple(shape), dict(sizes))
    match step:
        case Slice():
            return {at: grid.part(step, at, piece, grid.box(step.before, at)) for at, piece in pieces.items()}
        case AllGather() | Concat():
            return {at: _gather(grid, step.dim, step.axes, pieces, at) for at in pieces}
        case AllReduce() | Accumulate():
            return {at: _reduce(grid, step.axes, step.combiner, pieces, at) for at in pieces}
        case ReduceScatter():
            reduced = {at: _reduce(grid, step.axes, step.combiner, pieces, at) for at in pieces}
            return {at: grid.part(step, at, piece, grid.box(step.before, at)) for at, piece in reduced.items()}
        case AllToAll():
            return {at: _all_to_all(grid, step, pieces, at) for at in pieces}
        case Neutralize():
            return {at: _neutralize(grid, step, at, piece) for at, piece in pieces.items()}
        case Exchange():
            return _exchange(grid, step, pieces)
        case _:
            raise TypeError(f"no step on one mesh: {type(step).__name__}")


def apply_transfer(
    step: Transfer,
    pieces: Mapping[Coordinate, Array],
    shape: Sequence[int],
    time_axes: Mapping[str, int] | None = None,
) -> Pieces:
    """The pieces on the second mesh after a transfer. Coordinates have the axes of a mesh, then ``time_axes``."""
    time = dict(time_axes or {})
    source = _Grid(tuple(shape), {**step.source_mesh.sizes, **time})
    wanted = _Grid(tuple(shape), {**step.wanted_mesh.sizes, **time})
    places = [tuple(at.values()) for at in coordinates(wanted.axes, wanted.sizes)]
    if not step.receives:
        senders = (tuple(at.values()) for at in coordinates(source.axes, source.sizes))
        return {at: pieces[sender] for at, sender in zip(places, senders, strict=True)}
    receives = {receive.coordinate: receive for receive in step.receives}
    after: Pieces = {}
    for at in places:
        place = wanted.place(at)
        receive = receives[tuple(place[axis] for axis in step.wanted_axes)]
        now = {axis: place[axis] for axis in time}
        sent: dict[Coordinate, tuple[Array, Box]] = {}
        for sender in _sources(receive):
            full = source.at({**now, **dict(zip(step.source_axes, sender, strict=True))})
            sent[sender] = (pieces[full], source.box(step.before, full))
        dtype = next(iter(pieces.values())).dtype
        after[at] = _assemble(receive, sent, wanted.box(step.after, at), (), step.combiner, dtype)
    return after


class _Grid:
    """Coordinates with names, and boxes."""

    def __init__(self, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
        self.shape, self.sizes, self.axes = shape, sizes, tuple(sizes)

    def place(self, at: Coordinate) -> dict[str, int]:
        return dict(zip(self.axes, at, strict=True))

    def box(self, layout: Layout, at: Coordinate) -> Box:
        return layout.box(self.shape, self.place(at), self.sizes)

    def group(self, axes: Sequence[str], at: Coordinate) -> list[Coordinate]:
        """Coordinates that differ from ``at`` in ``axes`` alone, in lexicographic order of those."""
        place = self.place(at)
        values = itertools.product(*(range(self.sizes[axis]) for axis in axes))
        return [self.at({**place, **dict(zip(axes, value, strict=True))}) for value in values]

    def at(self, place: Mapping[str, int]) -> Coordinate:
        return tuple(place[axis] for axis in self.axes)

    def part(self, step: Step, at: Coordinate, piece: Array, have: Box) -> Array:
        return piece[_slices(self.box(step.after, at), have)]


def _slices(box: Box, inside: Box | None = None) -> tuple[slice, ...]:
    """Where a box lies in an array that holds ``inside``; an empty range may lie anywhere."""
    starts = [low for low, _ in inside] if inside else [0] * len(box)
    return tuple(
        slice(low - start, high - start) if low < high else slice(0, 0)
        for (low, high), start in zip(box, starts, strict=True)
    )


def _gather(grid: _Grid, dim: int, axes: Sequence[str], pieces: Mapping[Coordinate, Array], at: Coordinate) -> Array:
    return np.concatenate([pieces[member] for member in grid.group(axes, at)], axis=dim)


def _reduce(
    grid: _Grid, axes: Sequence[str], combiner: str, pieces: Mapping[Coordinate, Array], at: Coordinate
) -> Array:
    return functools.reduce(lambda a, b: combine(a, b, combiner), (pieces[member] for member in grid.group(axes, at)))


def _all_to_all(grid: _Grid, step: AllToAll, pieces: Mapping[Coordinate, Array], at: Coordinate) -> Array:
    low, high = grid.box(step.after, at)[step.dim_to]
    parts: list[Array] = []
    for member in grid.group(step.axes, at):
        start = grid.box(step.before, member)[step.dim_to][0]
        index = [slice(None)] * len(grid.shape)
        index[step.dim_to] = slice(low - start, high - start) if low < high else slice(0, 0)
        parts.append(pieces[member][tuple(index)])
    return np.concatenate(parts, axis=step.dim_from)


def _neutralize(grid: _Grid, step: Neutralize, at: Coordinate, piece: Array) -> Array:
    place = grid.place(at)
    if step.combiner not in ("add", "mul") or all(place[axis] == 0 for axis in step.axes):
        return piece
    return np.full_like(piece, 0 if step.combiner == "add" else 1)


def _exchange(grid: _Grid, step: Exchange, pieces: Mapping[Coordinate, Array]) -> Pieces:
    receives = {receive.coordinate: receive for receive in step.receives}
    after: Pieces = {}
    for at in pieces:
        place = grid.place(at)

        def source(inner: Coordinate, place: dict[str, int] = place) -> Coordinate:
            return grid.at({**place, **dict(zip(step.axes, inner, strict=True))})

        receive = receives[tuple(place[axis] for axis in step.axes)]
        sent = {s: (pieces[source(s)], grid.box(step.before, source(s))) for s in _sources(receive)}
        after[at] = _assemble(receive, sent, grid.box(step.after, at), step.aligned, step.combiner, pieces[at].dtype)
    return after


def _sources(receive: Receive) -> list[Coordinate]:
    return list(dict.fromkeys(source for fragment in receive.fragments for source in fragment.sources))


def _assemble(
    receive: Receive,
    sent: Mapping[Coordinate, tuple[Array, Box]],
    box: Box,
    aligned: Sequence[int],
    combiner: str,
    dtype: np.dtype[Any],
) -> Array:
    """The piece of one receiver, which holds ``box``, from the pieces and boxes of those who send to it."""
    result = np.empty(shape_of(box), dtype)
    for fragment in receive.fragments:
        inner = tuple(box[dim] if dim in aligned else range_ for dim, range_ in enumerate(fragment.box))
        parts = [piece[_slices(inner, have)] for piece, have in (sent[source] for source in fragment.sources)]
        result[_slices(inner, box)] = functools.reduce(lambda a, b: combine(a, b, combiner), parts)
    return result
