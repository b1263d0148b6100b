"""``cp.async``: copies that are done when the thread has waited for their group, and seen after a barrier behind that.

The data is copied at once; what is kept is which places a copy may still be filling, so that an access too early is
found. Groups are numbered for every thread: a copy belongs to the group the thread's next ``commit_group`` closes.
"""

from __future__ import annotations

import numpy as np

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.history import History
from mlirstitch.runtime.emulator.reference.lanes import Lanes


class AsyncCopies:
    """Copies in flight into the shared memory of a chunk; places are grains, ``stride`` to a block."""

    def __init__(self, chunk: Chunk, stride: int, grain: int, history: History) -> None:
        self._chunk = chunk
        self._stride = stride
        self._grain = grain
        self._history = history
        self._committed = np.zeros(chunk.shape, np.int32)
        places = chunk.blocks * stride // grain
        self._owner = np.zeros(places, np.int32)
        self._group = np.zeros(places, np.int32)
        self._instruction: Instruction | None = None
        self._any = False

    def start(self, site: Site, lanes: Lanes, first: Array) -> None:
        """Copies by these threads to bytes from ``first`` have started."""
        places = self._places(site, first)
        self._owner[places] = lanes.threads[:, None] + 1
        self._group[places] = self._committed[lanes.rows, lanes.threads][:, None]
        self._instruction = site.instruction
        self._any = True

    def commit(self, mask: Mask) -> None:
        """``cp.async.commit_group``."""
        if mask is None:
            self._committed += 1
        else:
            self._committed[self._chunk.full(mask)] += 1

    def wait(self, groups: int, all_groups: bool, mask: Mask) -> None:
        """``cp.async.wait_group``: but for the last ``groups``; ``wait_all`` includes copies in no group yet."""
        if not self._any:
            return
        places = np.nonzero(self._owner)[0]
        rows, threads = places * self._grain // self._stride, self._owner[places] - 1
        active = np.ones(self._chunk.shape, bool) if mask is None else self._chunk.full(mask)
        done = self._group[places] < self._committed[rows, threads] - groups
        done = active[rows, threads] & (done | all_groups)
        places, rows, threads = places[done], rows[done], threads[done]
        self._owner[places] = 0
        chunk = self._chunk
        self._history.renew(places, chunk.numbers[rows] * chunk.warps + threads // WARP, threads % WARP)
        self._any = bool(self._owner.any())

    def check(self, site: Site, lanes: Lanes, first: Array) -> None:
        """A finding for an access to a place that a copy may still be filling."""
        if not self._any:
            return
        places = self._places(site, first)
        busy = self._owner[places] != 0
        if busy.any():
            entry, part = (int(v[0]) for v in np.nonzero(busy))
            row, owner = int(lanes.rows[entry]), int(self._owner[places[entry, part]]) - 1
            who = self._chunk.describe(row, int(lanes.threads[entry]))
            line = 0 if self._instruction is None else self._instruction.line
            text = (
                f"{who} accesses shared offset {int(lanes.address[entry])}, which an asynchronous copy of "
                f"thread {self._chunk.describe_thread(owner)} (PTX line {line}) may still be filling: that thread has "
                "not waited for it"
            )
            raise self._chunk.finding(site, text)

    def _places(self, site: Site, first: Array) -> Array:
        return (first // self._grain)[:, None] + np.arange(max(site.bytes // self._grain, 1))
