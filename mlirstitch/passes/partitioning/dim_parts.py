"""The parts of one dim under the ways two layouts cut it, as arrays: what fits into what."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mlirstitch.passes.partitioning.layout import DimSplit

Numbers = npt.NDArray[np.int64]


class DimParts:
    """A dim of ``size`` positions and the *kinds* of cuts in question: units of a ``DimSplit``, without its axes.

    Kind 0 is the plain cut. A kind and a number of parts say what every part is.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.kinds = [DimSplit((), size)]
        self._parts: dict[tuple[int, int], tuple[Numbers, Numbers]] = {}
        self._largest: dict[tuple[int, int], int] = {}
        self._gathers: dict[tuple[int, int, int], bool] = {}
        self._inside: dict[tuple[int, int, int, int], bool] = {}

    def kind(self, split: DimSplit, parts: int) -> int:
        """The number of a cut's kind; one that gives the same parts as one known already is that one."""
        units = replace(split, axes=())
        if units not in self.kinds:
            self.kinds.append(units)
        number = self.kinds.index(units)
        return next((k for k in range(number) if self.same(k, number, parts)), number)

    def parts(self, kind: int, number: int) -> tuple[Numbers, Numbers]:
        """First position and end of each of ``number`` parts; both are 0 for an empty one."""
        if (kind, number) not in self._parts:
            units = self.kinds[kind]
            bounds = np.arange(number + 1, dtype=np.int64) * units.extent // number
            first, end = bounds[:-1], bounds[1:]
            low = np.maximum(0, units.offset + units.step * first)
            high = np.minimum(self.size, units.offset + units.step * (end - 1) + units.span)
            empty = (first == end) | (low >= high)
            self._parts[kind, number] = np.where(empty, 0, low), np.where(empty, 0, high)
        return self._parts[kind, number]

    def largest(self, kind: int, number: int) -> int:
        """Positions of the largest part."""
        if (kind, number) not in self._largest:
            low, high = self.parts(kind, number)
            self._largest[kind, number] = int((high - low).max())
        return self._largest[kind, number]

    def same(self, left: int, right: int, number: int) -> bool:
        """Whether two kinds give the same parts."""
        return left == right or all(
            np.array_equal(a, b) for a, b in zip(self.parts(left, number), self.parts(right, number), strict=True)
        )

    def inside(self, inner: int, number: int, outer: int, fewer: int) -> bool:
        """Whether each of ``number`` parts lies in the one of ``fewer`` parts that it is a part of."""
        key = (inner, number, outer, fewer)
        if key not in self._inside:
            low, high = self.parts(inner, number)
            first, end = (np.repeat(bounds, number // fewer) for bounds in self.parts(outer, fewer))
            self._inside[key] = bool(np.all((low >= high) | ((low >= first) & (high <= end))))
        return self._inside[key]

    def gathers(self, kind: int, number: int, fewer: int) -> bool:
        """Whether concatenating runs of ``number`` parts gives exactly ``fewer`` parts; the whole dim if that is 1."""
        key = (kind, number, fewer)
        if key not in self._gathers:
            low, high = self.parts(kind, number)
            first, end = self.parts(kind if fewer > 1 else 0, fewer)
            self._gathers[key] = all(
                _chain(low[run], high[run], int(first[k]), int(end[k]))
                for k, run in enumerate(np.arange(number).reshape(fewer, -1))
            )
        return self._gathers[key]


def _chain(low: Numbers, high: Numbers, first: int, end: int) -> bool:
    """Whether the ranges that are not empty follow each other from ``first`` to ``end``."""
    kept = low < high
    bounds = [first, *high[kept].tolist()]
    starts = [*low[kept].tolist(), end]
    return bounds == starts if first < end else not kept.any()
