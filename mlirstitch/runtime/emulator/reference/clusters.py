"""Clusters of thread blocks: their place in the grid, their barrier, and addresses in each other's shared memory.

A shared address is an offset; in the window ``shared::cluster`` the number of the block in its cluster plus one stands
above bit 24, so that a plain offset means the block's own memory.
"""

from __future__ import annotations

import numpy as np

from mlirstitch.runtime.emulator.ptx.ir import Terminator
from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask

RANK_SHIFT = 24
OFFSET_MASK = (1 << RANK_SHIFT) - 1

Extent3 = tuple[int, int, int]


def by_cluster(grid: Extent3, cluster: Extent3) -> Array:
    """Block numbers with the blocks of a cluster next to each other, in order of their rank: [clusters, size]."""
    number = np.arange(grid[0] * grid[1] * grid[2]).reshape(grid[2], grid[1], grid[0])
    (x, y, z), (cx, cy, cz) = grid, cluster
    split = number.reshape(z // cz, cz, y // cy, cy, x // cx, cx).transpose(0, 2, 4, 1, 3, 5)
    return np.ascontiguousarray(split).reshape(-1, cx * cy * cz)


class ClusterBarriers:
    """``barrier.cluster``: every thread arrives, and waits until all of its cluster that still run have arrived."""

    def __init__(self, chunk: Chunk, size: int) -> None:
        self._chunk = chunk
        self._size = size
        self._arrivals = np.zeros(chunk.shape, np.int64)
        self._completed = np.zeros(chunk.blocks // size, np.int64)
        self._waiting: list[tuple[Terminator, Array]] = []

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def arrive(self, mask: Mask) -> Array:
        """Threads that arrive a second time before the first is complete, [blocks, threads]."""
        active = np.ones(self._chunk.shape, bool) if mask is None else self._chunk.full(mask)
        twice = active & (self._arrivals > self._rows(self._completed))
        self._arrivals += active
        return twice

    def wait(self, terminator: Terminator, mask: Mask) -> Array:
        """Threads wait; those that have not arrived before."""
        active = np.ones(self._chunk.shape, bool) if mask is None else self._chunk.full(mask)
        self._waiting.append((terminator, active))
        return active & (self._arrivals == 0)

    def release(self, exited: Mask) -> tuple[list[tuple[Terminator, Array]], Array]:
        """Threads that may go on, and the clusters that have met (flags)."""
        gone = np.zeros(self._chunk.shape, bool) if exited is None else self._chunk.full(exited)
        late = ~gone & (self._arrivals <= self._rows(self._completed))
        met = ~late.any(axis=1).reshape(-1, self._size).any(axis=1)
        met &= (~gone).any(axis=1).reshape(-1, self._size).any(axis=1)
        self._completed += met
        free = self._arrivals <= self._rows(self._completed)
        released: list[tuple[Terminator, Array]] = []
        waiting, self._waiting = self._waiting, []
        for terminator, mask in waiting:
            go = mask & free
            if go.any():
                released.append((terminator, go))
            if (mask & ~free).any():
                self._waiting.append((terminator, mask & ~free))
        return released, np.asarray(met)

    def waiting_lines(self) -> list[str]:
        """Where threads wait, for a message."""
        found: list[str] = []
        for terminator, mask in self._waiting:
            row, thread = (int(v[0]) for v in np.nonzero(mask))
            assert terminator.instruction is not None
            where = f"PTX line {terminator.instruction.line} ({terminator.instruction.mnemonic})"
            found.append(f"{self._chunk.describe(row, thread)} at {where}")
        return found

    def _rows(self, by_cluster: Array) -> Array:
        return np.repeat(by_cluster, self._size)[:, None]
