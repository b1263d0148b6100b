"""Which messages an exchange or a transfer takes, device by device, and what each device makes of what it gets.

All messages of a step have one order, by sender, then receiver: if every device does its sends and receives in that
order, the first message that is not through has both ends waiting for it, so nobody waits for ever, even where a send
waits for its receiver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.access import Box, shape_of
from mlirstitch.passes.partitioning.layout import coordinates
from mlirstitch.passes.partitioning.placement import At
from mlirstitch.passes.partitioning.steps import Exchange, Transfer


@dataclass(frozen=True)
class Place:
    """A device of a mesh at a place in time."""

    device: int
    at: At


@dataclass(frozen=True)
class Piece:
    """Something one place takes from another, or from itself.

    Attributes:
        source, receiver: the places.
        fragment: number of the fragment of the receiver that it belongs to.
        taken: the part of what the source has, counted from the start of its box.
        put: where it goes, counted from the start of the receiver's box.
    """

    source: Place
    receiver: Place
    fragment: int
    taken: Box
    put: Box


def pieces_of(
    step: Exchange | Transfer,
    shape: tuple[int, ...],
    meshes: tuple[Mesh, Mesh],
    time: Mapping[str, int],
    at: At,
) -> list[Piece]:
    """All pieces of a step at a place in time, in the order of messages; of one fragment in the order of its sources.

    Args:
        step: the exchange or transfer.
        shape: of the whole tensor.
        meshes: where the value is before and after; the same mesh twice for an exchange.
        time: sizes of the time axes.
        at: the place in time; axes of time that the step joins are not in it.
    """
    moved = isinstance(step, Transfer) and step.kind == "move" and not step.receives
    found = list((_twins if moved else _pieces)(step, shape, meshes, time, at))
    return sorted(found, key=lambda piece: (piece.source.device, piece.receiver.device))


def _twins(
    step: Exchange | Transfer,
    shape: tuple[int, ...],
    meshes: tuple[Mesh, Mesh],
    time: Mapping[str, int],
    at: At,
) -> Iterator[Piece]:
    """Every device sends all it has to the one at the same place of the other mesh."""
    for place in coordinates(meshes[1].names, meshes[1].sizes):
        where = {**place, **dict(at)}
        box = step.after.box(shape, where, {**meshes[1].sizes, **time})
        yield _piece(step, shape, meshes, time, (where, where), (0, box), ())


def _pieces(
    step: Exchange | Transfer,
    shape: tuple[int, ...],
    meshes: tuple[Mesh, Mesh],
    time: Mapping[str, int],
    at: At,
) -> Iterator[Piece]:
    source_axes = step.axes if isinstance(step, Exchange) else step.source_axes
    wanted_axes = step.axes if isinstance(step, Exchange) else step.wanted_axes
    aligned = step.aligned if isinstance(step, Exchange) else ()
    fixed = dict(at)
    others = tuple(axis for axis in meshes[1].names if axis not in wanted_axes)
    for rest in coordinates(others, meshes[1].sizes):
        for receive in step.receives:
            target = {**rest, **fixed, **dict(zip(wanted_axes, receive.coordinate, strict=True))}
            if any(target[axis] != place for axis, place in fixed.items()):
                continue
            for number, fragment in enumerate(receive.fragments):
                for coordinate in fragment.sources:
                    origin = {**rest, **fixed, **dict(zip(source_axes, coordinate, strict=True))}
                    yield _piece(step, shape, meshes, time, (origin, target), (number, fragment.box), aligned)


def _piece(
    step: Exchange | Transfer,
    shape: tuple[int, ...],
    meshes: tuple[Mesh, Mesh],
    time: Mapping[str, int],
    ends: tuple[Mapping[str, int], Mapping[str, int]],
    fragment: tuple[int, Box],
    aligned: Sequence[int],
) -> Piece:
    origin, target = ends
    have = step.before.box(shape, origin, {**meshes[0].sizes, **time})
    want = step.after.box(shape, target, {**meshes[1].sizes, **time})
    places = [
        Place(mesh.device(end), tuple((axis, end[axis]) for axis in time if axis in layout.axes))
        for mesh, end, layout in zip(meshes, ends, (step.before, step.after), strict=True)
    ]
    whole = tuple((0, extent) for extent in shape_of(have))
    return Piece(
        places[0],
        places[1],
        fragment[0],
        tuple(whole[d] if d in aligned else _from(r, have[d][0]) for d, r in enumerate(fragment[1])),
        tuple(whole[d] if d in aligned else _from(r, want[d][0]) for d, r in enumerate(fragment[1])),
    )


def _from(range_: tuple[int, int], start: int) -> tuple[int, int]:
    return (range_[0] - start, range_[1] - start)
