"""What a kernel takes of a chip, and whether the chip has it: checked before a schedule is chosen, not at launch."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from mlir import ir

from mlirstitch.dialects import stitch
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.registers import estimate_registers, loads_ahead
from mlirstitch.lowering.launch_limits import Launch, check_launch
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

if TYPE_CHECKING:
    from mlirstitch.passes.stitching.template import Template

WARP = 32
TRIAL = "trial"
"""Name of kernels that are emitted only to see what they take."""

_GRANULE = 8
"""Registers of a thread are handed out in units of so many."""

_PARTITIONS = 4
"""Parts of a multiprocessor, each with a quarter of the registers and of the warps."""

SPILL_MARGIN = 1.25
"""A kernel spills for sure only where the estimate exceeds the registers there are by this factor."""

BOUND_FROM = 72
"""Estimated registers from which on ``ptxas``, left alone, may spill to fit one more block on a multiprocessor.

Smaller kernels are left alone: given a bound, ``ptxas`` takes all registers that the bound leaves (80 where it takes 63
otherwise), and may spill a few bytes at its edge.
"""

BOUND_ROOM = 24
"""Registers that a bounded kernel gets above the estimate: ``ptxas`` keeps to the bound even where it has to spill."""

KEPT_BLOCKS = 0.75
"""Share of the blocks on a multiprocessor that must remain with this room; a few spilled bytes cost less than more."""


@dataclass(frozen=True)
class Resources:
    """What one launch of a kernel takes.

    Attributes:
        registers: of a thread, 32 bits each; an estimate.
        threads: of a block.
        static_shared, dynamic_shared: shared memory of a block, bytes.
        loops: whether ``ptxas`` may unroll a loop of loads, and so take any number of registers.
        ahead: those of ``registers`` that it fills so where it has them, and does without where it has not.
    """

    registers: int
    threads: int
    static_shared: int
    dynamic_shared: int
    loops: bool = False
    ahead: int = 0

    @property
    def shared(self) -> int:
        """Shared memory of a block, bytes."""
        return self.static_shared + self.dynamic_shared

    def register_limit(self, target: Target) -> int:
        """Registers that a thread can have at most, one block on a multiprocessor."""
        warps = -(-self.threads // WARP)
        whole = target.registers_per_sm // (warps * WARP) // _GRANULE * _GRANULE
        return min(target.max_registers_per_thread, whole)

    def blocks_per_sm(self, target: Target) -> int:
        """Blocks that run on one multiprocessor at the same time, at least 1."""
        warps = -(-self.threads // WARP)
        granules = max(1, -(-self.registers // _GRANULE))
        resident = target.registers_per_sm // _PARTITIONS // (granules * _GRANULE * WARP) * _PARTITIONS
        found = [target.max_threads_per_sm // (warps * WARP), resident // warps]
        if self.shared:
            found.append(target.shared_bytes_sm // self.shared)
        return max(1, min(found))


def resources_of(kernel: ir.Operation, schedule: Schedule) -> Resources:
    """What a ``gpu.func`` takes when it is launched as ``schedule`` says."""
    registers, loops = estimate_registers(kernel), loads_ahead(kernel) > 0
    return Resources(
        registers,
        math.prod(schedule.block),
        static_shared_bytes(kernel),
        stitch.DYNAMIC_SHARED.get(kernel) or schedule.shared_bytes,
        loops,
        registers - estimate_registers(kernel, ahead=False) if loops else 0,
    )


def static_shared_bytes(kernel: ir.Operation) -> int:
    """Bytes of the workgroup attributions of a ``gpu.func``."""
    total = 0
    for argument in kernel.regions[0].blocks[0].arguments:
        kind = argument.type
        if isinstance(kind, ir.MemRefType) and kind.memory_space is not None and "workgroup" in str(kind.memory_space):
            total += math.prod(kind.shape) * _element_bytes(kind.element_type)
    return total


def _element_bytes(element: ir.Type) -> int:
    if isinstance(element, ir.VectorType):
        return math.prod(element.shape) * _element_bytes(element.element_type)
    if isinstance(element, ir.IntegerType | ir.FloatType):
        return -(-element.width // 8)
    return 8  # index


def try_schedule(template: Template, cluster: Cluster, schedule: Schedule, target: Target) -> Resources:
    """Emit the kernel into a module that is thrown away, and see what it takes.

    Raises:
        PassError: the schedule does not fit the cluster, or the kernel needs more than the chip has.
    """
    with trial_module(cluster):
        kernel = template.emit(cluster, schedule, TRIAL, target)
        return checked_resources(kernel, schedule, target)


def checked_resources(kernel: ir.Operation, schedule: Schedule, target: Target) -> Resources:
    """What a ``gpu.func`` takes. Raises :class:`PassError` if it needs more than the chip has."""
    resources = resources_of(kernel, schedule)
    check_resources(resources, len(ir.ArrayAttr(kernel.attributes["arg_attrs"])), schedule, target)
    return resources


@contextmanager
def trial_module(cluster: Cluster) -> Iterator[None]:
    """Ops go into a ``gpu.module`` that is thrown away."""
    location = cluster.ops[0].location
    module = ir.Module.create(location)
    with ir.InsertionPoint(module.body), location:
        container = ir.Operation.create("gpu.module", attributes={"sym_name": ir.StringAttr.get(TRIAL)}, regions=1)
        body = container.regions[0].blocks.append()
    with ir.InsertionPoint(body), location:
        yield


def check_resources(resources: Resources, arguments: int, schedule: Schedule, target: Target) -> None:
    """Raise :class:`PassError` naming number and limit if ``target`` cannot run the kernel, or it would spill."""
    if math.prod(schedule.grid):
        check_launch(
            Launch(
                schedule.template,
                schedule.grid,
                schedule.block,
                arguments,
                resources.dynamic_shared,
                resources.static_shared,
                cluster=schedule.thread_block_cluster,
                cooperative=schedule.cooperative,
            ),
            target,
        )
    limit = resources.register_limit(target)
    needed = resources.registers - resources.ahead
    if needed > limit * SPILL_MARGIN:
        raise PassError(
            f"a thread needs about {needed} registers, and {resources.threads} threads of a block can "
            f"have {limit} each",
            hint="give it fewer threads a block, or a schedule that keeps less (mode loop)",
        )


def bound_launch(kernel: ir.Operation, schedule: Schedule, target: Target) -> None:
    """Write ``nvvm.minctasm`` where the estimate justifies it: as many blocks as fit with the registers it needs.

    Left alone, ``ptxas`` may spill a few bytes to fit one more block on a multiprocessor. A kernel with many live
    values is better off with its registers. One with loops to unroll is left alone: it would take all there are.
    """
    resources = resources_of(kernel, schedule)
    if resources.registers < BOUND_FROM or resources.loops:
        return
    limit = resources.register_limit(target)
    roomy = replace(resources, registers=min(resources.registers + BOUND_ROOM, limit))
    blocks, tight = roomy.blocks_per_sm(target), resources.blocks_per_sm(target)
    if blocks >= KEPT_BLOCKS * tight:
        kind = ir.IntegerType.get_signless(32, kernel.context)
        kernel.attributes["nvvm.minctasm"] = ir.IntegerAttr.get(kind, blocks)
