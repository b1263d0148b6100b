"""The steps by which a value gets from one layout to another. Data alone; ``collectives.py`` says what each computes.

Members of a group stand in lexicographic order of the step's axes, which is also the order in which partial values
are combined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.access import Box, volume
from mlirstitch.passes.partitioning.layout import Layout

Coordinate = tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Step:
    """What all steps have.

    Attributes:
        before, after: layouts of the value.
        seconds, bytes: cost of one execution; bytes are those the busiest device receives over links.
        times: how often it is executed: once for every place of the time axes that its layouts have in common.
    """

    before: Layout
    after: Layout
    seconds: float = 0.0
    bytes: int = 0
    times: int = 1


@dataclass(frozen=True)
class Slice(Step):
    """Every device keeps a part of what it has. ``axes``, of the mesh or of time, are those that now cut ``dim`` more
    than before; none if only its units change (a halo is cut off)."""

    dim: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class AllGather(Step):
    """Groups over ``axes`` concatenate their parts of ``dim``, which may differ in extent."""

    dim: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class AllReduce(Step):
    """Groups over ``axes`` combine their partial values, and all get the result."""

    axes: tuple[str, ...]
    combiner: str


@dataclass(frozen=True)
class ReduceScatter(Step):
    """Groups over ``axes`` combine their partial values, and every member gets its part of ``dim``."""

    dim: int
    axes: tuple[str, ...]
    combiner: str


@dataclass(frozen=True)
class AllToAll(Step):
    """``axes`` cut ``dim_to`` instead of ``dim_from``: every member sends every other one a part."""

    dim_from: int
    dim_to: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Concat(Step):
    """A device concatenates the parts of ``dim`` that it computed at the places of the time ``axes``."""

    dim: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Accumulate(Step):
    """A device combines the partial values of the places of the time ``axes``, as a chain: each into what it has."""

    axes: tuple[str, ...]
    combiner: str


@dataclass(frozen=True)
class Neutralize(Step):
    """A replicated value becomes a partial one over ``axes``, of the mesh or of time: the first member keeps it, the
    others take the neutral element. Where the combiner makes x of x and x (max, min, and, or, pairs) all keep it."""

    axes: tuple[str, ...]
    combiner: str


@dataclass(frozen=True)
class Fragment:
    """A box of the tensor and the coordinates of those who send it; several send partial values, combined in order."""

    box: Box
    sources: tuple[Coordinate, ...]


@dataclass(frozen=True)
class Receive:
    """What one coordinate puts together: disjoint fragments, its own first."""

    coordinate: Coordinate
    fragments: tuple[Fragment, ...]


def _messages(receives: tuple[Receive, ...]) -> Iterator[tuple[Coordinate, Coordinate, int]]:
    """Source, destination and elements of every message; what goes between two coordinates is one message."""
    for receive in receives:
        sizes: dict[Coordinate, int] = {}
        for fragment in receive.fragments:
            for source in fragment.sources:
                sizes[source] = sizes.get(source, 0) + volume(fragment.box)
        yield from ((source, receive.coordinate, size) for source, size in sizes.items())


@dataclass(frozen=True)
class Exchange(Step):
    """Sends and receives, from the intersections of what a coordinate wants with what others have. Always possible.

    Attributes:
        axes: the axes, of the mesh and of time, that coordinates are given for; all others are equal at both ends.
        receives: one entry a coordinate, row-major.
        aligned: dims that both layouts cut alike: a fragment is all a device has of them, and its box names as many
            positions, from 0, as the device with most of them has.
        combiner: of fragments with several sources, else "".
    """

    axes: tuple[str, ...]
    receives: tuple[Receive, ...]
    aligned: tuple[int, ...] = ()
    combiner: str = ""

    def messages(self) -> Iterator[tuple[Coordinate, Coordinate, int]]:
        """Source, destination and elements, at most, of every message between two different coordinates."""
        return (message for message in _messages(self.receives) if message[0] != message[1])


@dataclass(frozen=True)
class Transfer(Step):
    """Sends and receives from one mesh to another.

    Attributes:
        kind: ``move`` (each device to one other, its twin), ``scatter`` (a device sends different parts to several),
            ``gather`` (a device puts together what several send), ``broadcast`` (a device sends the same to several) or
            ``exchange`` (anything else).
        source_mesh, wanted_mesh: where the value is before and after.
        source_axes, wanted_axes: the axes that coordinates of sources and receivers are given for: those of the meshes,
            then time axes.
        receives: one entry a coordinate of ``wanted_axes``, row-major; none for a move.
        combiner: of fragments with several sources, else "".
    """

    kind: str
    source_mesh: Mesh
    wanted_mesh: Mesh
    source_axes: tuple[str, ...] = ()
    wanted_axes: tuple[str, ...] = ()
    receives: tuple[Receive, ...] = ()
    combiner: str = ""

    def messages(self) -> Iterator[tuple[Coordinate, Coordinate, int]]:
        """Source, destination and elements of every message; none are listed for a move."""
        return _messages(self.receives)
