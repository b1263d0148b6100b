"""What sharing a launch costs: a part that could fill a multiprocessor with threads may not any more.

All parts of a packed kernel get the registers, the shared memory and the block size of the greediest. As long as the
threads that are then resident still keep memory busy, nothing is lost; below that, a part takes longer in proportion.
Registers are an estimate: what is known of a schedule before code is generated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlirstitch.passes.stitching.graph import tensor_bytes
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.passes.structured import shape_of
from mlirstitch.target import Target

BASE_REGISTERS = 24
"""Registers of a thread beside the elements it works on: addresses, indices, what a body needs at once."""

ENOUGH_THREADS = 0.5
"""Share of a multiprocessor's threads from which on more do not make memory any busier."""

MOST_BLOCKS_PER_SM = 32
"""Blocks resident on a multiprocessor at most (CUDA C programming guide, "Compute capabilities": 16 to 32)."""


@dataclass(frozen=True)
class Load:
    """What a cluster asks of the chip when it runs as ``schedule`` says.

    Attributes:
        bytes: sizes of the tensors it reads and writes.
        seconds: time to move them.
        threads: threads of a block.
        blocks: blocks of the launch.
        registers: estimated registers of a thread.
        shared_bytes: dynamic shared memory of a block.
    """

    bytes: int
    seconds: float
    threads: int
    blocks: int
    registers: int
    shared_bytes: int

    @staticmethod
    def of(cluster: Cluster, schedule: Schedule, target: Target) -> Load:
        """The load of one cluster."""
        moved = sum(tensor_bytes(value) for value in (*cluster.inputs, *cluster.outputs))
        threads, blocks = math.prod(schedule.block), math.prod(schedule.grid)
        sizes = [math.prod(shape_of(value)) for value in (*cluster.inputs, *cluster.outputs)]
        largest = max(sizes, default=0)
        wide = sum(2 * size >= largest for size in sizes[: len(cluster.inputs)])
        each = schedule.vector * int(schedule.parameter("unroll", 1))
        if schedule.parameter("mode") == "resident":
            each = max(each, -(-largest // max(1, threads * blocks)))
        most = min(target.max_registers_per_thread, target.registers_per_sm // max(1, threads))
        registers = min(most, BASE_REGISTERS + each * max(1, wide))
        return Load(moved, moved / target.bandwidth, threads, blocks, registers, schedule.shared_bytes)


def seconds_lost(loads: Sequence[Load], target: Target) -> float:
    """By how much the parts together take longer in one launch than the sum of their times, launches left out."""
    threads = max(load.threads for load in loads)
    registers = max(load.registers for load in loads)
    shared = max(load.shared_bytes for load in loads)
    together = _blocks_per_sm(threads, registers, shared, target)
    lost = 0.0
    for load in loads:
        alone = _blocks_per_sm(load.threads, load.registers, load.shared_bytes, target) * load.threads
        filled = load.blocks * load.threads / target.sms
        wanted = min(alone, filled, ENOUGH_THREADS * target.max_threads_per_sm)
        lost += load.seconds * max(0.0, 1 - together * load.threads / wanted)
    return lost


def _blocks_per_sm(threads: int, registers: int, shared: int, target: Target) -> int:
    """Blocks of a kernel that a multiprocessor holds at the same time, at least one."""
    found = min(
        MOST_BLOCKS_PER_SM, target.max_threads_per_sm // threads, target.registers_per_sm // (registers * threads)
    )
    if shared:
        found = min(found, target.shared_bytes_sm // shared)
    return max(1, found)
