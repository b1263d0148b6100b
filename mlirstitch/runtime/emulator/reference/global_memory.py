"""Loads, stores and atomics of a chunk on global memory; every access is checked against its allocation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.reference.access_pattern import AccessPattern
from mlirstitch.runtime.emulator.reference.allocations import Allocation, GlobalMemory
from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask, narrow_mask
from mlirstitch.runtime.emulator.reference.emit import Site

_WIDE = {2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_KEPT_PATTERNS = 8


class GlobalAccess:
    """Loads and stores of the threads of a chunk. Addresses do not contain the constant offset of the instruction."""

    def __init__(self, chunk: Chunk, memory: GlobalMemory, tally: Tally | None) -> None:
        self._chunk = chunk
        self._memory = memory
        self._tally = tally
        self._patterns: dict[tuple[int, int, tuple[int, ...]], AccessPattern] = {}

    def _pattern(self, addresses: Array, mask: Mask, shape: tuple[int, ...]) -> AccessPattern:
        """The pattern of an access spread over ``shape``; kept while it is among the last few that were used.

        Arrays are identified by their address in memory, which is safe as the patterns hold on to them.
        """
        key = (id(addresses), id(mask), shape)
        found = self._patterns.get(key)
        if found is not None:
            return found
        spread = addresses if addresses.shape == shape else np.broadcast_to(addresses, shape)
        chosen = None if mask is None else narrow_mask(mask, shape)
        found = AccessPattern(self._chunk, spread, mask, chosen)
        found.key = addresses
        if len(self._patterns) >= _KEPT_PATTERNS:
            del self._patterns[next(iter(self._patterns))]
        self._patterns[key] = found
        return found

    # ---- loads
    def load(self, site: Site, addresses: Array, mask: Mask) -> Sequence[Array]:
        """``site.count`` arrays of the shape of ``addresses`` (zeros for inactive threads)."""
        pattern = self._pattern(addresses, mask, addresses.shape)
        if not pattern.size:
            return [np.zeros(addresses.shape, dtype) for dtype in site.dtypes]
        allocation = self._allocation(site, pattern)
        if allocation is None:
            values = self._gather_apart(site, pattern)
        elif pattern.step == site.bytes:
            values = _read_run(allocation, site, pattern)
        else:
            values = _read(allocation, site, pattern.low + site.offset, pattern.index(_unit(site)))
        self._count_load(site, pattern, allocation)
        if pattern.chosen is None:
            return values
        results: list[Array] = []
        for value, dtype in zip(values, site.dtypes, strict=True):
            full = np.zeros(addresses.shape, dtype)
            full[pattern.chosen] = value
            results.append(full)
        return results

    def _allocation(self, site: Site, pattern: AccessPattern) -> Allocation | None:
        """The allocation all active threads access, None if there are several; a finding if one access is faulty."""
        low, width = pattern.low + site.offset, site.bytes
        allocation = self._memory.find(low)
        if allocation is None or pattern.high + site.offset + width > allocation.end:
            return None
        if (low | pattern.spread) & (width - 1):
            self._fail(site, pattern)
        return allocation

    def _gather_apart(self, site: Site, pattern: AccessPattern) -> Sequence[Array]:
        flat = pattern.picked.reshape(-1) + site.offset
        owners = self._owners(site, flat, pattern)
        results = [np.zeros(flat.shape, dtype) for dtype in site.dtypes]
        for owner in np.unique(owners):
            chosen = owners == owner
            inside = flat[chosen]
            low = int(inside.min())
            index = (inside - low) >> (_unit(site).bit_length() - 1)
            values = _read(self._memory.allocations[owner], site, low, index)
            for result, value in zip(results, values, strict=True):
                result[chosen] = value
        return [result.reshape(pattern.picked.shape) for result in results]

    def _owners(self, site: Site, flat: Array, pattern: AccessPattern) -> Array:
        """Number of the allocation of every address; a finding if one lies in none or is misaligned."""
        bases, ends = self._memory.bounds()
        owners = np.searchsorted(bases, flat, side="right") - 1
        width = site.bytes
        if not bases.size or ((owners < 0) | (flat + width > ends[owners]) | (flat & (width - 1) != 0)).any():
            self._fail(site, pattern)
        return owners

    def _count_load(self, site: Site, pattern: AccessPattern, allocation: Allocation | None) -> None:
        tally = self._tally
        if tally is None:
            return
        amount = pattern.lanes * site.bytes
        tally.bytes_loaded += amount
        tally.load_requests += pattern.warps
        tally.sectors_loaded += pattern.sectors(site.bytes, site.offset)
        if allocation is not None:
            allocation.loaded += amount
        else:
            for owner, lanes in self._lanes_by_owner(site, pattern):
                owner.loaded += lanes * site.bytes

    def _lanes_by_owner(self, site: Site, pattern: AccessPattern) -> list[tuple[Allocation, int]]:
        full = self._chunk.full(pattern.addresses) + site.offset
        flat = full.reshape(-1) if pattern.mask is None else full[self._chunk.full(pattern.mask)]
        bases, _ = self._memory.bounds()
        owners, lanes = np.unique(np.searchsorted(bases, flat, side="right") - 1, return_counts=True)
        return [(self._memory.allocations[int(o)], int(n)) for o, n in zip(owners, lanes, strict=True)]

    # ---- stores
    def store(self, site: Site, addresses: Array, values: Sequence[Array], mask: Mask) -> None:
        """Write; where threads write the same place, the last one in order of block and thread wins."""
        shapes = [addresses.shape, *(value.shape for value in values)]
        if mask is not None:
            shapes.append(mask.shape)
        shape = np.broadcast_shapes(*shapes)
        pattern = self._pattern(addresses, mask, shape)
        if not pattern.size:
            return
        allocation = self._allocation(site, pattern)
        if allocation is not None and pattern.step == site.bytes:
            self._check_writable(site, allocation)
            _write_run(allocation, site, pattern, values)
        elif allocation is not None:
            self._check_writable(site, allocation)
            chosen = [_pick(value, shape, pattern.chosen) for value in values]
            _write(allocation, site, pattern.low + site.offset, pattern.index(_unit(site)).reshape(-1), chosen)
        else:
            self._scatter_apart(site, pattern, [_pick(value, shape, pattern.chosen) for value in values])
        self._count_store(site, pattern, allocation)

    def _scatter_apart(self, site: Site, pattern: AccessPattern, values: Sequence[Array]) -> None:
        flat = pattern.picked.reshape(-1) + site.offset
        owners = self._owners(site, flat, pattern)
        for owner in np.unique(owners):
            allocation = self._memory.allocations[owner]
            self._check_writable(site, allocation)
            chosen = owners == owner
            inside = flat[chosen]
            low = int(inside.min())
            index = (inside - low) >> (_unit(site).bit_length() - 1)
            _write(allocation, site, low, index, [value[chosen] for value in values])

    def _check_writable(self, site: Site, allocation: Allocation) -> None:
        if not allocation.writable:
            raise self._chunk.finding(site, f"writes to {allocation.describe()}, which is read-only")

    def _count_store(self, site: Site, pattern: AccessPattern, allocation: Allocation | None) -> None:
        tally = self._tally
        if tally is None:
            return
        amount = pattern.lanes * site.bytes
        tally.bytes_stored += amount
        tally.store_requests += pattern.warps
        tally.sectors_stored += pattern.sectors(site.bytes, site.offset)
        if allocation is not None:
            allocation.stored += amount
        else:
            for owner, lanes in self._lanes_by_owner(site, pattern):
                owner.stored += lanes * site.bytes

    def _check_range(self, site: Site, addresses: Array, mask: Mask) -> None:
        """A finding for an access of an active thread out of bounds, or misaligned."""
        pattern = self._pattern(addresses, mask, self._chunk.shape)
        if not pattern.size or self._allocation(site, pattern) is not None:
            return
        self._owners(site, pattern.picked.reshape(-1) + site.offset, pattern)

    # ---- atomics
    def resolve(self, site: Site, addresses: Array, mask: Mask) -> list[tuple[Array, Array, Array]]:
        """For every allocation touched: its elements, the places of active threads there, and which threads they are.

        Threads are numbered among the active ones, in order of block and thread.
        """
        pattern = self._pattern(addresses, mask, self._chunk.shape)
        flat = pattern.picked.reshape(-1) + site.offset
        owners = self._owners(site, flat, pattern)
        found: list[tuple[Array, Array, Array]] = []
        for owner in np.unique(owners):
            allocation = self._memory.allocations[owner]
            self._check_writable(site, allocation)
            chosen = np.nonzero(owners == owner)[0]
            elements, start = allocation.view(site.dtypes[0])
            found.append((elements, (flat[chosen] - start) >> (site.width.bit_length() - 1), chosen))
            allocation.loaded += chosen.size * site.bytes
            allocation.stored += chosen.size * site.bytes
        if self._tally is not None:
            self._tally.atomic_requests += pattern.warps
            self._tally.bytes_loaded += pattern.lanes * site.bytes
            self._tally.bytes_stored += pattern.lanes * site.bytes
            self._tally.sectors_stored += pattern.sectors(site.bytes, site.offset)
        return found

    # ---- findings
    def _fail(self, site: Site, pattern: AccessPattern) -> NoReturn:
        """Name the first thread whose access is out of bounds or misaligned."""
        full = self._chunk.full(pattern.addresses) + site.offset
        active = np.ones(full.shape, bool) if pattern.mask is None else self._chunk.full(pattern.mask)
        width = site.bytes
        bases, ends = self._memory.bounds()
        owners = np.searchsorted(bases, full, side="right") - 1
        outside = owners < 0 if bases.size else np.ones(full.shape, bool)
        if bases.size:
            outside |= full + width > ends[owners]
        bad = active & (outside | (full & (width - 1) != 0))
        row, thread = (int(v[0]) for v in np.nonzero(bad))
        address = int(full[row, thread])
        verb = {"st": "writes", "atom": "updates", "red": "updates"}.get(site.instruction.op, "reads")
        who = f"{self._chunk.describe(row, thread)} {verb} {width} bytes at {address:#x}"
        if outside[row, thread]:
            raise self._chunk.finding(site, f"{who}, out of bounds: {self._memory.nearest(address)}")
        allocation = self._memory.allocations[int(owners[row, thread])]
        raise self._chunk.finding(site, f"{who}, not aligned to {width} bytes: in {allocation.describe()}")


def _pick(value: Array, shape: tuple[int, ...], chosen: Array | None) -> Array:
    """Values of the active threads, flat."""
    spread = value if value.shape == shape else np.broadcast_to(value, shape)
    return spread.reshape(-1) if chosen is None else spread[chosen]


def _unit(site: Site) -> int:
    """Bytes of the elements in which an access is counted: all of a thread's at once if numpy has such a type."""
    return site.bytes if site.count > 1 and site.bytes in _WIDE else site.width


