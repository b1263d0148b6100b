"""Global memory: one allocation for every array argument and module table, every access checked against its bounds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import NoReturn

import numpy as np

from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask, narrow_mask
from mlirstitch.runtime.emulator.reference.emit import Site

_FIRST_ADDRESS = 1 << 32
_GUARD = 1 << 16
_PLACE = 256
_WIDE = {2: "u2", 4: "u4", 8: "u8", 16: "c16"}
_RAMPS: dict[int, Array] = {}


class Allocation:
    """``size`` bytes at device address ``base``, backed by the bytes of a numpy array."""

    def __init__(self, name: str, base: int, raw: Array, writable: bool, argument: int) -> None:
        self.name = name
        self.base = base
        self.size = int(raw.size)
        self.end = base + self.size
        self.raw = raw
        self.writable = writable
        self.argument = argument
        self.loaded = 0
        self.stored = 0
        self._views: dict[str, tuple[Array, int]] = {}

    def view(self, dtype: str) -> tuple[Array, int]:
        """Elements of ``dtype`` and the address of the first one that is aligned to its size."""
        found = self._views.get(dtype)
        if found is None:
            width = np.dtype(dtype).itemsize
            skip = -self.base % width
            usable = max(self.size - skip, 0) // width * width
            found = self.raw[skip : skip + usable].view(dtype), self.base + skip
            self._views[dtype] = found
        return found

    def describe(self) -> str:
        """Name, size and address range."""
        return f"{self.name} of {self.size} bytes at {self.base:#x}"


class GlobalMemory:
    """The allocations of a launch, far enough apart that a stray access meets none of its neighbours."""

    def __init__(self) -> None:
        self.allocations: list[Allocation] = []
        self._bases: list[int] = []
        self._next = _FIRST_ADDRESS

    def add(self, name: str, array: Array, argument: int = -1) -> Allocation:
        """Map a C-contiguous array.

        Its address has the phase it would have on a device that aligns whole allocations to 256 bytes: a view keeps its
        offset in the array it is cut from, so misaligned vector accesses show as there.
        """
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        pointer = array.__array_interface__["data"][0]
        start = owner.__array_interface__["data"][0]
        phase = (pointer - start + start % 16) % _PLACE
        raw = array.reshape(-1).view(np.uint8) if array.size else np.zeros(0, np.uint8)
        allocation = Allocation(name, self._next + phase, raw, bool(array.flags.writeable), argument)
        self._next = -(-(allocation.end + _GUARD) // _PLACE) * _PLACE
        self.allocations.append(allocation)
        self._bases.append(allocation.base)
        return allocation

    def find(self, address: int) -> Allocation | None:
        """The allocation that starts last at or before ``address``."""
        position = bisect_right(self._bases, address) - 1
        return self.allocations[position] if position >= 0 else None


class GlobalAccess:
    """Loads and stores of the threads of a chunk."""

    def __init__(self, chunk: Chunk, memory: GlobalMemory, tally: Tally | None) -> None:
        self._chunk = chunk
        self._memory = memory
        self._tally = tally

    # ---- loads
    def load(self, site: Site, addresses: Array, mask: Mask) -> Sequence[Array]:
        """``site.count`` arrays of the shape of ``addresses`` (zeros for inactive threads)."""
        if mask is None:
            if addresses.shape == self._chunk.shape and addresses.size > 1:
                run = self._run(site, addresses)
                if run is not None:
                    return self._load_run(site, addresses, *run)
            values, allocation = self._gather(site, addresses, addresses, None)
            self._count_load(site, addresses, None, allocation)
            return values
        chosen = narrow_mask(mask, addresses.shape)
        picked = addresses[chosen]
        if not picked.size:
            return [np.zeros(addresses.shape, dtype) for dtype in site.dtypes]
        values, allocation = self._gather(site, picked, addresses, mask)
        self._count_load(site, addresses, mask, allocation)
        results: list[Array] = []
        for value, dtype in zip(values, site.dtypes, strict=True):
            full = np.zeros(addresses.shape, dtype)
            full[chosen] = value
            results.append(full)
        return results

    def _run(self, site: Site, addresses: Array) -> tuple[Allocation, int] | None:
        """Allocation and first address if all threads together access one contiguous, aligned run inside it."""
        flat = addresses.reshape(-1)
        first = int(flat[0])
        width, count = site.bytes, flat.size
        if int(flat[-1]) - first != width * (count - 1) or int(flat[1]) - first != width or first & (width - 1):
            return None
        allocation = self._memory.find(first)
        if allocation is None or first + width * count > allocation.end:
            return None
        ramp = _ramp(width, count)
        return (allocation, first) if (flat - first == ramp).all() else None

    def _load_run(self, site: Site, addresses: Array, allocation: Allocation, first: int) -> Sequence[Array]:
        dtype = site.dtypes[0]
        elements, start = allocation.view(dtype)
        begin = (first - start) // site.width
        count = addresses.size * site.count
        block = elements[begin : begin + count]
        if self._tally is not None:
            self._tally.bytes_loaded += addresses.size * site.bytes
            self._tally.load_requests += self._chunk.blocks * self._chunk.warps
            self._tally.sectors_loaded += self._run_sectors(site, addresses, first)
            allocation.loaded += addresses.size * site.bytes
        if site.count == 1:
            return (block.reshape(addresses.shape).copy(),)
        columns = np.ascontiguousarray(block.reshape(-1, site.count).T)
        return [
            column.reshape(addresses.shape) if kind == dtype else column.view(kind).reshape(addresses.shape)
            for column, kind in zip(columns, site.dtypes, strict=True)
        ]

    def _run_sectors(self, site: Site, addresses: Array, first: int) -> int:
        if self._chunk.threads % WARP:
            return count_sectors(self._chunk, addresses, None)
        phase = first & 31
        return self._chunk.blocks * self._chunk.warps * (((phase + WARP * site.bytes - 1) >> 5) + 1)

    def _gather(
        self, site: Site, picked: Array, addresses: Array, mask: Mask
    ) -> tuple[Sequence[Array], Allocation | None]:
        """Values at ``picked`` (any shape) and the allocation they all lie in, None if several."""
        low, high = int(picked.min()), int(picked.max())
        allocation = self._memory.find(low)
        width = site.bytes
        if allocation is None or high + width > allocation.end:
            return self._gather_apart(site, picked, addresses, mask), None
        if width > 1 and int(np.bitwise_or.reduce(picked, axis=None)) & (width - 1):
            self._fail(site, addresses, mask)
        return _read(allocation, site, picked), allocation

    def _gather_apart(self, site: Site, picked: Array, addresses: Array, mask: Mask) -> Sequence[Array]:
        flat = picked.reshape(-1)
        owners = self._owners(site, flat, addresses, mask)
        results = [np.zeros(flat.shape, dtype) for dtype in site.dtypes]
        for owner in np.unique(owners):
            chosen = owners == owner
            for result, value in zip(results, _read(self._memory.allocations[owner], site, flat[chosen]), strict=True):
                result[chosen] = value
        return [result.reshape(picked.shape) for result in results]

    def _owners(self, site: Site, flat: Array, addresses: Array, mask: Mask) -> Array:
        """Number of the allocation of every address; a finding if one lies in none or is misaligned."""
        allocations = self._memory.allocations
        bases = np.array([a.base for a in allocations], np.int64)
        ends = np.array([a.end for a in allocations], np.int64)
        owners = np.searchsorted(bases, flat, side="right") - 1
        width = site.bytes
        if not allocations or ((owners < 0) | (flat + width > ends[owners]) | (flat & (width - 1) != 0)).any():
            self._fail(site, addresses, mask)
        return owners

    def _count_load(self, site: Site, addresses: Array, mask: Mask, allocation: Allocation | None) -> None:
        tally = self._tally
        if tally is None:
            return
        amount = self._chunk.count_lanes(mask) * site.bytes
        tally.bytes_loaded += amount
        tally.load_requests += self._chunk.count_warps(mask)
        tally.sectors_loaded += count_sectors(self._chunk, addresses, mask)
        if allocation is not None:
            allocation.loaded += amount
        else:
            for owner, lanes in self._lanes_by_owner(addresses, mask):
                owner.loaded += lanes * site.bytes

    def _lanes_by_owner(self, addresses: Array, mask: Mask) -> list[tuple[Allocation, int]]:
        full = self._chunk.full(addresses)
        flat = full.reshape(-1) if mask is None else full[self._chunk.full(mask)]
        bases = np.array([a.base for a in self._memory.allocations], np.int64)
        owners, lanes = np.unique(np.searchsorted(bases, flat, side="right") - 1, return_counts=True)
        return [(self._memory.allocations[int(o)], int(n)) for o, n in zip(owners, lanes, strict=True)]

    # ---- stores
    def store(self, site: Site, addresses: Array, values: Sequence[Array], mask: Mask) -> None:
        """Write; where threads write the same place, the last one in order of block and thread wins."""
        shapes = [addresses.shape, *(value.shape for value in values)]
        if mask is not None:
            shapes.append(mask.shape)
        shape = np.broadcast_shapes(*shapes)
        spread = addresses if addresses.shape == shape else np.broadcast_to(addresses, shape)
        if mask is None:
            run = self._run(site, spread) if shape == self._chunk.shape and spread.size > 1 else None
            if run is not None:
                self._store_run(site, spread, values, *run)
                return
            picked = spread.reshape(-1)
            chosen = [np.broadcast_to(value, shape).reshape(-1) for value in values]
        else:
            active = np.broadcast_to(mask, shape)
            picked = spread[active]
            if not picked.size:
                return
            chosen = [np.broadcast_to(value, shape)[active] for value in values]
        low, high = int(picked.min()), int(picked.max())
        allocation = self._memory.find(low)
        width = site.bytes
        if allocation is None or high + width > allocation.end:
            allocation = None
            owners = self._owners(site, picked, addresses, mask)
            for owner in np.unique(owners):
                inside = owners == owner
                target = self._memory.allocations[owner]
                self._check_writable(site, target)
                _write(target, site, picked[inside], [value[inside] for value in chosen])
        else:
            if width > 1 and int(np.bitwise_or.reduce(picked)) & (width - 1):
                self._fail(site, addresses, mask)
            self._check_writable(site, allocation)
            _write(allocation, site, picked, chosen)
        self._count_store(site, spread, addresses, mask, allocation)

    def _store_run(
        self, site: Site, addresses: Array, values: Sequence[Array], allocation: Allocation, first: int
    ) -> None:
        self._check_writable(site, allocation)
        elements, start = allocation.view(site.dtypes[0])
        begin = (first - start) // site.width
        count = addresses.size * site.count
        block = elements[begin : begin + count].reshape(*addresses.shape, site.count)
        for position, (value, kind) in enumerate(zip(values, site.dtypes, strict=True)):
            block[:, :, position] = value if kind == site.dtypes[0] else value.view(site.dtypes[0])
        if self._tally is not None:
            amount = addresses.size * site.bytes
            self._tally.bytes_stored += amount
            self._tally.store_requests += self._chunk.blocks * self._chunk.warps
            self._tally.sectors_stored += self._run_sectors(site, addresses, first)
            allocation.stored += amount

    def _check_writable(self, site: Site, allocation: Allocation) -> None:
        if not allocation.writable:
            raise self._chunk.finding(site, f"writes to {allocation.describe()}, which is read-only")

    def _count_store(
        self, site: Site, spread: Array, addresses: Array, mask: Mask, allocation: Allocation | None
    ) -> None:
        tally = self._tally
        if tally is None:
            return
        amount = self._chunk.count_lanes(mask) * site.bytes
        tally.bytes_stored += amount
        tally.store_requests += self._chunk.count_warps(mask)
        tally.sectors_stored += count_sectors(self._chunk, addresses, mask)
        if allocation is not None:
            allocation.stored += amount
        else:
            for owner, lanes in self._lanes_by_owner(spread, mask):
                owner.stored += lanes * site.bytes

    # ---- atomics
    def resolve(self, site: Site, addresses: Array, picked: Array, mask: Mask) -> list[tuple[Array, Array, Array]]:
        """For every allocation touched: its elements, the indices of ``picked`` there, and which of them they are."""
        owners = self._owners(site, picked, addresses, mask)
        found: list[tuple[Array, Array, Array]] = []
        for owner in np.unique(owners):
            allocation = self._memory.allocations[owner]
            self._check_writable(site, allocation)
            chosen = np.nonzero(owners == owner)[0]
            elements, start = allocation.view(site.dtypes[0])
            found.append((elements, _index(picked[chosen], start, site.width), chosen))
            if self._tally is not None:
                allocation.loaded += chosen.size * site.bytes
                allocation.stored += chosen.size * site.bytes
        if self._tally is not None:
            self._tally.atomic_requests += self._chunk.count_warps(mask)
            self._tally.bytes_loaded += picked.size * site.bytes
            self._tally.bytes_stored += picked.size * site.bytes
            self._tally.sectors_stored += count_sectors(self._chunk, addresses, mask)
        return found

    # ---- findings
    def _fail(self, site: Site, addresses: Array, mask: Mask) -> NoReturn:
        """Name the first thread whose access is out of bounds or misaligned."""
        full = self._chunk.full(addresses)
        active = np.ones(full.shape, bool) if mask is None else self._chunk.full(mask)
        width = site.bytes
        verb = {"st": "writes", "atom": "updates", "red": "updates"}.get(site.instruction.op, "reads")
        for row, thread in zip(*np.nonzero(active), strict=True):
            address = int(full[row, thread])
            allocation = self._memory.find(address)
            who = f"{self._chunk.describe(int(row), int(thread))} {verb} {width} bytes at {address:#x}"
            if allocation is None or address + width > allocation.end:
                raise self._chunk.finding(site, f"{who}, out of bounds: {self._nearest(address, allocation)}")
            if address & (width - 1):
                raise self._chunk.finding(site, f"{who}, not aligned to {width} bytes: in {allocation.describe()}")
        raise AssertionError("no faulty access found")

    def _nearest(self, address: int, before: Allocation | None) -> str:
        after = next((a for a in self._memory.allocations if a.base > address), None)
        if before is not None and (after is None or address - before.end <= after.base - address):
            return f"{address - before.base} bytes after the start of {before.describe()}"
        if after is not None:
            return f"{after.base - address} bytes before {after.describe()}"
        return "the launch has no array arguments"


def _read(allocation: Allocation, site: Site, addresses: Array) -> Sequence[Array]:
    dtype = site.dtypes[0]
    if site.count == 1:
        elements, start = allocation.view(dtype)
        return (elements.take(_index(addresses, start, site.width)),)
    wide = _WIDE.get(site.bytes)
    if wide is None:
        elements, start = allocation.view(dtype)
        index = _index(addresses, start, site.width)
        return [elements.take(index + k).view(kind) for k, kind in enumerate(site.dtypes)]
    elements, start = allocation.view(wide)
    values = elements.take(_index(addresses, start, site.bytes))
    parts = np.ascontiguousarray(values.view(dtype).reshape(-1, site.count).T)
    return [part.view(kind).reshape(addresses.shape) for part, kind in zip(parts, site.dtypes, strict=True)]


def _write(allocation: Allocation, site: Site, addresses: Array, values: Sequence[Array]) -> None:
    dtype = site.dtypes[0]
    wide = _WIDE.get(site.bytes)
    if site.count > 1 and wide is not None:
        joined = np.empty((addresses.size, site.count), dtype)
        for position, value in enumerate(values):
            joined[:, position] = value.view(dtype)
        elements, start = allocation.view(wide)
        elements[_index(addresses, start, site.bytes)] = joined.view(wide)[:, 0]
        return
    elements, start = allocation.view(dtype)
    index = _index(addresses, start, site.width)
    for position, value in enumerate(values):
        elements[index + position if position else index] = value.view(dtype)


def _index(addresses: Array, start: int, width: int) -> Array:
    """Element numbers; widths are powers of two."""
    offsets = addresses - start
    return offsets >> (width.bit_length() - 1) if width > 1 else offsets


def _ramp(width: int, count: int) -> Array:
    ramp = _RAMPS.get(width)
    if ramp is None or ramp.size < count:
        ramp = np.arange(max(count, 1 << 15), dtype=np.int64) * width
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
