"""How much of a buffer a kernel can touch: an upper bound on the number of different elements, from index expressions.

A kernel that reads one time step of a sequence takes the whole sequence as its argument, but touches a slice. Every
access is a set of offsets ``const + sum(coefficient * atom)``; its size follows from the ranges of the atoms, and sets
that differ are counted one beside the other, never more than lie between the first and the last offset.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from mlirstitch.lowering.kernel.index_expr import Expr


def distinct_offsets(expr: Expr) -> int:
    """At most so many different values an index expression takes; exact if its atoms are independent mixed radix.

    From the smallest coefficient up: an atom whose coefficient exceeds what the ones before span multiplies their
    number, one that does not can only fill the span.
    """
    count, span = 1, 1
    for coefficient, extent in sorted(_radix(expr)):
        reach = span + coefficient * (extent - 1)
        count = count * extent if coefficient >= span else min(count * extent, reach)
        span = reach
    return min(count, span)


def _radix(expr: Expr) -> list[tuple[int, int]]:
    """(size of the step, number of values) of every atom."""
    return [(abs(coefficient), atom.high - atom.low + 1) for atom, coefficient in expr.terms]


@dataclass
class Footprint:
    """The part of one buffer that is touched. ``sets``: first offset and radix of every different set of offsets."""

    low: int = 0
    high: int = -1
    sets: dict[tuple[int, tuple[tuple[int, int], ...]], int] = field(default_factory=dict)

    def add(self, offset: Expr) -> None:
        """Take note of an access to every element that ``offset`` can name."""
        low, high = offset.low, offset.high
        if self.high < self.low:
            self.low, self.high = low, high
        else:
            self.low, self.high = min(self.low, low), max(self.high, high)
        key = (low, tuple(sorted(_radix(offset))))
        if key not in self.sets:
            self.sets[key] = distinct_offsets(offset)

    def elements(self, size: int) -> int:
        """At most so many different elements are touched of a buffer of ``size``."""
        inside = min(self.high, size - 1) - max(self.low, 0) + 1
        return max(0, min(inside, sum(self.sets.values())))


def footprint(offsets: Iterable[Expr]) -> Footprint:
    """The footprint of accesses at these offsets."""
    found = Footprint()
    for offset in offsets:
        found.add(offset)
    return found