def _elements(allocation: Allocation, dtype: str, address: int) -> Array:
    """Elements from an aligned address to the end of the allocation."""
    elements, start = allocation.view(dtype)
    return elements[(address - start) // np.dtype(dtype).itemsize :]


def _read(allocation: Allocation, site: Site, low: int, index: Array) -> Sequence[Array]:
    """Gather; ``index`` counts units of :func:`_unit` from address ``low``."""
    dtype = site.dtypes[0]
    if site.count == 1:
        return (_elements(allocation, dtype, low).take(index),)
    wide = _WIDE.get(site.bytes)
    if wide is None:
        elements = _elements(allocation, dtype, low)
        return [elements.take(index + k).view(kind) for k, kind in enumerate(site.dtypes)]
    values = _elements(allocation, wide, low).take(index)
    parts = np.ascontiguousarray(values.reshape(-1).view(dtype).reshape(-1, site.count).T)
    return [part.view(kind).reshape(index.shape) for part, kind in zip(parts, site.dtypes, strict=True)]


def _read_run(allocation: Allocation, site: Site, pattern: AccessPattern) -> Sequence[Array]:
    """Copy a contiguous run."""
    dtype, shape = site.dtypes[0], pattern.addresses.shape
    block = _elements(allocation, dtype, pattern.low + site.offset)[: pattern.size * site.count]
    if site.count == 1:
        return (block.reshape(shape).copy(),)
    columns = np.ascontiguousarray(block.reshape(-1, site.count).T)
    return [column.view(kind).reshape(shape) for column, kind in zip(columns, site.dtypes, strict=True)]


def _write_run(allocation: Allocation, site: Site, pattern: AccessPattern, values: Sequence[Array]) -> None:
    """Fill a contiguous run."""
    dtype, shape = site.dtypes[0], pattern.addresses.shape
    block = _elements(allocation, dtype, pattern.low + site.offset)[: pattern.size * site.count]
    columns = block.reshape(*shape, site.count)
    for position, value in enumerate(values):
        columns[:, :, position] = value.view(dtype)


def _write(allocation: Allocation, site: Site, low: int, index: Array, values: Sequence[Array]) -> None:
    """Scatter; ``index`` counts units of :func:`_unit` from address ``low``."""
    dtype = site.dtypes[0]
    wide = _WIDE.get(site.bytes)
    if site.count > 1 and wide is not None:
        joined = np.empty((index.size, site.count), dtype)
        for position, value in enumerate(values):
            joined[:, position] = value.view(dtype)
        _elements(allocation, wide, low)[index] = joined.view(wide)[:, 0]
        return
    elements = _elements(allocation, dtype, low)
    for position, value in enumerate(values):
        elements[index + position if position else index] = value.view(dtype)
