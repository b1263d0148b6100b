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
    found = list(_Pieces(step, shape, meshes, time, dict(at)).all())
    return sorted(found, key=lambda piece: (piece.source.device, piece.receiver.device))


@dataclass(frozen=True)
class _Pieces:
    """The arguments of :func:`pieces_of`."""

    step: Exchange | Transfer
    shape: tuple[int, ...]
    meshes: tuple[Mesh, Mesh]
    time: Mapping[str, int]
    at: Mapping[str, int]

    def all(self) -> Iterator[Piece]:
        """Every piece, receiver by receiver."""
        step = self.step
        if isinstance(step, Exchange):
            return self._received(step.axes, step.axes, step.aligned)
        if step.kind == "move" and not step.receives:
            return self._twins()
        return self._received(step.source_axes, step.wanted_axes, ())

    def _twins(self) -> Iterator[Piece]:
        """Every device sends all it has to the one at the same place of the other mesh."""
        target = self.meshes[1]
        for place in coordinates(target.names, target.sizes):
            where = {**place, **self.at}
            box = self.step.after.box(self.shape, where, {**target.sizes, **self.time})
            yield self._piece((where, where), 0, box, ())

    def _received(
        self, source_axes: Sequence[str], wanted_axes: Sequence[str], aligned: Sequence[int]
    ) -> Iterator[Piece]:
        others = tuple(axis for axis in self.meshes[1].names if axis not in wanted_axes)
        for rest in coordinates(others, self.meshes[1].sizes):
            for receive in self.step.receives:
                target = {**rest, **self.at, **dict(zip(wanted_axes, receive.coordinate, strict=True))}
                if any(target[axis] != place for axis, place in self.at.items()):
                    continue
                for number, fragment in enumerate(receive.fragments):
                    for coordinate in fragment.sources:
                        origin = {**rest, **self.at, **dict(zip(source_axes, coordinate, strict=True))}
                        yield self._piece((origin, target), number, fragment.box, aligned)

    def _piece(
        self, ends: tuple[Mapping[str, int], Mapping[str, int]], fragment: int, box: Box, aligned: Sequence[int]
    ) -> Piece:
        layouts = (self.step.before, self.step.after)
        have, want = (
            layout.box(self.shape, end, {**mesh.sizes, **self.time})
            for layout, end, mesh in zip(layouts, ends, self.meshes, strict=True)
        )
        source, receiver = (
            Place(mesh.device(end), tuple((axis, end[axis]) for axis in self.time if axis in layout.axes))
            for mesh, end, layout in zip(self.meshes, ends, layouts, strict=True)
        )
        whole = tuple((0, extent) for extent in shape_of(have))

        def inside(of: Box) -> Box:
            return tuple(whole[d] if d in aligned else _from(r, of[d][0]) for d, r in enumerate(box))

        return Piece(source, receiver, fragment, inside(have), inside(want))


def _from(range_: tuple[int, int], start: int) -> tuple[int, int]:
    return (range_[0] - start, range_[1] - start)
