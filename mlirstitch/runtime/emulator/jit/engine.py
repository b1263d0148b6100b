"""The JIT engine: runs one kernel as machine code, ranges of thread blocks on threads of the host."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.dtypes import aligned_bytes
from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.jit.builder import WARP
from mlirstitch.runtime.emulator.jit.compiler import COMPILER, CompiledKernel
from mlirstitch.runtime.emulator.jit.emit import Specialisation
from mlirstitch.runtime.emulator.jit.findings import finding
from mlirstitch.runtime.emulator.jit.layout import Context
from mlirstitch.runtime.emulator.jit.worker import Job, Worker
from mlirstitch.runtime.emulator.ptx.ir import Kernel
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory

_RANGES_PER_WORKER = 8
"""Ranges of blocks a worker takes on average: few enough to cost nothing, enough to even out."""
_WARPS_WORTH_A_THREAD = 64

_TALLIED = {
    "load_requests": Context.LOAD_REQUESTS, "store_requests": Context.STORE_REQUESTS,
    "atomic_requests": Context.ATOMIC_REQUESTS, "bytes_loaded": Context.BYTES_LOADED,
    "bytes_stored": Context.BYTES_STORED, "sectors_loaded": Context.SECTORS_LOADED,
    "sectors_stored": Context.SECTORS_STORED, "shared_requests": Context.SHARED_REQUESTS,
    "shared_wavefronts": Context.SHARED_WAVEFRONTS, "shared_conflicts": Context.SHARED_CONFLICTS,
    "divergent_branches": Context.DIVERGENT_BRANCHES,
}  # fmt: skip


class JitEngine:
    """Executes one kernel; compiled once for each block size, grid size class, and with or without counters."""

    def __init__(self, kernel: Kernel, text_key: str) -> None:
        self.kernel = kernel
        self._key = text_key

    def compiled(self, grid: tuple[int, int, int], block: tuple[int, int, int], *, counting: bool) -> CompiledKernel:
        """The machine code for such a launch. Raises :class:`emit.Unsupported` if the engine lacks an instruction."""
        x, y, z = (1 << (extent - 1).bit_length() for extent in grid)
        return COMPILER.compile(self._key, self.kernel, Specialisation(block, (x, y, z), counting))

    def run(
        self,
        memory: GlobalMemory,
        parameters: bytes,
        symbols: Mapping[str, int],
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared_bytes: int,
        *,
        budget: int,
        tally: Tally | None,
    ) -> dict[str, int]:
        """Run the whole grid; warp instructions by class (empty without ``tally``).

        ``shared_bytes`` is static and dynamic shared memory together; ``budget`` limits the instructions of basic
        blocks inside loops that one warp may issue. Raises :class:`LaunchError` for a finding, of several the one of
        the lowest block, and :class:`emit.Unsupported`.
        """
        compiled = self.compiled(grid, block, counting=tally is not None)
        code = compiled.code
        packed = aligned_bytes(code.symbols_at + 8 * len(code.symbols) + 16, 64)
        packed[: len(parameters)] = np.frombuffer(parameters, np.uint8)
        for position, name in enumerate(code.symbols):
            start = code.symbols_at + 8 * position
            packed[start : start + 8] = np.frombuffer(symbols[name].to_bytes(8, "little"), np.uint8)
        job = Job(
            compiled=compiled,
            functions=COMPILER.functions(),
            memory=memory,
            parameters=packed,
            grid=grid,
            block=block,
            shared_bytes=shared_bytes,
            local_bytes=self.kernel.local_bytes,
            budget=budget,
            counting=tally is not None,
            basic_blocks=len(self.kernel.blocks),
        )
        workers = _run_ranges(job, self.kernel, grid[0] * grid[1] * grid[2])
        return self._count(workers, memory, tally) if tally is not None else {}

    def _count(self, workers: list[Worker], memory: GlobalMemory, tally: Tally) -> dict[str, int]:
        executed = np.zeros(len(self.kernel.blocks), np.int64)
        for worker in workers:
            moved = worker.flush()
            for allocation, loaded, stored in zip(memory.allocations, moved["loaded"], moved["stored"], strict=False):
                allocation.loaded += int(loaded)
                allocation.stored += int(stored)
            for name, field in _TALLIED.items():
                setattr(tally, name, getattr(tally, name) + worker.field(field))
            executed += worker.executed
        totals: dict[str, int] = {}
        for block, times in zip(self.kernel.blocks, executed.tolist(), strict=True):
            kinds = [i.kind for i in block.instructions if i.op != "implicit"]
            if block.terminator.instruction is not None:
                kinds.append(block.terminator.instruction.kind)
            if block.terminator.kind == "barrier":
                tally.barriers += times
            for kind in kinds:
                totals[kind] = totals.get(kind, 0) + times
        return {kind: totals[kind] for kind in sorted(totals) if totals[kind]}


def _run_ranges(job: Job, kernel: Kernel, total: int) -> list[Worker]:
    """Run blocks 0 to ``total``, ranges of them on several threads; the workers, for their counters.

    Ranges are taken in ascending order, and none below a finding is left out, so the finding reported is that of the
    lowest block whatever the threads do.
    """
    warps = -(-job.threads // WARP)
    count = min(os.cpu_count() or 1, total, max(1, total * warps // _WARPS_WORTH_A_THREAD))
    if job.compiled.code.serial:
        count = 1
    step = total if count == 1 else -(-total // (count * _RANGES_PER_WORKER))
    starts = list(range(0, total, step))[::-1]
    lock = threading.Lock()
    findings: list[tuple[int, LaunchError]] = []
    failures: list[BaseException] = []

    def work(worker: Worker) -> None:
        try:
            while True:
                with lock:
                    if not starts or failures or (findings and starts[-1] > min(findings, key=_first)[0]):
                        return
                    first = starts.pop()
                if not worker.run(first, min(first + step, total)):
                    number = worker.field(Context.BLOCK_NUMBER)
                    with lock:
                        findings.append((number, finding(worker, job, kernel)))
        except BaseException as error:
            failures.append(error)

    workers = [Worker(job) for _ in range(count)]
    threads = [threading.Thread(target=work, args=(worker,), name="emulator") for worker in workers[1:]]
    for thread in threads:
        thread.start()
    work(workers[0])
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    if findings:
        raise min(findings, key=_first)[1]
    return workers


def _first(item: tuple[int, LaunchError]) -> int:
    return item[0]
