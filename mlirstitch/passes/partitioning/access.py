"""Where an op reads and writes its tensors: one access per tensor dim, and what a part of the loops touches.

A *box* is a half-open range per dim. The mask of an operand (SuperScaler's vTensor of a pTensor, section 3.1) is the
image of a part of the op's loops under its access map.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

Range = tuple[int, int]
Box = tuple[Range, ...]


@dataclass(frozen=True)
class Affine:
    """A position that is a sum of loops: ``constant + sum(step * loop)``, at most one entry a loop, by loop number.

    A dim that several loops number row-major (a collapsed shape) and a window (``2 * row + tap``) are both of this
    form. A negative step reads backwards.
    """

    terms: tuple[tuple[int, int], ...]
    constant: int = 0

    @property
    def loop(self) -> int | None:
        """The loop whose value the position is, or None if it is anything else."""
        return self.terms[0][0] if len(self.terms) == 1 and self.terms[0][1] == 1 and self.constant == 0 else None

    def step(self, loop: int) -> int:
        """What one step of ``loop`` moves the position by; 0 if it does not."""
        return dict(self.terms).get(loop, 0)

    def image(self, loops: Sequence[Range]) -> Range:
        """The smallest range that holds every position for these ranges of the loops; empty if one of them is."""
        low = high = self.constant
        for loop, step in self.terms:
            first, end = loops[loop]
            if first >= end:
                return (0, 0)
            low += step * (first if step > 0 else end - 1)
            high += step * (end - 1 if step > 0 else first)
        return (low, high + 1)


@dataclass(frozen=True)
class Whole:
    """A position that depends on data (a gather): any place of the dim may be read or written."""


Access = Affine | Whole
AccessMap = tuple[Access, ...]


def identity(rank: int) -> AccessMap:
    """The access map of an op whose loops are the dims of its tensor."""
    return tuple(Affine(((dim, 1),)) for dim in range(rank))


def image(access_map: AccessMap, shape: Sequence[int], loops: Sequence[Range]) -> Box:
    """The box of a tensor of ``shape`` that a part of the loops touches, cut to the tensor (a pad reads beyond it)."""
    box: list[Range] = []
    for access, extent in zip(access_map, shape, strict=True):
        low, high = access.image(loops) if isinstance(access, Affine) else (0, extent)
        low, high = max(low, 0), min(high, extent)
        box.append((low, high) if low < high else (0, 0))
    return tuple(box)


def intersect(left: Box, right: Box) -> Box | None:
    """What two boxes share, or None if nothing. Boxes of rank 0 share their one element."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(left, right, strict=True))
    return shared if all(low < high for low, high in shared) else None


def volume(box: Box) -> int:
    """How many elements a box has."""
    count = 1
    for low, high in box:
        count *= max(0, high - low)
    return count


def shape_of(box: Box) -> tuple[int, ...]:
    """Extents of a box."""
    return tuple(high - low for low, high in box)
