"""Global memory: one allocation for every array argument and module table."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import Array

_FIRST_ADDRESS = 1 << 32
_GUARD = 1 << 16
_PLACE = 256


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

    def bounds(self) -> tuple[Array, Array]:
        """First addresses and ends of all allocations, in ascending order."""
        return np.array(self._bases, np.int64), np.array([a.end for a in self.allocations], np.int64)

    def nearest(self, address: int) -> str:
        """Where a stray address lies relative to the closest allocation."""
        before = self.find(address)
        after = next((a for a in self.allocations if a.base > address), None)
        if before is not None and (after is None or address - before.end <= after.base - address):
            return f"{address - before.base} bytes after the start of {before.describe()}"
        if after is not None:
            return f"{after.base - address} bytes before {after.describe()}"
        return "the launch has no array arguments"

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
