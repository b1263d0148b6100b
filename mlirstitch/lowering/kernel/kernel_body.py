"""Where a template emits: a kernel of its own, or the part of a kernel that a range of its blocks runs.

A template's ``emit_body`` asks a :class:`Site` for a :class:`KernelBody` once it has checked the schedule, and emits
into that. It gets block and thread ids and barriers from the body's builder, so that the same code is a whole kernel
(:func:`emit_whole`) or a part of a packed one (template ``packed``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol, runtime_checkable

from mlir import ir

from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.evaluate import Context, Evaluator, Reducer
from mlirstitch.lowering.kernel.kernel_function import KernelFunction
from mlirstitch.lowering.kernel.memory_access import Accesses
from mlirstitch.lowering.kernel.tensor_program import Table, TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule, Template
from mlirstitch.target import Target


@dataclass(eq=False)
class KernelBody:
    """What a template emits into.

    Attributes:
        builder: creates ops at the start of the body; its ``block_id`` counts from the first block of the body.
        memory: flat memrefs of the body's inputs, destinations, scratch buffers and tickets.
        shared: makes a buffer in shared memory (elements, element type).
        begin_part: says that only some blocks run what comes next, in the given block of ops: its buffers in shared
            memory lie where those of other parts do.
        dynamic_shared: makes a pointer (address space 3) to the block's dynamic shared memory.
        table: the memref of a constant table.
    """

    builder: Builder
    memory: Sequence[Value]
    shared: Callable[[int, ir.Type], Value]
    begin_part: Callable[[ir.Block], None]
    dynamic_shared: Callable[[], Value]
    table: Callable[[Table], Value]

    def evaluator(self, program: TensorProgram, reduce: Reducer) -> Evaluator:
        """An evaluator of ``program`` that emits here; ``reduce`` supplies reductions."""
        evaluator = Evaluator(self.builder, program, self.memory, Context(), reduce)
        evaluator.tables = self.table
        return evaluator


class Site(Protocol):
    """A place for one body."""

    def open(self, program: TensorProgram, schedule: Schedule) -> KernelBody:
        """Make room for the cluster read as ``program``, run as ``schedule`` says; called once."""
        ...


@runtime_checkable
class BodyTemplate(Template, Protocol):
    """A template whose kernels can be parts of a packed one."""

    def emit_body(self, cluster: Cluster, schedule: Schedule, site: Site, target: Target) -> Accesses:
        """Emit the cluster at ``site`` and return what it moves of the body's ``memory``.

        Raises :class:`PassError` for what ``applies`` refuses, or a wrong schedule.
        """
        ...


@dataclass(eq=False)
class WholeKernel:
    """The site of a ``gpu.func`` of its own, at the current insertion point of a ``gpu.module``.

    ``visits``: how often all threads together come by a block of it.
    """

    cluster: Cluster
    name: str
    function: KernelFunction | None = None
    visits: Mapping[ir.Block, Fraction] = field(default_factory=dict)

    def open(self, program: TensorProgram, schedule: Schedule) -> KernelBody:
        """Create the function."""
        function = self.function = KernelFunction(self.cluster, program, schedule, self.name)
        builder = Builder(function.entry, function.location, math.prod(schedule.grid) * math.prod(schedule.block))
        self.visits = builder.visits
        return KernelBody(
            builder,
            function.memory,
            function.shared,
            function.begin_part,
            lambda: function.dynamic_shared(builder),
            lambda node: function.table(builder, node),
        )


def emit_whole(template: BodyTemplate, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
    """Create the kernel of ``cluster`` as a ``gpu.func`` at the current insertion point, and return it.

    Raises :class:`PassError` as ``emit_body`` does.
    """
    return emit_counted(template, cluster, schedule, name, target)[0]


def emit_counted(
    template: BodyTemplate, cluster: Cluster, schedule: Schedule, name: str, target: Target
) -> tuple[ir.Operation, Mapping[ir.Block, Fraction]]:
    """:func:`emit_whole`, and how often all threads together come by each block of the kernel."""
    site = WholeKernel(cluster, name)
    moved = template.emit_body(cluster, schedule, site, target)
    if site.function is None:
        raise TypeError(f"template {template.name} did not open its site")
    return site.function.finish(moved), site.visits
