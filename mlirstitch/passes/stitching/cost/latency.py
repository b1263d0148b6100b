"""Latency evaluator: how long a kernel runs, from what its schedule asks of the chip.

FusionStitching (arXiv 2009.10924, section 4.3, "latency-evaluator") multiplies waves of warps by the latency of a warp,
which is instructions times cycles. To that, terms for issue and for memory, and the longest of the three counts, since
each hides behind the others as long as enough warps are resident:

- *latency*: waves x latency of a warp. ``waves`` = blocks over those that are resident at the same time. A warp waits
  for memory and at barriers, and issues its instructions one after another.
- *issue*: cycles of all warp instructions by class, on the multiprocessor that has most blocks.
- *memory*: bytes touched over the bandwidth of global memory, in so far as enough bytes are under way to fill it
  (Little's law: bandwidth x latency), and bytes touched again over the bandwidth of the level-2 cache, or of global
  memory if the tensor does not stay in the cache.

A plan's kernels run one after another, each with the cost of its launch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mlirstitch.passes.stitching.cost.delta import CACHED_FRACTION
from mlirstitch.passes.stitching.cost.figures import ArgumentFigures, KernelFigures
from mlirstitch.target import Target

SECTOR = 32
"""Bytes of a sector."""

DEPENDENT_CYCLES = 4
"""Cycles until the result of an arithmetic instruction can be used (programming guide, "Multiprocessor level")."""

OVERLAPPED = 0.5
"""Share of its instructions that a warp issues while it waits for an earlier one; ours."""

RECEIVING = 0.5
"""Share of its registers in which a thread waits for values from memory at the same time; ours."""

REGISTER_BYTES = 4


@dataclass(frozen=True)
class Latency:
    """The terms of one kernel, seconds."""

    launch: float
    latency: float
    issue: float
    memory: float

    @property
    def seconds(self) -> float:
        """Launch, and the longest of the terms."""
        return self.launch + max(self.latency, self.issue, self.memory)


def latency_seconds(figures: KernelFigures, target: Target) -> float:
    """Seconds from launch to end of one kernel."""
    return latency_terms(figures, target).seconds


def plan_seconds(kernels: Iterable[KernelFigures], target: Target) -> float:
    """Seconds of kernels that run one after another."""
    return math.fsum(latency_seconds(figures, target) for figures in kernels)


def latency_terms(figures: KernelFigures, target: Target) -> Latency:
    """The terms of :func:`latency_seconds`."""
    if not figures.blocks:
        return Latency(0.0, 0.0, 0.0, 0.0)
    waves = math.ceil(figures.blocks / (figures.resident_blocks * target.sms))
    return Latency(
        target.launch_seconds,
        waves * _warp_seconds(figures, target),
        issue_seconds(figures.instructions, figures.blocks, target),
        _memory_seconds(figures, target),
    )


def issue_seconds(instructions: Mapping[str, float], blocks: int, target: Target) -> float:
    """Seconds to issue all warp instructions (by class), on the multiprocessor that has most of the blocks."""
    cycles = math.fsum(count * target.cycles.of(name) for name, count in instructions.items())
    most_over_average = math.ceil(blocks / target.sms) * target.sms / max(1, blocks)
    return cycles * most_over_average / (target.sms * target.clock)


def _warp_seconds(figures: KernelFigures, target: Target) -> float:
    instructions = figures.warp_instructions / max(1, figures.warps)
    issued = instructions * DEPENDENT_CYCLES * OVERLAPPED / target.clock
    waits = max(figures.waits, _bytes_of_thread(figures) / _room(figures))
    return issued + waits * target.memory_seconds + figures.barriers * target.barrier_seconds


def _bytes_of_thread(figures: KernelFigures) -> float:
    """Bytes that a thread loads and stores, on average."""
    return figures.moved / (figures.blocks * figures.threads)


def _room(figures: KernelFigures) -> float:
    """Bytes that a thread can wait for at the same time."""
    return RECEIVING * REGISTER_BYTES * max(1, figures.registers)


def _memory_seconds(figures: KernelFigures, target: Target) -> float:
    first = again = 0.0
    for argument in figures.arguments:
        touched, rest = _split(argument, target)
        first += touched
        again += rest
    return first / (target.bandwidth * _filled(figures, target)) + again / target.l2_bandwidth


def _split(argument: ArgumentFigures, target: Target) -> tuple[float, float]:
    """Bytes that come from global memory, and from the level-2 cache."""
    moved = argument.sectors * SECTOR
    if argument.touched * CACHED_FRACTION > target.l2_bytes:
        return moved, 0.0
    touched = min(moved, argument.touched)
    return touched, moved - touched


def _filled(figures: KernelFigures, target: Target) -> float:
    """Which share of the bandwidth the bytes under way fill."""
    threads = min(figures.blocks, figures.resident_blocks * target.sms) * figures.threads
    each = min(_room(figures), max(1.0, _bytes_of_thread(figures)))
    return min(1.0, threads * each / (target.bandwidth * target.memory_seconds))
