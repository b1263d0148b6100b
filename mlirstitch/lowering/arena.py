"""Offsets of temporaries that share one allocation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ALIGNMENT = 256
"""Every buffer starts at a multiple of this, bytes; what ``cudaMalloc`` promises."""


@dataclass(frozen=True)
class Lifetime:
    """A temporary: ``size`` in bytes, alive at every step from ``first`` to ``last``, both included."""

    size: int
    first: int
    last: int


def aligned(size: int) -> int:
    """``size`` rounded up to :data:`ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def assign_offsets(lifetimes: Sequence[Lifetime]) -> tuple[tuple[int, ...], int]:
    """The offset of every temporary, bytes, and the size of the arena.

    Greedy by size: the largest temporary first, each into the smallest gap that holds it among those already placed
    that are alive with it (Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference", 2020,
    section 5.2). Ties go to the earlier one, so the answer depends on the input alone. Empty temporaries sit at 0.
    """
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, lifetimes[i].first, i))
    first, last, start, end = (np.zeros(len(lifetimes), dtype=np.int64) for _ in range(4))
    offsets = [0] * len(lifetimes)
    placed = 0
    for index in order:
        life = lifetimes[index]
        if life.size == 0:
            continue
        alive = (first[:placed] <= life.last) & (last[:placed] >= life.first)
        offset = _best_gap(start[:placed][alive], end[:placed][alive], aligned(life.size))
        offsets[index] = offset
        first[placed], last[placed] = life.first, life.last
        start[placed], end[placed] = offset, offset + aligned(life.size)
        placed += 1
    return tuple(offsets), int(end[:placed].max(initial=0))


def _best_gap(start: np.ndarray, end: np.ndarray, size: int) -> int:
    """Where ``size`` bytes fit tightest between the occupied ranges; behind the last one if no gap holds them."""
    by_start = np.argsort(start, kind="stable")
    gap_start = np.concatenate(([0], np.maximum.accumulate(end[by_start])))
    gap = start[by_start] - gap_start[:-1]
    fits = np.flatnonzero(gap >= size)
    if len(fits) == 0:
        return int(gap_start[-1])
    return int(gap_start[fits[np.argmin(gap[fits])]])
