"""What a kernel asks of a chip, counted on its ``gpu.func`` (``kernel_counter``): :class:`KernelFigures`."""

from __future__ import annotations

import math

from mlir import ir

from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.instruction_model import ValueKind
from mlirstitch.lowering.kernel.kernel_body import BodyTemplate, emit_counted
from mlirstitch.lowering.kernel.kernel_counter import KernelCounter, Visits
from mlirstitch.lowering.kernel.resources import TRIAL, Resources, checked_resources, trial_module
from mlirstitch.passes.stitching.cost.figures import ArgumentFigures, KernelFigures
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

KEEPS_NAN = 80
"""Compute capability (times ten) from which on there are minimum and maximum that keep NaN."""


def try_figures(template: BodyTemplate, cluster: Cluster, schedule: Schedule, target: Target) -> KernelFigures:
    """Emit the kernel into a module that is thrown away, and count.

    Raises:
        PassError: the schedule does not fit the cluster, or the kernel needs more than the chip has.
    """
    check_program(build_program(cluster))
    with trial_module(cluster):
        kernel, visits = emit_counted(template, cluster, schedule, TRIAL, target)
        return figures_of(kernel, schedule, checked_resources(kernel, schedule, target), visits, target)


def figures_of(
    kernel: ir.Operation, schedule: Schedule, resources: Resources, visits: Visits, target: Target
) -> KernelFigures:
    """The figures of a ``gpu.func`` launched as ``schedule`` says; ``visits`` is its builder's accounting.

    Counts are rounded, so that rounding errors of sums do not tell equal kernels apart.
    """
    blocks, threads = math.prod(schedule.grid), math.prod(schedule.block)
    counter = KernelCounter(
        kernel, max(1, blocks), threads, visits, int(target.chip.removeprefix("sm_").rstrip("af")) < KEEPS_NAN
    )
    if blocks:
        counter.count()
    moved = list(ir.DenseI64ArrayAttr(kernel.attributes["stitch.traffic"]))
    touched = list(ir.DenseI64ArrayAttr(kernel.attributes["stitch.touched"]))
    kinds = [argument.type for argument in list(kernel.regions[0].blocks[0].arguments)[: len(moved)]]
    return KernelFigures(
        blocks,
        threads,
        {name: round(counter.instructions[name], 1) for name in sorted(counter.instructions)},
        tuple(
            ArgumentFigures(_bytes(kind), reach, traffic, float(round(counter.sectors.get(number, 0.0))))
            for number, (kind, reach, traffic) in enumerate(zip(kinds, touched, moved, strict=True))
        ),
        resources.registers,
        resources.static_shared,
        resources.dynamic_shared,
        resources.blocks_per_sm(target),
        round(counter.waits, 1),
    )


def _bytes(kind: ir.Type) -> int:
    memref = ir.MemRefType(kind)
    return math.prod(memref.shape) * -(-ValueKind.of(memref.element_type).width // 8)
