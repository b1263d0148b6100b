"""Blocks of a cluster that may be gone while others still access their shared memory.

The shared memory of a block lasts until its last thread has exited. An access from another block of the cluster is safe
if some thread of the block exits after it, ordered by synchronisation (CUDA C programming guide, "distributed shared
memory"): in whatever order blocks run, the memory is then still there.
"""

from __future__ import annotations

from typing import NoReturn

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.clocks import LANE_BITS, Clocks
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.lanes import SEVERAL, Lanes


class Departures:
    """Accesses of one chunk to the shared memory of other blocks, and the blocks that have exited."""

    def __init__(self, chunk: Chunk, clocks: Clocks) -> None:
        self._chunk = chunk
        self._clocks = clocks
        self._gone = np.zeros(chunk.blocks, bool)
        self._last: dict[int, dict[int, tuple[int, Site, int, int]]] = {}

    def access(self, site: Site, lanes: Lanes, owners: Array) -> None:
        """Threads access the shared memory of the blocks in rows ``owners``.

        Raises :class:`LaunchError` if one of these has exited.
        """
        far = np.nonzero(owners != lanes.rows)[0]
        _, first = np.unique(np.stack([owners[far], lanes.warp[far]]), axis=1, return_index=True)
        for entry in far[first]:
            owner, warp = int(owners[entry]), int(lanes.warp[entry])
            row, thread = int(lanes.rows[entry]), int(lanes.threads[entry])
            if self._gone[owner]:
                self._fail(site, row, thread, owner)
            self._last.setdefault(owner, {})[warp] = (int(self._clocks.now[warp]), site, row, thread)

    def exit(self, exited: Mask) -> None:
        """Threads ``exited`` have exited by now. Raises :class:`LaunchError` for a block that should have waited."""
        everyone = np.ones(self._chunk.blocks, bool) if exited is None else self._chunk.full(exited).all(axis=1)
        for owner in np.nonzero(everyone & ~self._gone)[0].tolist():
            self._gone[owner] = True
            for warp, (when, site, row, thread) in self._last.pop(owner, {}).items():
                if not self._is_known(owner, warp, when):
                    self._fail(site, row, thread, owner)

    def _is_known(self, owner: int, warp: int, when: int) -> bool:
        """Whether some warp of the block in row ``owner`` comes after what ``warp`` did at time ``when``."""
        warps = self._chunk.warps
        own = int(self._chunk.numbers[owner]) * warps + np.arange(warps)
        who = np.full(warps, (warp << LANE_BITS) | SEVERAL)
        return bool(self._clocks.ordered(who, np.full(warps, when), own, np.full(warps, SEVERAL)).any())

    def _fail(self, site: Site, row: int, thread: int, owner: int) -> NoReturn:
        who, block = self._chunk.describe(row, thread), self._chunk.describe_block(owner)
        text = f"{who} accesses shared memory of {block}, which may have exited before"
        raise self._chunk.finding(site, text)
