"""The device that needs no GPU: it executes the PTX text on the CPU, with all checks of the emulator."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mlirstitch.runtime.device import Counters
from mlirstitch.runtime.dtypes import Array, aligned_bytes, contiguous
from mlirstitch.runtime.library import NumpyLibrary
from mlirstitch.runtime.program import Launch

ADOPTED_ALIGNMENT = 16
"""Host alignment of an array that may be device memory as it stands, bytes: the widest access of a thread. The emulator
places every allocation at a multiple of 256 in its own address space, so more is not needed."""
ENGINE_VARIABLE = "MLIRSTITCH_EMULATOR_ENGINE"
"""Environment variable that names the engine."""
POISON = 0xFF
"""Byte that fills memory nobody wrote: NaN in every float type, -1 in the signed integers."""


class EmulatedDevice:
    """Device memory is host memory: flat uint8 arrays. Every launch is finished when it returns.

    What a launch declares to read only is passed read-only, so that a kernel that writes it is caught.

    Args:
        checks: look for uninitialised reads, races, divergent barriers and the like, too; None: where the reference
            engine runs the kernel. Bounds and alignment are always checked.
        engine: "auto", "jit" or "reference" (docs/emulator.md); the default is the variable
            ``MLIRSTITCH_EMULATOR_ENGINE`` or, without it, "auto".
        poison: overwrite discarded memory with :data:`POISON`, so that a read of something unwritten gives NaN.
    """

    def __init__(self, *, checks: bool | None = None, poison: bool = True, engine: str | None = None) -> None:
        from mlirstitch.runtime.emulator.engines import checked

        self._checks = checks
        self._engine = checked(engine or os.environ.get(ENGINE_VARIABLE) or "auto")
        self._poison = poison
        self._library = NumpyLibrary()

    @property
    def name(self) -> str:
        return "emulator"

    @property
    def library(self) -> NumpyLibrary:
        return self._library

    def refuses(self, target: Mapping[str, str]) -> str | None:
        return None

    def allocate(self, count: int, label: str) -> Array:
        memory = _allocation(aligned_bytes(count))
        self.discard(memory)
        return memory

    def adopt(self, array: Array) -> Array | None:
        if not array.flags.c_contiguous or array.ctypes.data % ADOPTED_ALIGNMENT:
            return None
        return _allocation(_bytes_of(array))

    def view(self, memory: Array, offset: int, count: int) -> Array:
        return memory[offset : offset + count]

    def copy_in(self, destination: Array, source: Array) -> None:
        destination[...] = _bytes_of(contiguous(source))

    def copy_out(self, destination: Array, source: Array) -> None:
        _bytes_of(destination)[...] = source

    def copy(self, destination: Array, source: Array) -> None:
        destination[...] = source

    def clear(self, memory: Array) -> None:
        memory[...] = 0

    def discard(self, memory: Array) -> None:
        if self._poison:
            memory[...] = POISON

    def load_ptx(self, text: str, name: str) -> Any:
        from mlirstitch.runtime import emulator

        return emulator.load(text, self._engine)

    def launch(self, module: Any, step: Launch, arguments: Sequence[Array], *, count: bool) -> Counters | None:
        return self._launch(module, step, arguments, count=count)

    def _launch(
        self, module: Any, step: Launch, arguments: Sequence[Array], *, count: bool, **options: Any
    ) -> Counters | None:
        """Run a kernel with further options of the emulator's ``launch``."""
        passed = [
            _read_only(memory) if argument.access == "read" else memory
            for memory, argument in zip(arguments, step.arguments, strict=True)
        ]
        counted = module.launch(
            step.kernel,
            step.grid,
            step.block,
            passed,
            shared_bytes=step.shared_bytes,
            checks=self._checks,
            counters=count,
            cooperative=step.cooperative,
            cluster=step.thread_block_cluster,
            **options,
        )
        if not count:
            return None
        ran = {"engine": module.engine_of(step.kernel), "engine_reason": module.fallback(step.kernel)}
        return {**counted.to_dict(), **ran}

    def synchronize(self) -> None:
        return None


def _bytes_of(array: Array) -> Array:
    """The storage of a contiguous array as flat uint8, not a copy."""
    return array.reshape(-1).view(np.uint8)


def _allocation(storage: Array) -> Array:
    """The same bytes as an array without a numpy base: the emulator takes it for the start of an allocation."""
    return np.frombuffer(storage.data, np.uint8) if storage.size else storage


def _read_only(memory: Array) -> Array:
    view = memory.view()
    view.flags.writeable = False
    return view
