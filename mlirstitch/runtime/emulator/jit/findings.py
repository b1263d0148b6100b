"""What the generated code found, in the words of the reference engine."""

from __future__ import annotations

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.jit.builder import WARP
from mlirstitch.runtime.emulator.jit.layout import Context, Fault, Warp
from mlirstitch.runtime.emulator.jit.worker import Job, Worker
from mlirstitch.runtime.emulator.ptx.ir import Instruction, Kernel
from mlirstitch.runtime.emulator.reference.chunk import Chunk
from mlirstitch.runtime.emulator.reference.emit import Site


def finding(worker: Worker, job: Job, kernel: Kernel) -> LaunchError:
    """The error that ended the worker's last range."""
    return _Finding(worker, job, kernel).error()


class _Finding:
    def __init__(self, worker: Worker, job: Job, kernel: Kernel) -> None:
        self.worker = worker
        self.job = job
        self.kernel = kernel
        self.number = worker.field(Context.BLOCK_NUMBER)
        self.chunk = Chunk(kernel.name, job.grid, job.block, np.array([self.number]))
        self.thread = WARP * worker.field(Context.FAULT_WARP) + worker.field(Context.FAULT_LANE)
        self.address = worker.field(Context.FAULT_ADDRESS)

    def error(self) -> LaunchError:
        fault = Fault(self.worker.field(Context.FAULT))
        if fault == Fault.DEADLOCK:
            return self._deadlock()
        if fault in (Fault.TRAP, Fault.SWITCH, Fault.BUDGET):
            return self._control(fault)
        site = self.job.compiled.code.sites[self.worker.field(Context.FAULT_SITE)]
        return self.chunk.finding(
            Site(site.instruction), self._access(fault, site.instruction, site.width * site.count)
        )

    def _who(self) -> str:
        return self.chunk.describe(0, self.thread)

    def _access(self, fault: Fault, instruction: Instruction, width: int) -> str:
        who, address = self._who(), self.address
        if fault == Fault.MIXED_SPACES:
            return "threads access different memory spaces at once through generic addresses"
        if fault in (Fault.MISSING_SHARED, Fault.MISSING_LOCAL):
            space = "shared" if fault == Fault.MISSING_SHARED else "local"
            return f"accesses {space} memory, but the kernel has none"
        if fault == Fault.SHARED:
            size = self.job.shared_bytes
            text = f"{who} accesses {width} bytes at shared offset {address}"
            if address >= 0 and address + width <= size:
                return f"{text}, not aligned to {width} bytes"
            return f"{text}, out of bounds of the {size} bytes of shared memory"
        if fault == Fault.LOCAL:
            text = f"{who} accesses {width} bytes at local offset {address}"
            return f"{text}, misaligned or out of bounds of its {self.job.local_bytes} bytes"
        memory = self.job.memory
        owner = memory.find(address)
        if fault == Fault.READ_ONLY and owner is not None:
            return f"writes to {owner.describe()}, which is read-only"
        verb = {"st": "writes", "atom": "updates", "red": "updates"}.get(instruction.op, "reads")
        text = f"{who} {verb} {width} bytes at {address:#x}"
        if fault == Fault.MISALIGNED and owner is not None:
            return f"{text}, not aligned to {width} bytes: in {owner.describe()}"
        return f"{text}, out of bounds: {memory.nearest(address)}"

    def _control(self, fault: Fault) -> LaunchError:
        block = self.kernel.blocks[self.worker.field(Context.FAULT_SITE)]
        terminator = block.terminator
        if fault == Fault.BUDGET:
            instruction = block.instructions[0] if block.instructions else terminator.instruction
            text = f"still running after {self.job.budget} instructions: an endless loop?"
            if instruction is None:
                error = LaunchError(f"kernel {self.kernel.name!r}: {text}")
            else:
                error = self.chunk.finding(Site(instruction), text)
            error.hint = "raise `budget` if the kernel is that long"
            return error
        assert terminator.instruction is not None
        site = Site(terminator.instruction)
        if fault == Fault.TRAP:
            return self.chunk.finding(site, f"{terminator.message} in {self._who()}")
        warp, lane = divmod(self.thread, WARP)
        value = self.worker.warp_mask(warp, Warp.SECOND + 4 * lane)
        return self.chunk.finding(site, f"{self._who()} selects target {value} of {len(terminator.targets)}")

    def _deadlock(self) -> LaunchError:
        """Name a thread that waits and one that does not come."""
        waiting = {
            position: self._threads(Warp.MASKS + 4 * position)
            for position in range(len(self.job.compiled.code.barriers))
        }
        barriers = self.job.compiled.code.barriers
        position = next(p for p, threads in waiting.items() if threads.any())
        number, count = barriers[position].terminator.barrier
        present = np.zeros(self.job.threads, bool)
        for other, threads in waiting.items():
            if barriers[other].terminator.barrier[0] == number:
                present |= threads
        waits = self.chunk.describe(0, int(np.nonzero(waiting[position])[0][0]))
        absent = np.nonzero(~present)[0]
        if absent.size:
            gone = bool(self._threads(Warp.EXITED)[absent[0]])
            reason = f"{self.chunk.describe(0, int(absent[0]))} {'has exited' if gone else 'never arrives'}"
        else:
            reason = f"it is for {count} threads and only {int(present.sum())} arrive"
        instruction = barriers[position].terminator.instruction
        assert instruction is not None
        return self.chunk.finding(Site(instruction), f"divergent barrier: {waits} waits, but {reason}")

    def _threads(self, offset: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        """Threads of the block in a mask that every warp has at ``offset``."""
        masks = np.array([self.worker.warp_mask(warp, offset) for warp in range(self.worker.warps)], np.uint32)
        bits = (masks[:, None] >> np.arange(WARP, dtype=np.uint32)) & np.uint32(1)
        return bits.reshape(-1)[: self.job.threads] != 0
