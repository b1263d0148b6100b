"""Chip limits and cost constants. Everything a pass may know about the device stands here."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

from mlirstitch.errors import TargetError

GRID_YZ_LIMIT = 65_535
GRID_X_LIMIT = 2**31 - 1
MAX_KERNEL_ARGUMENT_BYTES = 4_096
FIRST_WITH_CLUSTERS = 90
"""Compute capability (times ten) from which on there are thread-block clusters."""
PORTABLE_CLUSTER_BLOCKS = 8


@dataclass(frozen=True)
class Target:
    """One chip: limits from NVIDIA's CUDA C programming guide ("Compute capabilities"), rates from data sheets.

    Attributes:
        chip: ``sm_90`` and so on, as LLVM spells it.
        ptx_version: the PTX ISA version LLVM 22.1.8 prints for the chip by default.
        sms: streaming multiprocessors of the reference part.
        warp_size: lanes of a warp.
        max_threads_per_block, max_threads_per_sm, registers_per_sm, max_registers_per_thread: limits, counts.
        shared_bytes_static: static shared memory a block may declare, bytes.
        shared_bytes_block: shared memory a block may opt in to, bytes.
        shared_bytes_sm: shared memory of one multiprocessor, bytes.
        l2_bytes: size of the level-2 cache, bytes.
        bandwidth: global memory, bytes per second.
        launch_seconds: cost of one kernel launch, seconds.
        cluster_blocks: blocks of the largest thread-block cluster that every part of the chip can run (the portable
            size), 1 where there are no clusters.
        grid_composition: whether the compiler may let blocks wait for each other through global memory (an option of
            the compilation, not a property of the chip).
    """

    chip: str
    ptx_version: str
    sms: int
    max_threads_per_sm: int
    shared_bytes_block: int
    shared_bytes_sm: int
    l2_bytes: int
    bandwidth: float
    warp_size: int = 32
    max_threads_per_block: int = 1024
    registers_per_sm: int = 65_536
    max_registers_per_thread: int = 255
    shared_bytes_static: int = 48 * 1024
    launch_seconds: float = 3e-6
    cluster_blocks: int = 1
    grid_composition: bool = False

    @staticmethod
    def parse(text: str | Target) -> Target:
        """Look a chip up by name. Raises :class:`TargetError` for an unknown one."""
        if isinstance(text, Target):
            return text
        name = text.strip().lower()
        if re.fullmatch(r"\d+", name):
            name = f"sm_{name}"
        if name not in TARGETS:
            raise TargetError(f"unknown target {text!r}", hint=f"known targets: {', '.join(sorted(TARGETS))}")
        return TARGETS[name]

    def override(self, **changes: Any) -> Target:
        """The same chip with some fields replaced, for tests and calibration files."""
        return dataclasses.replace(self, **changes)


def _chip(
    chip: str, ptx: str, sms: int, threads_sm: int, kb_block: int, kb_sm: int, l2_mb: float, tb_s: float
) -> Target:
    limits = (kb_block * 1024, kb_sm * 1024, int(l2_mb * 2**20), tb_s * 1e12)
    generation = int(chip.removeprefix("sm_").rstrip("af"))
    clusters = PORTABLE_CLUSTER_BLOCKS if generation >= FIRST_WITH_CLUSTERS else 1
    return Target(chip, ptx, sms, threads_sm, *limits, cluster_blocks=clusters)


# Reference parts: sm_75 T4, sm_80 A100-40G, sm_86 A10, sm_89 L4, sm_90 H100 SXM, sm_100 B200, sm_120 RTX 5090.
TARGETS: dict[str, Target] = {
    t.chip: t
    for t in (
        _chip("sm_75", "6.3", 40, 1024, 64, 64, 4, 0.32),
        _chip("sm_80", "7.0", 108, 2048, 163, 164, 40, 1.555),
        _chip("sm_86", "7.1", 72, 1536, 99, 100, 6, 0.6),
        _chip("sm_89", "7.8", 58, 1536, 99, 100, 48, 0.3),
        _chip("sm_90", "7.8", 132, 2048, 227, 228, 50, 3.35),
        _chip("sm_90a", "8.0", 132, 2048, 227, 228, 50, 3.35),
        _chip("sm_100", "8.6", 148, 2048, 227, 228, 126, 8.0),
        _chip("sm_120", "8.7", 170, 1536, 99, 100, 96, 1.792),
    )
}
