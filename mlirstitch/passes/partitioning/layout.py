"""Layouts: which part of a tensor, and which partial value of it, every device holds at every step of time.

A layout says for every dim of the tensor by which axes it is cut, and over which axes its value is partial; over all
other axes it is replicated. This is the RVD vector of nnScaler (OSDI'24, section 4.1) with the order of the devices
built in. Axes are those of the mesh, and *time axes*: a plan that cuts a batch into micro-batches adds an axis of that
size, which one device walks through one place after the other. A place in the grid of all axes is a *coordinate*.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from mlirstitch.passes.partitioning.access import Box, Range


@dataclass(frozen=True)
class DimSplit:
    """How one dim of a tensor is cut.

    ``extent`` units are dealt out in order to as many parts as the axes have places, as evenly as possible: part k of
    n has the units from ``k * extent // n`` to ``(k + 1) * extent // n``, and may be empty. Unit u stands for the
    positions from ``offset + step * u`` up to, not with, ``offset + step * u + span``, cut to the tensor. A plain cut
    of a dim has one position a unit; a collapsed dim as many as its inner dims; overlapping units are halos.

    Attributes:
        axes: names of the axes, outermost first; empty for a dim that is not cut.
        extent, step, offset, span: see above.
    """

    axes: tuple[str, ...] = ()
    extent: int = 0
    step: int = 1
    offset: int = 0
    span: int = 1

    def covers_once(self, size: int) -> bool:
        """Whether the parts of a dim of ``size`` are disjoint and leave nothing out."""
        return not self.axes or (self.span == self.step and self.offset == 0 and self.extent * self.step == size)

    def range(self, size: int, coordinate: Mapping[str, int], sizes: Mapping[str, int]) -> Range:
        """The positions of the part at a coordinate, of a dim of ``size``; (0, 0) if it is empty."""
        if not self.axes:
            return (0, size)
        part, parts = 0, 1
        for axis in self.axes:
            part, parts = part * sizes[axis] + coordinate[axis], parts * sizes[axis]
        first, end = part * self.extent // parts, (part + 1) * self.extent // parts
        if first == end:
            return (0, 0)
        low = max(0, self.offset + self.step * first)
        high = min(size, self.offset + self.step * (end - 1) + self.span)
        return (low, high) if low < high else (0, 0)

    def largest(self, size: int, sizes: Mapping[str, int]) -> int:
        """The extent of the largest part of a dim of ``size``, without the loss at its ends."""
        if not self.axes:
            return size
        parts = math.prod(sizes[axis] for axis in self.axes)
        units = -(-self.extent // parts)
        return min(size, self.step * (units - 1) + self.span) if units else 0


def split(axes: tuple[str, ...], size: int) -> DimSplit:
    """A plain cut of a dim of ``size``."""
    return DimSplit(axes, size) if axes else DimSplit()


@dataclass(frozen=True)
class Layout:
    """The layout of one tensor.

    Attributes:
        dims: one cut per dim of the tensor.
        partial: axes over which the value is partial, each with its combiner, sorted by axis. The value is what the
            combiner makes of the parts.
    """

    dims: tuple[DimSplit, ...]
    partial: tuple[tuple[str, str], ...] = ()

    @property
    def axes(self) -> tuple[str, ...]:
        """All axes that cut a dim, in the order of the dims, then those it is partial over."""
        return (*(axis for dim in self.dims for axis in dim.axes), *(axis for axis, _ in self.partial))

    def box(self, shape: tuple[int, ...], coordinate: Mapping[str, int], sizes: Mapping[str, int]) -> Box:
        """The part of a tensor of ``shape`` at a coordinate (axes it does not name are ignored)."""
        return tuple(dim.range(size, coordinate, sizes) for dim, size in zip(self.dims, shape, strict=True))

    def largest(self, shape: tuple[int, ...], sizes: Mapping[str, int]) -> int:
        """Elements of the largest part of a tensor of ``shape``."""
        return math.prod(dim.largest(size, sizes) for dim, size in zip(self.dims, shape, strict=True))

    def covers_once(self, shape: tuple[int, ...]) -> bool:
        """Whether the parts are disjoint and leave nothing out, apart from replicas."""
        return all(dim.covers_once(size) for dim, size in zip(self.dims, shape, strict=True))

    def same_boxes(self, other: Layout, shape: tuple[int, ...], sizes: Mapping[str, int]) -> bool:
        """Whether both give every coordinate the same part of the same partial value."""
        if self == other:
            return True
        if self.partial != other.partial:
            return False
        axes = tuple(dict.fromkeys((*self.axes, *other.axes)))
        return all(self.box(shape, at, sizes) == other.box(shape, at, sizes) for at in coordinates(axes, sizes))

    def __str__(self) -> str:
        dims = ", ".join("/".join(dim.axes) or "-" for dim in self.dims)
        return f"[{dims}]" + "".join(f" partial({axis}: {combiner})" for axis, combiner in self.partial)


def replicated(rank: int) -> Layout:
    """Every device holds the whole tensor."""
    return Layout((DimSplit(),) * rank)


def coordinates(axes: tuple[str, ...], sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Every place of a grid, row-major."""
    for place in itertools.product(*(range(sizes[axis]) for axis in axes)):
        yield dict(zip(axes, place, strict=True))
