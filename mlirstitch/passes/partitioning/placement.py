"""What a plan says of every op once its rules are applied: which devices compute it, and how its loops are cut."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mlirstitch.mesh import Mesh
from mlirstitch.passes.partitioning.graph import Graph
from mlirstitch.passes.partitioning.layout import Layout

At = tuple[tuple[str, int], ...]
"""A place in time: the coordinate of some time axes, in the order of the plan's time axes."""


@dataclass(frozen=True)
class Placement:
    """One op: op-assign and op-trans together.

    Attributes:
        mesh: the devices that compute it.
        cuts: loop and the axes that cut it, outermost first, of the mesh and of time.
            Over all other axes of the mesh the op is replicated; over all other time axes it runs once.
    """

    mesh: Mesh
    cuts: tuple[tuple[int, tuple[str, ...]], ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that cut a loop."""
        return tuple(axis for _, axes in self.cuts for axis in axes)

    def of(self, loop: int) -> tuple[str, ...]:
        """The axes that cut a loop."""
        return dict(self.cuts).get(loop, ())


@dataclass(frozen=True)
class Storage:
    """Where an argument lies between steps, and how it is cut there."""

    mesh: Mesh
    layout: Layout


@dataclass(frozen=True)
class Moment:
    """Some ops at some place in time: what op-order puts in a row. An op without one of the axes is there at all its
    coordinates."""

    ops: tuple[int, ...]
    at: At = ()


@dataclass(frozen=True)
class Order:
    """op-order: every op of ``first`` ends before any of ``then`` starts, on every device."""

    first: Moment
    then: Moment


@dataclass(frozen=True)
class Note:
    """Something a plan asked for that an op could not follow: the op is replicated over the axes instead."""

    op: int
    loop: int
    axes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class Decisions:
    """What the rules of a plan came to: all that a :class:`Plan` knows beside its graph and mesh.

    Attributes:
        time_axes: name and size of every time axis.
        cuts: per op, loops and the axes that cut them.
        meshes: per op where it was assigned to, or None.
        stored: per argument, dims and the axes by which they were asked to be stored cut.
        homes: per argument where it was asked to be kept, or None.
        orders, notes, eager, gathered_again: as in :class:`PlacedGraph`.
    """

    time_axes: tuple[tuple[str, int], ...]
    cuts: tuple[tuple[tuple[int, tuple[str, ...]], ...], ...]
    meshes: tuple[Mesh | None, ...]
    stored: tuple[tuple[tuple[int, tuple[str, ...]], ...], ...]
    homes: tuple[Mesh | None, ...]
    orders: tuple[Order, ...]
    notes: tuple[Note, ...]
    eager: frozenset[int]
    gathered_again: frozenset[int]


@dataclass(frozen=True)
class PlacedGraph:
    """A graph with a placement for every op.

    Attributes:
        graph: the graph.
        mesh: all devices.
        time_axes: name and size of every time axis, in the order in which loops over them nest.
        placements: one per op.
        storage: one per argument of the function, in its order.
        orders: op-order.
        notes: what could not be followed, in the order of the ops.
        eager: values whose parts are combined over the mesh in every part of time.
        gathered_again: arguments that are put together for the forward and again for the backward pass.
    """

    graph: Graph
    mesh: Mesh
    time_axes: tuple[tuple[str, int], ...]
    placements: tuple[Placement, ...]
    storage: tuple[Storage, ...]
    orders: tuple[Order, ...]
    notes: tuple[Note, ...]
    eager: frozenset[int] = frozenset()
    gathered_again: frozenset[int] = frozenset()

    def sizes(self, mesh: Mesh) -> Mapping[str, int]:
        """Sizes of the axes of a mesh and of time, by name."""
        return {**mesh.sizes, **dict(self.time_axes)}
