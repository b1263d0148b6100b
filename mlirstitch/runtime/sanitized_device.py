"""The emulated device under the sanitizer: it also knows which bytes of its memory were ever written."""

from __future__ import annotations

import weakref
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.device import Counters
from mlirstitch.runtime.dtypes import Array
from mlirstitch.runtime.emulated_device import EmulatedDevice
from mlirstitch.runtime.library import NumpyLibrary
from mlirstitch.runtime.program import Launch, LibraryCall, title


class SanitizedDevice(EmulatedDevice):
    """Finds reads of memory that nobody has written, and what the sanitizer of the emulator finds in kernels. Slow.

    Memory that the device allocates starts unwritten; memory of the caller counts as written. ``seed`` draws the order
    in which blocks and warps run.
    """

    def __init__(self, *, seed: int = 0) -> None:
        super().__init__(checks=True, poison=True, engine="reference")
        self._seed = seed
        self._written = _WrittenBytes()
        self._checked_library = _CheckedLibrary(self._written)

    @property
    def name(self) -> str:
        return "emulator, sanitized"

    @property
    def library(self) -> NumpyLibrary:
        return self._checked_library

    def allocate(self, count: int, label: str) -> Array:
        memory = super().allocate(count, label)
        self._written.add(memory, label)
        return memory

    def copy_in(self, destination: Array, source: Array) -> None:
        super().copy_in(destination, source)
        self._written.mark(destination, True)

    def copy_out(self, destination: Array, source: Array) -> None:
        self._written.require(source, "is copied to the host")
        super().copy_out(destination, source)

    def copy(self, destination: Array, source: Array) -> None:
        super().copy(destination, source)
        flags = self._written.of(source)
        self._written.mark(destination, True if flags is None else flags)

    def clear(self, memory: Array) -> None:
        super().clear(memory)
        self._written.mark(memory, True)

    def discard(self, memory: Array) -> None:
        super().discard(memory)
        self._written.mark(memory, False)

    def launch(self, module: Any, step: Launch, arguments: Sequence[Array], *, count: bool) -> Counters | None:
        return self._launch(
            module,
            step,
            arguments,
            count=count,
            sanitize=True,
            seed=self._seed,
            defined=[self._written.of(memory) for memory in arguments],
        )


class _WrittenBytes:
    """Flags of all bytes of the allocations of a device, found by the address of their host memory."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._flags: dict[int, tuple[Array, str]] = {}

    def add(self, memory: Array, label: str) -> None:
        """A new allocation, unwritten."""
        if not memory.size:
            return
        start = _address(memory)
        insort(self._starts, start)
        self._flags[start] = (np.zeros(memory.size, bool), label)
        weakref.finalize(memory, self._remove, start)

    def _remove(self, start: int) -> None:
        self._starts.remove(start)
        del self._flags[start]

    def _find(self, memory: Array) -> tuple[Array, str] | None:
        start = _address(memory)
        position = bisect_right(self._starts, start) - 1
        if position < 0:
            return None
        base = self._starts[position]
        flags, label = self._flags[base]
        if start + memory.size > base + flags.size:
            return None
        return flags[start - base : start - base + memory.size], label

    def of(self, memory: Array) -> Array | None:
        """The flags of a piece of memory, not a copy; None for memory that is not the device's own."""
        found = self._find(memory)
        return None if found is None else found[0]

    def mark(self, memory: Array, written: bool | Array) -> None:
        """Set the flags of a piece of memory."""
        flags = self.of(memory)
        if flags is not None:
            flags[...] = written

    def require(self, memory: Array, what: str) -> None:
        """Raise :class:`LaunchError` if a byte was never written."""
        found = self._find(memory)
        if found is None or found[0].all():
            return
        flags, label = found
        missing = np.nonzero(~flags)[0]
        text = f"{label} {what}, but {missing.size} of its {flags.size} bytes were never written"
        raise LaunchError(f"{text}, the first is byte {int(missing[0])}")


class _CheckedLibrary(NumpyLibrary):
    """Library steps that need what they read to be written."""

    def __init__(self, written: _WrittenBytes) -> None:
        self._written = written

    def run(self, call: LibraryCall, operands: Sequence[Array]) -> None:
        for memory, operand in zip(operands, call.operands, strict=True):
            if operand.access != "write":
                self._written.require(memory, f"is read by {title(call)}")
        super().run(call, operands)
        for memory, operand in zip(operands, call.operands, strict=True):
            if operand.access != "read":
                self._written.mark(memory, True)


def _address(memory: Array) -> int:
    return int(memory.__array_interface__["data"][0])
