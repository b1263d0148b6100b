"""The memory of one worker: context, warps, sites, allocation table, shared and local memory."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirstitch.runtime.dtypes import Array, aligned_bytes
from mlirstitch.runtime.emulator.jit.builder import WARP
from mlirstitch.runtime.emulator.jit.compiler import CompiledKernel
from mlirstitch.runtime.emulator.jit.layout import (
    ALLOCATION_BYTES,
    BARRIER_BYTES,
    SITE_BYTES,
    SPACES,
    Allocation,
    Barrier,
    Context,
    Site,
    Warp,
)
from mlirstitch.runtime.emulator.jit.support import FUNCTIONS, function_offset
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory

_DRIVE = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_NOWHERE = 1 << 63
"""Base of a site that keeps no allocation: no address is close behind it."""


@dataclass(frozen=True)
class Job:
    """A launch, as all workers see it. ``shared_bytes`` is static and dynamic shared memory together."""

    compiled: CompiledKernel
    functions: Mapping[str, int]
    memory: GlobalMemory
    parameters: Array
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    local_bytes: int
    budget: int
    counting: bool
    basic_blocks: int

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.block[0] * self.block[1] * self.block[2]


class Worker:
    """Runs ranges of thread blocks, one range after the other, on the thread that calls it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        code = job.compiled.code
        self.warps = -(-job.threads // WARP)
        self.context = _zeros(Context.FUNCTIONS + 8 * len(FUNCTIONS))
        self._warp_memory = _zeros(self.warps * code.warp_bytes)
        self.warp_words = self._warp_memory.view(np.uint32).reshape(self.warps, -1)
        self.executed = _zeros(8 * job.basic_blocks).view(np.int64)
        self._sites = self._site_table()
        self.allocations = self._allocation_table()
        barriers = self._barrier_table()
        local_stride = -(-job.local_bytes // 16) * 16
        shared = _zeros(-(-max(job.shared_bytes, 1) // 64) * 64)
        local = _zeros(max(local_stride * job.threads, 64))
        self._fill_warps()
        words = self.context.view(np.uint64)
        self.fields = self.context.view(np.int64)
        for field, value in (
            (Context.PARAMETERS, job.parameters.ctypes.data),
            (Context.SHARED, shared.ctypes.data),
            (Context.LOCAL, local.ctypes.data),
            (Context.WARPS, self._warp_memory.ctypes.data),
            (Context.SITES, self._sites.ctypes.data),
            (Context.EXECUTED, self.executed.ctypes.data),
            (Context.ALLOCATIONS, self.allocations.ctypes.data),
            (Context.ALLOCATION_COUNT, len(job.memory.allocations)),
            (Context.RUN_WARP, job.compiled.address),
            (Context.WARP_COUNT, self.warps),
            (Context.WARP_STRIDE, code.warp_bytes),
            (Context.SHARED_SIZE, job.shared_bytes),
            (Context.LOCAL_SIZE, job.local_bytes),
            (Context.LOCAL_STRIDE, local_stride),
            (Context.BUDGET, job.budget),
            (Context.BARRIERS, barriers.ctypes.data),
            (Context.BARRIER_COUNT, len(code.barriers)),
            (Context.THREADS, job.threads),
            (Context.UNINITIALISED, code.uninitialised_bytes),
            (Context.LAST_ALLOCATION, self.allocations.ctypes.data),
            (Context.COUNTING, job.counting),
        ):
            words[field // 8] = value
        self.context.view(np.uint32)[Context.GRID_X // 4 : Context.GRID_X // 4 + 3] = job.grid
        for name, address in job.functions.items():
            words[function_offset(name) // 8] = address
        self._keep = (barriers, shared, local)
        self._drive = _DRIVE(job.functions["drive"])

    def run(self, first: int, end: int) -> bool:
        """Run blocks ``first`` up to below ``end``; whether there was no finding."""
        return self._drive(self.context.ctypes.data, first, end) == 0

    def field(self, field: Context) -> int:
        """A field of the context."""
        return int(self.fields[field // 8])

    def warp_mask(self, warp: int, offset: int) -> int:
        """A 32-bit field of a warp's structure."""
        return int(self.warp_words[warp, offset // 4])

    def _site_table(self) -> Array:
        sites = self._job.compiled.code.sites
        table = _zeros(max(len(sites), 1) * SITE_BYTES)
        words = table.view(np.uint64).reshape(-1, SITE_BYTES // 8)
        for row, site in zip(words, sites, strict=False):
            row[Site.BASE // 8] = _NOWHERE
            row[Site.ALLOCATION // 8] = 0
            row[Site.FAST_BYTES // 8] = site.fast_bytes
            row[Site.WIDTH // 8] = site.width
            row[Site.COUNT // 8] = site.count
            row[Site.SPACE // 8] = SPACES[site.space]
            row[Site.KIND // 8] = site.kind
        return table

    def _allocation_table(self) -> Array:
        allocations = self._job.memory.allocations
        table = _zeros(max(len(allocations), 1) * ALLOCATION_BYTES)
        words = table.view(np.uint64).reshape(-1, ALLOCATION_BYTES // 8)
        for row, allocation in zip(words, allocations, strict=False):
            row[Allocation.BASE // 8] = allocation.base
            row[Allocation.SIZE // 8] = allocation.size
            row[Allocation.DELTA // 8] = (allocation.raw.ctypes.data - allocation.base) & (2**64 - 1)
            row[Allocation.WRITABLE // 8] = allocation.writable
        return table

    def _barrier_table(self) -> Array:
        blocks = self._job.compiled.code.barriers
        table = _zeros(max(len(blocks), 1) * BARRIER_BYTES)
        words = table.view(np.int64).reshape(-1, BARRIER_BYTES // 8)
        for row, block in zip(words, blocks, strict=False):
            number, count = block.terminator.barrier
            row[Barrier.NUMBER // 8] = number
            row[Barrier.THREADS // 8] = self._job.threads if count is None else count
            row[Barrier.TARGET // 8] = block.terminator.targets[0]
        return table

    def _fill_warps(self) -> None:
        job = self._job
        x, y, _ = job.block
        thread = np.arange(self.warps * WARP, dtype=np.uint32)
        axes = (thread % x, thread // x % y, thread // (x * y))
        self.warp_words[:, Warp.FULL // 4] = 0xFFFFFFFF
        rest = job.threads % WARP
        if rest:
            self.warp_words[-1, Warp.FULL // 4] = (1 << rest) - 1
        self.warp_words[:, Warp.NUMBER // 4] = np.arange(self.warps)
        if job.block[1] * job.block[2] == 1:
            # Threads that do not exist go on counting, so that the numbers of a warp are a ramp.
            axes = (thread, axes[1], axes[2])
        for axis, numbers in enumerate(axes):
            start = (Warp.THREAD_IDS + 128 * axis) // 4
            self.warp_words[:, start : start + WARP] = numbers.reshape(self.warps, WARP)
        frame = job.compiled.code.frame_at
        self.warp_words[:, Warp.FRAME // 4] = frame

    def flush(self) -> dict[str, Any]:
        """Add what the sites counted to the fields of the context and the allocations; call once, at the end."""
        words = self._sites.view(np.int64).reshape(-1, SITE_BYTES // 8)
        table = self.allocations.view(np.int64).reshape(-1, ALLOCATION_BYTES // 8)
        start = self.allocations.ctypes.data
        for row in words[: len(self._job.compiled.code.sites)]:
            hits, sectors, lanes = (int(row[field // 8]) for field in (Site.HITS, Site.SECTORS, Site.LANES))
            if not hits:
                continue
            load = row[Site.KIND // 8] == 0
            amount = lanes * int(row[Site.WIDTH // 8] * row[Site.COUNT // 8])
            owner = (int(row[Site.ALLOCATION // 8]) - start) // ALLOCATION_BYTES
            table[owner, (Allocation.LOADED if load else Allocation.STORED) // 8] += amount
            for field, value in (
                (Context.LOAD_REQUESTS if load else Context.STORE_REQUESTS, hits),
                (Context.SECTORS_LOADED if load else Context.SECTORS_STORED, sectors),
                (Context.BYTES_LOADED if load else Context.BYTES_STORED, amount),
            ):
                self.fields[field // 8] += value
        return {"loaded": table[:, Allocation.LOADED // 8], "stored": table[:, Allocation.STORED // 8]}


def _zeros(count: int) -> Array:
    memory = aligned_bytes(count, 64)
    memory[...] = 0
    return memory
