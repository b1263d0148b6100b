"""What the generated code of a chunk calls: registers, memory, instructions of a warp, barriers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import Array, Chunk, Mask
from mlirstitch.runtime.emulator.reference.emit import Site
from mlirstitch.runtime.emulator.reference.fragments import MatrixUnit, gather_matrices, spread_matrices
from mlirstitch.runtime.emulator.reference.launch import Launch
from mlirstitch.runtime.emulator.reference.memory_unit import MemoryUnit
from mlirstitch.runtime.emulator.reference.scheduler import Scheduler
from mlirstitch.runtime.emulator.reference.special_registers import SpecialRegisters
from mlirstitch.runtime.emulator.reference.warp import WarpOperations


class Machine(MemoryUnit):
    """The run-time side of the generated code for one chunk, the blocks with these numbers."""

    def __init__(self, launch: Launch, numbers: Array) -> None:
        chunk = Chunk(launch.program.kernel.name, launch.grid, launch.block, numbers)
        super().__init__(launch, chunk)
        sanitizer = launch.sanitizer
        if sanitizer is not None:
            sanitizer.clocks.attach(chunk)
        warps = WarpOperations(chunk, launch.checks, None if sanitizer is None else sanitizer.clocks)
        self.shuffle, self.vote, self.reduce_warp = warps.shuffle, warps.vote, warps.reduce
        self.active_mask, self.warp_barrier = warps.active_mask, warps.barrier
        self.elect, self.match_any, self.match_all = warps.elect, warps.match_any, warps.match_all
        self._matrices = MatrixUnit(chunk)
        self.multiply, self.transpose_matrix = self._matrices.multiply, self._matrices.transpose
        self._scheduler = Scheduler(launch, chunk, self, warps)
        self.special = SpecialRegisters(chunk, launch).read
        self._constants: dict[tuple[int, str], Array] = {}

    def run(self) -> None:
        """Execute the chunk to the end. Raises :class:`LaunchError` for every finding."""
        self._scheduler.run(self)

    # ---- values
    def symbol(self, name: str, offset: int, dtype: str) -> Array:
        """Address of a module variable."""
        return np.array([[self._launch.symbols[name] + offset]], dtype)

    def parameter(self, offset: int, dtype: str) -> Array:
        """Value of a kernel parameter."""
        key = (offset, dtype)
        value = self._constants.get(key)
        if value is None:
            value = np.frombuffer(self._launch.parameters, dtype, 1, offset).reshape(1, 1)
            self._constants[key] = value
        return value

    def define(self, mask: Mask, known: Mask | bool) -> Mask | bool:
        """Threads that have written a register after a write under ``mask``; True for all, None for none."""
        if mask is None or known is True:
            return True
        return mask if known is None else known | mask

    def defined(self, site: Site, name: str, frame: list[Any], slot: int, kept: int, home: str, mask: Mask) -> Array:
        """The register, after a check that every active thread has written it."""
        known = frame[kept]
        if known is not True and self._launch.checks:
            active = np.ones((1, 1), bool) if mask is None else mask
            missing = active if known is None else active & ~known
            if missing.any():
                row, thread = (int(v[0]) for v in np.nonzero(self._chunk.full(missing)))
                who = self._chunk.describe(row, thread)
                raise self._chunk.finding(site, f"{who} reads register {name}, which it has not written")
        return self.previous(frame[slot], home)

    def previous(self, value: Array | None, home: str) -> Array:
        """The value, or zeros if the register was never written."""
        return np.zeros((1, 1), home) if value is None else value

    # ---- matrices
    def load_matrix(self, site: Site, offsets: Array, count: int, transposed: bool, mask: Mask) -> list[Array]:
        """``ldmatrix``."""
        rows = self.load_shared(site, offsets, self._matrices.rows(site, count, mask))
        return spread_matrices(self._chunk, rows, count, transposed)

    def store_matrix(self, site: Site, offsets: Array, values: Sequence[Array], transposed: bool, mask: Mask) -> None:
        """``stmatrix``."""
        rows = self._matrices.rows(site, len(values), mask)
        self.store_shared(site, offsets, gather_matrices(self._chunk, values, transposed), rows)

    # ---- barriers
    def arrive(self, site: Site, number: Array, count: Array, mask: Mask) -> None:
        """``bar.arrive``."""
        if self._launch.tally is not None:
            self._launch.tally.barriers += self._chunk.count_warps(mask)
        self.changes += 1
        self._scheduler.barriers.arrive(site, mask, number, count)

    def barrier_result(self) -> Array:
        """Result of the ``bar.red`` that the threads have passed last."""
        return self._scheduler.barriers.results

    def cluster_arrive(self, site: Site, mask: Mask) -> None:
        """``barrier.cluster.arrive``."""
        self.changes += 1
        twice = self._scheduler.cluster_barriers.arrive(mask)
        if twice.any():
            row, thread = (int(v[0]) for v in np.nonzero(twice))
            text = f"{self._chunk.describe(row, thread)} arrives again before it has waited for its cluster"
            raise self._chunk.finding(site, text)
