"""Which threads run next: the order in which the basic blocks and warps of a chunk are executed.

Within a warp the lowest pending block always goes first, so that diverged threads meet again (see ``ir.Kernel``); the
orders differ in which warps they let go on.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask

Pending = dict[int, Mask]
"""Threads that wait to execute a basic block, by its index; None for all threads."""


class Order(Protocol):
    """A rule that picks what runs next."""

    def pop(self, pending: Pending) -> tuple[int, Mask]:
        """Take a basic block and threads out of ``pending``, which is not empty."""
        ...


class LowestFirst:
    """All threads at the lowest block: the fewest steps, and the same order every time."""

    def pop(self, pending: Pending) -> tuple[int, Mask]:
        index = min(pending)
        return index, pending.pop(index)


class Fair:
    """Warps take turns, so that one that waits for another does not keep it from running."""

    def __init__(self, chunk: Chunk) -> None:
        self._chunk = chunk
        self._last: dict[int, int] = {}
        self._step = 0

    def pop(self, pending: Pending) -> tuple[int, Mask]:
        if len(pending) == 1:
            index = next(iter(pending))
            return index, pending.pop(index)
        ready = ready_warps(self._chunk, pending)
        index = min(ready, key=lambda block: (self._last.get(block, 0), block))
        self._step += 1
        self._last[index] = self._step
        return index, take_warps(self._chunk, pending, index, ready[index])


class RandomWarps:
    """Warps in an order drawn from a seed: a single one, some, or all that stand at the same block."""

    def __init__(self, chunk: Chunk, random: np.random.Generator) -> None:
        self._chunk = chunk
        self._random = random

    def pop(self, pending: Pending) -> tuple[int, Mask]:
        ready = ready_warps(self._chunk, pending)
        indices = sorted(ready)
        index = indices[int(self._random.integers(len(indices)))]
        warps = ready[index]
        rows, columns = np.nonzero(warps)
        first = int(self._random.integers(rows.size))
        share = (0.0, 0.5, 1.0)[int(self._random.integers(3))]
        chosen = warps & (self._random.random(warps.shape) < share)
        chosen[rows[first], columns[first]] = True
        return index, take_warps(self._chunk, pending, index, chosen)


def ready_warps(chunk: Chunk, pending: Pending) -> dict[int, Array]:
    """For every block that is the lowest one of some warp: these warps, [blocks, warps]."""
    seen = np.zeros((chunk.blocks, chunk.warps), bool)
    ready: dict[int, Array] = {}
    for index in sorted(pending):
        here = _warps(chunk, pending[index]) & ~seen
        if here.any():
            ready[index] = here
            seen |= here
    return ready


def take_warps(chunk: Chunk, pending: Pending, index: int, warps: Array) -> Mask:
    """Take the threads of ``warps`` out of those that wait at a block."""
    mask = pending.pop(index)
    full = np.ones(chunk.shape, bool) if mask is None else chunk.full(mask)
    chosen = np.repeat(warps, WARP, axis=1)[:, : chunk.threads]
    rest = full & ~chosen
    if not rest.any():
        return mask
    pending[index] = rest
    return full & chosen


def _warps(chunk: Chunk, mask: Mask) -> Array:
    if mask is None:
        return np.ones((chunk.blocks, chunk.warps), bool)
    return np.broadcast_to(chunk.active_warps(mask), (chunk.blocks, chunk.warps))
