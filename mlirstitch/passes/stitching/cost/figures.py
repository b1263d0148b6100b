"""What a kernel asks of a chip under one schedule, known without running it. The code generator fills it in."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class ArgumentFigures:
    """One tensor, scratch buffer or ticket of a kernel.

    Attributes:
        bytes: size of the buffer.
        touched: bytes of it that the kernel can touch at most.
        moved: bytes that all threads load and store, re-reads counted.
        sectors: 32-byte sectors of all requests of warps, re-reads counted; an estimate from sampled warps.
    """

    bytes: int
    touched: int
    moved: int
    sectors: float

    @property
    def rereads(self) -> int:
        """Bytes moved beyond those touched."""
        return max(0, self.moved - self.touched)


@dataclass(frozen=True)
class KernelFigures:
    """One kernel under one schedule.

    Attributes:
        blocks: of the launch.
        threads: of a block.
        instructions: warp instructions of the whole launch by class (docs/counters.md; ``double`` is apart from
            ``float``), an estimate.
        arguments: in the order of the kernel's arguments.
        registers: of a thread, an estimate.
        static_shared, dynamic_shared: shared memory of a block, bytes.
        resident_blocks: blocks that run on a multiprocessor at the same time.
        memory_waits: how often warps of the launch wait for global memory, all together, an estimate: once for all
            loads between two barriers.
    """

    blocks: int
    threads: int
    instructions: Mapping[str, float] = field(hash=False)
    arguments: tuple[ArgumentFigures, ...]
    registers: int
    static_shared: int
    dynamic_shared: int
    resident_blocks: int
    memory_waits: float

    @property
    def warps(self) -> int:
        """Warps of the launch."""
        return self.blocks * -(-self.threads // 32)

    @property
    def warp_instructions(self) -> float:
        """Warp instructions of all classes."""
        return math.fsum(self.instructions.values())

    @property
    def barriers(self) -> float:
        """Barriers that a warp arrives at."""
        return self.instructions.get("barrier", 0.0) / max(1, self.warps)

    @property
    def waits(self) -> float:
        """How often a warp waits for global memory."""
        return self.memory_waits / max(1, self.warps)

    @property
    def moved(self) -> int:
        """Bytes that all threads load and store."""
        return sum(argument.moved for argument in self.arguments)

    @property
    def sectors(self) -> float:
        """Sectors of all requests."""
        return math.fsum(argument.sectors for argument in self.arguments)
