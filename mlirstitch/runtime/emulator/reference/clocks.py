"""Which accesses are ordered by synchronisation: vector clocks of warps.

A warp's clock ticks whenever it releases what it did: at barriers, fences followed by an atomic, releasing stores. An
access of warp ``p`` at time ``t`` comes before what warp ``w`` does now if ``w`` knows ``p`` at ``t`` or later
(Flanagan and Freund, "FastTrack: efficient and precise dynamic race detection", PLDI 2009). Knowledge inside a block is
a table [warps, warps]; knowledge of other blocks travels through memory only and is kept for the few warps that have
some. Threads of one warp are ordered by ``bar.warp.sync`` and the other instructions that the warp executes together.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.lanes import SEVERAL

LANE_BITS = 6


@dataclass
class _Location:
    """What is released through one address: the clocks of all warps of the grid."""

    known: Array


class Clocks:
    """Clocks of all warps of a launch; the blocks of one chunk at a time are resident."""

    def __init__(self, blocks: int, warps: int) -> None:
        self._warps = warps
        self.now = np.ones(blocks * warps, np.int32)
        self._fence_time = np.zeros(blocks * warps, np.int32)
        self._locations: dict[Hashable, _Location] = {}
        self._row = np.zeros(blocks, np.int64)
        self._numbers = np.zeros(0, np.int64)
        self._near = np.zeros((0, warps, warps), np.int32)
        self._far: dict[int, Array] = {}
        self._fenced: dict[int, Array] = {}
        self._waiting: dict[int, Array] = {}

    def attach(self, chunk: Chunk) -> None:
        """Make the blocks of a chunk resident. What the blocks before knew is gone, what they released stays."""
        self._numbers = chunk.numbers
        self._row[chunk.numbers] = np.arange(chunk.blocks)
        self._near = np.zeros((chunk.blocks, self._warps, self._warps), np.int32)
        self._far.clear()
        self._fenced.clear()
        self._waiting.clear()

    # ---- order
    def time_of(self, warp: Array, strong: bool) -> Array:
        """When accesses by these warps count as done. A strong one counts with the last fence before it: who sees it
        sees that fence too."""
        fenced = self._fence_time[warp]
        return np.where(fenced > 0, fenced, self.now[warp]) if strong else self.now[warp]

    def ordered(self, who: Array, when: Array, warp: Array, lane: Array) -> Array:
        """Whether accesses by ``who`` (warp and lane) at time ``when`` come before what ``warp``, ``lane`` do now."""
        before = who >> LANE_BITS
        same = before == warp
        result = same & (((who & (2**LANE_BITS - 1)) == lane) & (lane != SEVERAL) | (when < self.now[warp]))
        if same.all():
            return result
        block, block_before = warp // self._warps, before // self._warps
        near = ~same & (block == block_before)
        if near.any():
            w, p = warp[near] % self._warps, before[near] % self._warps
            result[near] = self._near[self._row[block[near]], w, p] >= when[near]
        if self._far:
            far = np.nonzero(block != block_before)[0]
            for number in np.unique(warp[far]):
                known = self._far.get(int(number))
                if known is not None:
                    mine = far[warp[far] == number]
                    result[mine] = known[before[mine]] >= when[mine]
        return result

    def apart(self, who: Array, warp: Array) -> Array:
        """Whether accesses by ``who`` come from another block than that of ``warp``."""
        return (who >> LANE_BITS) // self._warps != warp // self._warps

    # ---- barriers
    def meet(self, row: int, arrived: Array, released: Array) -> None:
        """A barrier of the block in a row: warps ``released`` learn what warps ``arrived`` know and did."""
        first = int(self._numbers[row]) * self._warps
        table = self._near[row]
        table[arrived, arrived] = self.now[first + arrived]
        table[released] = np.maximum(table[released], table[arrived].max(axis=0))
        far = [self._far[first + int(w)] for w in arrived if first + int(w) in self._far]
        if far:
            joined = np.maximum.reduce(far)
            for w in released:
                self._far[first + int(w)] = joined
        # A fence before a barrier counts for the warps behind it: "write, fence, bar.sync, atomic of one thread" is how
        # blocks publish results, and "atomic of one thread, bar.sync, fence, read" how they take them.
        for kept in (self._fenced, self._waiting):
            held = [kept[first + int(w)] for w in arrived if first + int(w) in kept]
            if held:
                joined = np.maximum.reduce(held)
                for w in released:
                    kept[first + int(w)] = joined
        self.now[first + arrived] += 1

    def meet_cluster(self, rows: Array, warps: int) -> None:
        """A barrier of all threads of a cluster, whose blocks are in ``rows``."""
        members = [int(self._numbers[row]) * self._warps + w for row in rows for w in range(warps)]
        joined = np.maximum.reduce([self._all(member) for member in members])
        for member in members:
            self._learn(member, joined)
        self.now[np.array(members)] += 1

    def meet_warps(self, chunk: Chunk, mask: Mask) -> None:
        """The active threads of every warp synchronise with one another."""
        rows, warps = np.nonzero(np.broadcast_to(_active_warps(chunk, mask), (chunk.blocks, chunk.warps)))
        self.now[chunk.numbers[rows] * self._warps + warps] += 1

    # ---- memory
    @property
    def idle(self) -> bool:
        """Whether no relaxed access can matter: nothing was fenced or released yet."""
        return not self._fenced and not self._locations

    def fence(self, warps: Array) -> None:
        """A fence of device scope by these warps of the grid."""
        for number in warps.tolist():
            waiting = self._waiting.pop(number, None)
            if waiting is not None:
                self._learn(number, waiting)
            self._fenced[number] = self._all(number)
            self._fence_time[number] = self.now[number]
            self.now[number] += 1

    def release(self, warp: int, address: Hashable, strong: bool, update: bool) -> None:
        """A store or update: ``strong`` releases everything, else what the last fence covers.

        A plain store (no ``update``) ends what earlier ones released there.
        """
        if strong:
            known = self._all(warp)
            self.now[warp] += 1
        else:
            known = self._fenced.get(warp)
        found = self._locations.get(address)
        if known is None:
            if not update:
                self._locations.pop(address, None)
            return
        if found is None or not update:
            self._locations[address] = _Location(known.copy())
        else:
            np.maximum(found.known, known, out=found.known)

    def acquire(self, warp: int, address: Hashable, strong: bool) -> None:
        """A load or update that sees what was released at the address: at once, or with the next fence."""
        found = self._locations.get(address)
        if found is None:
            return
        if strong:
            self._learn(warp, found.known)
            return
        waiting = self._waiting.get(warp)
        self._waiting[warp] = found.known.copy() if waiting is None else np.maximum(waiting, found.known)

    def _all(self, warp: int) -> Array:
        """Everything a warp knows, itself up to now included."""
        far = self._far.get(warp)
        known = np.zeros(self.now.size, np.int32) if far is None else far.copy()
        block, own = divmod(warp, self._warps)
        inside = known[block * self._warps : (block + 1) * self._warps]
        np.maximum(inside, self._near[self._row[block], own], out=inside)
        known[warp] = self.now[warp]
        return known

    def _learn(self, warp: int, known: Array) -> None:
        far = self._far.get(warp)
        self._far[warp] = known.copy() if far is None else np.maximum(far, known)
        block, own = divmod(warp, self._warps)
        table = self._near[self._row[block], own]
        np.maximum(table, known[block * self._warps : (block + 1) * self._warps], out=table)


def _active_warps(chunk: Chunk, mask: Mask) -> Array:
    return np.ones((1, chunk.warps), bool) if mask is None else chunk.active_warps(mask)
