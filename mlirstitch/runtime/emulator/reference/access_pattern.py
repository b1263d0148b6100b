"""What the addresses of one access have in common: found out once, used by all accesses at a constant distance.

Unrolled loops and vector code access ``[%rd1]``, ``[%rd1+256]``, ``[%rd1+512]``: range, alignment, element numbers and
sectors follow from those of ``%rd1``.
"""

from __future__ import annotations

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask

_RAMPS: dict[int, Array] = {}
_RAMP_LENGTH = 1 << 15


class AccessPattern:
    """Addresses of the active threads.

    Attributes:
        addresses: of the access, [blocks | 1, threads | 1]; the offset of an access comes on top.
        mask: active threads.
        chosen: ``mask`` in the shape of ``addresses``; None if all are active.
        picked: active addresses, in the shape of ``addresses`` or flat.
        size: how many there are; nothing below is valid if none.
        low, high: least and greatest address.
        step: constant distance of the addresses in order of block and thread if they have one and all threads are
            active, else 0.
        spread: or of the distances from ``low``: accesses are aligned if it and ``low`` plus offset are.
        lanes, warps: active threads and warps with one.
        key: the array by which the pattern is found again.
    """

    def __init__(self, chunk: Chunk, addresses: Array, mask: Mask, chosen: Array | None) -> None:
        self.addresses = addresses
        self.mask = mask
        self.chosen = chosen
        self._chunk = chunk
        self._indices: dict[int, Array] = {}
        self._sectors: dict[tuple[int, int], int] = {}
        self._distances: Array | None = None
        self.key: Array = addresses
        self.picked = addresses if chosen is None else addresses[chosen]
        self.size = int(self.picked.size)
        self.lanes = chunk.count_lanes(mask)
        self.warps = chunk.count_warps(mask)
        self.step = self._constant_step() if mask is None and addresses.shape == chunk.shape else 0
        if self.step:
            flat = self.picked.reshape(-1)
            self.low, self.high, self.spread = int(flat[0]), int(flat[-1]), self.step
        elif self.size:
            self.low = int(self.picked.min())
            distances = self._distances = self.picked - self.low
            self.high = self.low + int(distances.max())
            self.spread = int(np.bitwise_or.reduce(distances, axis=None))

    def _constant_step(self) -> int:
        flat = self.addresses.reshape(-1)
        if flat.size < 2:
            return 0
        first = int(flat[0])
        step = int(flat[1]) - first
        if step <= 0 or step > 64 or int(flat[-1]) - first != step * (flat.size - 1):
            return 0
        return step if (flat - first == _ramp(step, flat.size)).all() else 0

    def index(self, width: int) -> Array:
        """Distances from ``low`` in elements of ``width`` bytes."""
        found = self._indices.get(width)
        if found is None:
            if self._distances is None:
                self._distances = self.picked - self.low
            shift = width.bit_length() - 1
            found = self._indices[width] = self._distances >> shift if shift else self._distances
        return found

    def sectors(self, width: int, offset: int) -> int:
        """Distinct 32-byte sectors of every warp, added up; ``width`` bytes a thread."""
        phase = offset & 31
        key = (phase, width)
        found = self._sectors.get(key)
        if found is None:
            chunk = self._chunk
            if self.step == width and chunk.threads % WARP == 0:
                start = (self.low + phase) & 31
                found = chunk.blocks * chunk.warps * (((start + WARP * width - 1) >> 5) + 1)
            else:
                found = count_sectors(chunk, self.addresses + phase if phase else self.addresses, self.mask)
            self._sectors[key] = found
        return found


def _ramp(width: int, count: int) -> Array:
    ramp = _RAMPS.get(width)
    if ramp is None or ramp.size < count:
        ramp = np.arange(max(count, _RAMP_LENGTH), dtype=np.int64) * width
        _RAMPS[width] = ramp
    return ramp[:count]


def count_sectors(chunk: Chunk, addresses: Array, mask: Mask) -> int:
    """Distinct 32-byte sectors of every warp, added up. Accesses are aligned, so each lies in one sector."""
    if mask is None:
        factor = chunk.blocks // addresses.shape[0]
        if addresses.shape[1] == 1:
            return addresses.shape[0] * chunk.warps * factor
        sectors = addresses >> 5
        if chunk.threads % WARP:
            sectors = np.pad(sectors, ((0, 0), (0, chunk.warps * WARP - chunk.threads)), mode="edge")
        return _distinct(sectors.reshape(-1, WARP)) * factor
    shape = np.broadcast_shapes(addresses.shape, mask.shape)
    factor = chunk.blocks // shape[0]
    if addresses.shape[1] == 1:
        return chunk.count_warps(mask)
    sectors = chunk.by_warp(np.where(mask, addresses >> 5, -1), -1).reshape(-1, WARP)
    return (_distinct(sectors) - int(np.count_nonzero((sectors == -1).any(axis=1)))) * factor


def _distinct(rows: Array) -> int:
    """Distinct values of every row, added up."""
    steps = rows[:, 1:] - rows[:, :-1]
    if not (steps >= 0).all():
        ordered = np.sort(rows, axis=1)
        steps = ordered[:, 1:] - ordered[:, :-1]
    return rows.shape[0] + int(np.count_nonzero(steps))
