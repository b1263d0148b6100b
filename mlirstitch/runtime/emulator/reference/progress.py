"""Finds out that nothing will ever change any more: threads wait in loops for what no thread is going to do.

The state of a chunk is what its threads are about to execute and the registers they hold; memory counts by its number
of changes. A state that comes back without a change of memory comes back for ever (Brent, "An improved Monte Carlo
factorization algorithm", BIT 20, 1980: keep one state, compare some steps, keep a later one twice as far apart).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import Mask

FIRST_SAMPLE = 256
"""Steps before the first state is kept."""
_COMPARED = 64
_LATE_STEPS = 64


class Progress:
    """Watches the steps of a chunk.

    ``late_until`` is the step up to which the threads go first that are furthest on; ``gave_way_at`` the number of
    changes when that was tried last.
    """

    def __init__(self, steps: int = 0) -> None:
        self.late_until = 0
        self.gave_way_at = -1
        self._next_sample = steps + FIRST_SAMPLE
        self._interval = FIRST_SAMPLE
        self._kept: tuple[int, bytes] | None = None
        self._compare_until = 0

    def give_way(self, steps: int, changes: int) -> None:
        """Let the threads that are furthest on go first for a while."""
        self.late_until = steps + _LATE_STEPS
        self.gave_way_at = changes
        self._interval = FIRST_SAMPLE
        self._next_sample = self.late_until + FIRST_SAMPLE
        self._kept = None

    def stalled(self, steps: int, changes: int, pending: Mapping[int, Mask], frame: Sequence[Any]) -> bool:
        """Whether the state is one that was there before."""
        if steps < self._next_sample and (self._kept is None or steps > self._compare_until):
            return False
        if self._kept is not None and steps <= self._compare_until:
            if changes != self._kept[0]:
                self._kept = None
                return False
            return _digest(pending, frame) == self._kept[1]
        self._kept = (changes, _digest(pending, frame))
        self._compare_until = steps + _COMPARED
        self._interval *= 2
        self._next_sample = steps + self._interval
        return False


def _digest(pending: Mapping[int, Mask], frame: Sequence[Any]) -> bytes:
    state = hashlib.blake2b(digest_size=16)
    for index in sorted(pending):
        mask = pending[index]
        state.update(index.to_bytes(4, "little"))
        state.update(b"*" if mask is None else np.ascontiguousarray(mask).tobytes())
    for value in frame:
        if isinstance(value, np.ndarray):
            state.update(np.ascontiguousarray(value).tobytes())
    return state.digest()
