"""Shared memory of thread blocks and local memory of threads, with the findings that need memory of the past.

Shared-memory races are looked for between warps: two accesses of the same place in one barrier interval, at least one
of them a write, from different warps of a block. Threads of one warp are not compared, for code that relies on
``shfl.sync`` or ``bar.warp.sync`` for their order, and atomics are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.clusters import OFFSET_MASK, RANK_SHIFT
from mlirstitch.runtime.emulator.reference.emit import Site

_MANY = np.int16(-1)
_BANKS = 32


class _Selection:
    """Which places an access touches: ``index`` into [blocks, elements], ``lanes`` of the values that go with it.

    ``warp`` is the number of the warp of each place plus one, or "many" where all threads of a block share the access.
    """

    def __init__(self, index: tuple[Any, Array], lanes: tuple[Any, ...] | None, warp: Array) -> None:
        self.index = index
        self.lanes = lanes
        self.warp = warp


class SharedMemory:
    """``size`` bytes for each block of the chunk. ``grain`` is the least width of any access, the unit of tags."""

    def __init__(
        self, chunk: Chunk, size: int, grain: int, checks: bool, tally: Tally | None, *, races: bool = True,
        cluster: int = 1,
    ) -> None:  # fmt: skip
        self._chunk = chunk
        self._size = size
        self._grain = grain
        self._tally = tally
        self._cluster = cluster
        self._stride = max(-(-size // 32) * 32, 32)
        self._bytes = np.zeros((chunk.blocks, self._stride), np.uint8)
        grains = self._stride // grain
        self._written = np.zeros((chunk.blocks, grains), bool) if checks else None
        races = races and checks and chunk.warps > 1 and cluster == 1
        self._writer = np.zeros((chunk.blocks, grains), np.int16) if races else None
        self._reader = np.zeros((chunk.blocks, grains), np.int16) if races else None
        self._lane_warp = (np.arange(chunk.threads) // WARP + 1).astype(np.int16)
        self._rows = np.arange(chunk.blocks)[:, None]

    def pass_barrier(self, rows: Array | None) -> None:
        """Start a new interval for the blocks that passed a barrier (None: all)."""
        for tags in (self._writer, self._reader):
            if tags is None:
                continue
            if rows is None:
                tags[...] = 0
            else:
                tags[rows] = 0

    # ---- accesses
    def load(self, site: Site, offsets: Array, mask: Mask) -> Sequence[Array]:
        """``site.count`` arrays (zeros for inactive threads)."""
        offsets = _moved(site, offsets)
        chosen = self._select(site, offsets, mask)
        shape = np.broadcast_shapes(offsets.shape, (self._chunk.blocks, 1))
        if mask is not None and chosen is not None and chosen.lanes is not None:
            shape = self._chunk.shape
        if chosen is None:
            return [np.zeros(shape, dtype) for dtype in site.dtypes]
        self._check_load(site, chosen)
        results: list[Array] = []
        for position, dtype in enumerate(site.dtypes):
            value = self._elements(dtype)[self._place(chosen, site, position)]
            if chosen.lanes is not None:
                full = np.zeros(shape, dtype)
                full[chosen.lanes] = value
                value = full
            results.append(value)
        self._count(site, offsets, mask)
        return results

    def store(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        """Write; where threads of a block write the same place, the last one wins."""
        offsets = _moved(site, offsets)
        threads = max(offsets.shape[1], *(value.shape[1] for value in values))
        chosen = self._select(site, np.broadcast_to(offsets, (offsets.shape[0], threads)), mask)
        if chosen is None:
            return
        for position, (value, dtype) in enumerate(zip(values, site.dtypes, strict=True)):
            if chosen.lanes is not None:
                value = self._chunk.full(value)[chosen.lanes]
            self._elements(dtype)[self._place(chosen, site, position)] = value
        self._check_store(site, chosen)
        self._count(site, offsets, mask)

    def store_async(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        """Write by ``cp.async``; here at once."""
        self.store(site, offsets, values, mask)

    def commit_async(self, mask: Mask) -> None:
        """Nothing is in flight here."""

    def wait_async(self, groups: int, all_groups: bool, mask: Mask) -> None:
        """Nothing is in flight here."""

    def resolve(self, site: Site, offsets: Array, mask: Mask) -> tuple[Array, Array]:
        """Flat elements and the flat index of every active thread in order, for atomics."""
        offsets = _moved(site, offsets)
        full = self._chunk.full(offsets)
        self._check_bounds(site, full, mask)
        stride = self._stride // site.width
        rows, inside = self._owners(site, full)
        index = (inside >> (site.width.bit_length() - 1)) + rows * stride
        picked = index.reshape(-1) if mask is None else index[self._chunk.full(mask)]
        if self._written is not None:
            per = site.width // self._grain
            for part in range(per):
                self._written.reshape(-1)[picked * per + part] = True
        self._count(site, offsets, mask)
        return self._elements(site.dtypes[0]).reshape(-1), picked

    def _elements(self, dtype: str) -> Array:
        return self._bytes.view(dtype)

    def _place(self, chosen: _Selection, site: Site, position: int) -> tuple[Any, Array]:
        rows, columns = chosen.index
        return rows, columns + position if position else columns

    def _select(self, site: Site, offsets: Array, mask: Mask) -> _Selection | None:
        """Places of the active threads; None if there are none. A finding for one out of bounds or misaligned."""
        shift = site.width.bit_length() - 1
        chunk = self._chunk
        if self._cluster > 1 and int(offsets.max()) >> RANK_SHIFT:
            full = np.ones(chunk.shape, bool) if mask is None else chunk.full(mask)
            rows, threads = np.nonzero(full)
            if not rows.size:
                return None
            self._check_bounds(site, chunk.full(offsets)[rows, threads], None, offsets, full)
            owners, inside = (v[rows, threads] for v in self._owners(site, chunk.full(offsets)))
            return _Selection((owners, inside >> shift), (rows, threads), self._lane_warp[threads])
        if mask is None:
            self._check_bounds(site, offsets, None)
            columns = offsets >> shift
            warp = self._lane_warp if offsets.shape[1] > 1 else self._everyone()
            if offsets.shape[0] == 1:
                return _Selection((slice(None), columns[0]), None, warp)
            return _Selection((self._rows, columns), None, np.broadcast_to(warp, columns.shape))
        if offsets.shape[0] == 1 and mask.shape[0] == 1:
            threads = np.nonzero(np.broadcast_to(mask[0], (chunk.threads,)))[0]
            if not threads.size:
                return None
            picked = np.broadcast_to(offsets[0], (chunk.threads,))[threads]
            self._check_bounds(site, picked, None, offsets, mask)
            return _Selection((slice(None), picked >> shift), (slice(None), threads), self._lane_warp[threads])
        rows, threads = np.nonzero(chunk.full(mask))
        if not rows.size:
            return None
        picked = chunk.full(offsets)[rows, threads]
        self._check_bounds(site, picked, None, offsets, mask)
        return _Selection((rows, picked >> shift), (rows, threads), self._lane_warp[threads])

    def _owners(self, site: Site, offsets: Array) -> tuple[Array, Array]:
        """Row of the block whose memory every thread addresses, and the offset there, [blocks, threads]."""
        rows = np.broadcast_to(self._rows, offsets.shape)
        if self._cluster == 1:
            return rows, offsets
        rank = offsets >> RANK_SHIFT
        if "shared::cluster" not in site.instruction.mnemonic and "shared" in site.instruction.modifiers:
            rank = np.zeros_like(rank)
        return np.where(rank > 0, rows // self._cluster * self._cluster + rank - 1, rows), offsets & OFFSET_MASK

    def _everyone(self) -> Array:
        return np.array([_MANY if self._chunk.warps > 1 else np.int16(1)])

    # ---- checks
    def _check_range(self, site: Site, offsets: Array, mask: Mask) -> None:
        """A finding for an access of an active thread out of bounds or misaligned; offsets without the constant."""
        self._check_bounds(site, self._chunk.full(_moved(site, offsets)), mask)

    def _check_bounds(
        self, site: Site, picked: Array, mask: Mask, offsets: Array | None = None, chosen: Mask = None
    ) -> None:
        if mask is not None:
            active = self._chunk.full(mask)
            offsets, chosen = picked, mask
            picked = self._chunk.full(picked)[active]
        if not picked.size:
            return
        width = site.bytes
        if self._cluster > 1 and "shared::cta" not in site.instruction.mnemonic:
            picked = np.where(picked >> RANK_SHIFT <= self._cluster, picked & OFFSET_MASK, picked)
        low, high = int(picked.min()), int(picked.max())
        misaligned = width > 1 and int(np.bitwise_or.reduce(picked, axis=None)) & (width - 1)
        if low < 0 or high + width > self._size or misaligned:
            self._fail_bounds(site, picked if offsets is None else offsets, chosen)

    def _fail_bounds(self, site: Site, offsets: Array, mask: Mask) -> NoReturn:
        full = self._chunk.full(offsets)
        active = np.ones(full.shape, bool) if mask is None else self._chunk.full(mask)
        width = site.bytes
        bad = active & ((full < 0) | (full + width > self._size) | (full & (width - 1) != 0))
        row, thread = (int(x[0]) for x in np.nonzero(bad))
        offset = int(full[row, thread])
        who = f"{self._chunk.describe(row, thread)} accesses {width} bytes at shared offset {offset}"
        if offset >= 0 and offset + width <= self._size:
            raise self._chunk.finding(site, f"{who}, not aligned to {width} bytes")
        raise self._chunk.finding(site, f"{who}, out of bounds of the {self._size} bytes of shared memory")

    def _grains(self, site: Site, chosen: _Selection) -> list[tuple[Any, Array]]:
        """Indices of the tags an access covers."""
        rows, columns = chosen.index
        per = site.width // self._grain
        return [(rows, columns * per + part if per > 1 or part else columns) for part in range(per * site.count)]

    def _check_load(self, site: Site, chosen: _Selection) -> None:
        if self._written is not None:
            for place in self._grains(site, chosen):
                known = self._written[place]
                if not known.all():
                    self._fail_at(site, chosen, ~known, "reads shared memory that nobody has written")
        if self._writer is None or self._reader is None:
            return
        for place in self._grains(site, chosen):
            writer = self._writer[place]
            clash = (writer != 0) & (writer != chosen.warp)
            if clash.any():
                self._fail_at(site, chosen, clash, "reads shared memory that another warp wrote since the last barrier")
            reader = self._reader[place]
            self._reader[place] = np.where((reader == 0) | (reader == chosen.warp), chosen.warp, _MANY)
            # Where threads of several warps read one place in the same instruction only the last tag was kept.
            several = self._reader[place] != chosen.warp
            if several.any():
                self._reader[_subset(place, several)] = _MANY

    def _check_store(self, site: Site, chosen: _Selection) -> None:
        if self._written is not None:
            for place in self._grains(site, chosen):
                self._written[place] = True
        if self._writer is None or self._reader is None:
            return
        for place in self._grains(site, chosen):
            reader, writer = self._reader[place], self._writer[place]
            clash = (reader != 0) & (reader != chosen.warp)
            if clash.any():
                self._fail_at(site, chosen, clash, "writes shared memory that another warp read since the last barrier")
            clash = (writer != 0) & (writer != chosen.warp)
            if not clash.any():
                self._writer[place] = chosen.warp
                clash = (self._writer[place] != chosen.warp) | (chosen.warp == _MANY)
            if clash.any():
                text = "writes shared memory that another warp wrote since the last barrier"
                self._fail_at(site, chosen, clash, text)

    def _fail_at(self, site: Site, chosen: _Selection, bad: Array, text: str) -> NoReturn:
        rows, columns = _subset(chosen.index, bad)
        row, column = int(rows[0]), int(columns[0])
        position = int(np.nonzero(bad)[-1][0])
        lanes = chosen.lanes
        thread = position if lanes is None else int(np.asarray(lanes[1])[position])
        who = self._chunk.describe(row, thread)
        raise self._chunk.finding(site, f"{who} {text}, at shared offset {column * site.width}")

    # ---- counting
    def _count(self, site: Site, offsets: Array, mask: Mask) -> None:
        tally = self._tally
        if tally is None:
            return
        requests = self._chunk.count_warps(mask)
        tally.shared_requests += requests
        wavefronts, least = count_wavefronts(self._chunk, site.bytes, offsets, mask)
        tally.shared_wavefronts += wavefronts
        tally.shared_conflicts += wavefronts - least


def _moved(site: Site, offsets: Array) -> Array:
    return offsets + site.offset if site.offset else offsets


def _subset(place: tuple[Any, Array], chosen: Array) -> tuple[Array, Array]:
    """The index pairs of ``place`` where ``chosen``, which has the shape of what ``place`` selects."""
    rows, columns = place
    if isinstance(rows, slice):
        row, position = np.nonzero(chosen)
        return row, columns[position]
    return np.broadcast_to(np.asarray(rows), chosen.shape)[chosen], np.broadcast_to(columns, chosen.shape)[chosen]


def count_wavefronts(chunk: Chunk, width: int, offsets: Array, mask: Mask) -> tuple[int, int]:
    """Wavefronts of an access and the least number for its width.

    A phase is a whole warp for widths up to 4 bytes, half of one for 8 and a quarter for 16; it takes as many
    wavefronts as the busiest of the 32 banks has different 4-byte words to deliver.
    """
    phases = max(width // 4, 1)
    if mask is None and offsets.shape[1] == 1:
        total = chunk.blocks * chunk.warps * phases
        return total, total
    shape = offsets.shape if mask is None else np.broadcast_shapes(offsets.shape, mask.shape)
    if shape[1] == 1:
        shape = (shape[0], chunk.threads)
    factor = chunk.blocks // shape[0]
    words = np.broadcast_to(offsets >> 2, shape)
    if mask is not None:
        words = np.where(mask, words, -1)
    lanes = WARP // phases
    words = chunk.by_warp(words, -1).reshape(-1, lanes)
    active = (words >= 0).any(axis=1)
    words = words[active]
    if phases > 1:
        words = np.where(words[:, :, None] < 0, -1, words[:, :, None] + np.arange(width // 4)).reshape(-1, WARP)
    words = np.sort(words, axis=1)
    fresh = words >= 0
    fresh[:, 1:] &= words[:, 1:] != words[:, :-1]
    phase = np.broadcast_to(np.arange(words.shape[0])[:, None], words.shape)
    busy = np.bincount((phase * _BANKS + words % _BANKS)[fresh], minlength=words.shape[0] * _BANKS)
    return int(busy.reshape(-1, _BANKS).max(axis=1).sum()) * factor, int(words.shape[0]) * factor


class LocalMemory:
    """``size`` bytes for each thread of the chunk."""

    def __init__(self, chunk: Chunk, size: int, checks: bool) -> None:
        self._chunk = chunk
        self._size = size
        self._stride = -(-size // 16) * 16
        self._bytes = np.zeros((chunk.lanes, self._stride), np.uint8)
        self._written = np.zeros((chunk.lanes, self._stride), bool) if checks else None
        self._thread = np.arange(chunk.lanes).reshape(chunk.shape)

    def load(self, site: Site, offsets: Array, mask: Mask) -> Sequence[Array]:
        """``site.count`` arrays of every thread (zeros for inactive ones)."""
        threads, picked = self._select(site, offsets, mask)
        if self._written is not None:
            known = self._written[threads, picked]
            for part in range(1, site.bytes):
                known = known & self._written[threads, picked + part]
            if not known.all():
                number = int(threads[~known][0])
                who = self._chunk.describe(*divmod(number, self._chunk.threads))
                raise self._chunk.finding(site, f"{who} reads local memory that it has not written")
        results: list[Array] = []
        for position, dtype in enumerate(site.dtypes):
            value = self._bytes.view(dtype)[threads, picked // site.width + position]
            if mask is not None:
                full = np.zeros(self._chunk.shape, dtype)
                full[self._chunk.full(mask)] = value
                value = full
            results.append(value.reshape(self._chunk.shape))
        return results

    def store(self, site: Site, offsets: Array, values: Sequence[Array], mask: Mask) -> None:
        """Write."""
        threads, picked = self._select(site, offsets, mask)
        for position, (value, dtype) in enumerate(zip(values, site.dtypes, strict=True)):
            full = self._chunk.full(value)
            chosen = full.reshape(-1) if mask is None else full[self._chunk.full(mask)]
            self._bytes.view(dtype)[threads, picked // site.width + position] = chosen
        if self._written is not None:
            for part in range(site.bytes):
                self._written[threads, picked + part] = True

    def _select(self, site: Site, offsets: Array, mask: Mask) -> tuple[Array, Array]:
        full = self._chunk.full(_moved(site, offsets))
        if mask is None:
            threads, picked = self._thread.reshape(-1), full.reshape(-1)
        else:
            active = self._chunk.full(mask)
            threads, picked = self._thread[active], full[active]
        width = site.bytes
        bad = (picked < 0) | (picked + width > self._size) | (picked & (width - 1) != 0)
        if bad.any():
            first = int(np.nonzero(bad)[0][0])
            who = self._chunk.describe(*divmod(int(threads[first]), self._chunk.threads))
            text = f"{who} accesses {width} bytes at local offset {int(picked[first])}"
            raise self._chunk.finding(site, f"{text}, misaligned or out of bounds of its {self._size} bytes")
        return threads, picked
