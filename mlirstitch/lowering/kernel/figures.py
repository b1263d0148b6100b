"""What a kernel asks of a chip, counted on its ``gpu.func``: :class:`KernelFigures`. Nothing is run.

Every op counts as often as warps execute it. Conditions and bounds of loops that follow from the numbers of block and
thread are computed for sampled warps (``warp_sample``); for others the builder's accounting says which share of the
threads comes by. What an op becomes is a model (``instruction_model``).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from mlir import ir

from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.instruction_model import Counts, ValueKind, access_instructions, instructions_of
from mlirstitch.lowering.kernel.kernel_body import BodyTemplate, emit_counted
from mlirstitch.lowering.kernel.resources import TRIAL, Resources, checked_resources, trial_module
from mlirstitch.lowering.kernel.warp_sample import Array, WarpSample
from mlirstitch.passes.stitching.cost.figures import ArgumentFigures, KernelFigures
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.passes.structured import defining_op
from mlirstitch.target import Target


def try_figures(template: BodyTemplate, cluster: Cluster, schedule: Schedule, target: Target) -> KernelFigures:
    """Emit the kernel into a module that is thrown away, and count.

    Raises:
        PassError: the schedule does not fit the cluster, or the kernel needs more than the chip has.
    """
    check_program(build_program(cluster))
    with trial_module(cluster):
        kernel, visits = emit_counted(template, cluster, schedule, TRIAL, target)
        return figures_of(kernel, schedule, checked_resources(kernel, schedule, target), visits, target)


Visits = Mapping[ir.Block, Fraction]
"""How often all threads of the launch together come by a block of the kernel, as its builder counted."""

_LOADS = ("memref.load", "vector.load", "llvm.load")
_STORES = ("memref.store", "vector.store", "llvm.store")
_ATOMICS = ("memref.atomic_rmw", "llvm.atomicrmw")
_VIEWS = frozenset(
    (
        *("memref.view", "memref.reinterpret_cast", "memref.extract_aligned_pointer_as_index", "llvm.getelementptr"),
        *("llvm.inttoptr", "arith.index_cast", "builtin.unrealized_conversion_cast", "nvvm.mapa"),
    )
)
_BARRIERS = frozenset(("gpu.barrier", "nvvm.barrier", "nvvm.cluster.arrive", "nvvm.cluster.wait"))

START: Counts = {"move": 6, "control": 1, "integer": 1}
"""What every warp executes: parameters, thread and block, return."""

ITERATION: Counts = {"integer": 2, "control": 1, "move": 1}
"""What every iteration of a loop takes."""

BRANCH: Counts = {"control": 1, "integer": 0.5}

UNROLLED = 4
"""LLVM unrolls loops of few iterations whole."""


def figures_of(
    kernel: ir.Operation, schedule: Schedule, resources: Resources, visits: Visits, target: Target
) -> KernelFigures:
    """The figures of a ``gpu.func`` launched as ``schedule`` says; ``visits`` is its builder's accounting."""
    blocks, threads = math.prod(schedule.grid), math.prod(schedule.block)
    counter = _Counter(kernel, max(1, blocks), threads, visits)
    if blocks:
        counter.count()
    moved = list(ir.DenseI64ArrayAttr(kernel.attributes["stitch.traffic"]))
    touched = list(ir.DenseI64ArrayAttr(kernel.attributes["stitch.touched"]))
    kinds = [argument.type for argument in list(kernel.regions[0].blocks[0].arguments)[: len(moved)]]
    return KernelFigures(
        blocks,
        threads,
        {name: counter.instructions[name] for name in sorted(counter.instructions)},
        tuple(
            ArgumentFigures(_bytes(kind), reach, traffic, counter.sectors[number] if blocks else 0.0)
            for number, (kind, reach, traffic) in enumerate(zip(kinds, touched, moved, strict=True))
        ),
        resources.registers,
        resources.static_shared,
        resources.dynamic_shared,
        resources.blocks_per_sm(target),
    )


def _bytes(kind: ir.Type) -> int:
    memref = ir.MemRefType(kind)
    return math.prod(memref.shape) * -(-ValueKind.of(memref.element_type).width // 8)


@dataclass(frozen=True, eq=False)
class _Flow:
    """How warps come by a point.

    ``times``: of every sampled warp; ``mask``: which of its threads are active.
    """

    times: Array
    mask: Array

    def executions(self) -> float:
        """Sum over the sampled warps that have an active thread."""
        return float((self.times * self.mask.any(axis=1)).sum())


@dataclass(eq=False)
class _Counter:
    """Walks one kernel."""

    kernel: ir.Operation
    blocks: int
    threads: int
    visits: Visits
    instructions: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sectors: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    _bases: set[tuple[ir.Block, ir.Value, ir.Value | None]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.sample = WarpSample(self.blocks, self.threads)
        self.entry = self.kernel.regions[0].blocks[0]
        self._arguments = {value: number for number, value in enumerate(self.entry.arguments)}

    def count(self) -> None:
        """Count the whole kernel."""
        flow = _Flow(np.ones(self.sample.warps), self.sample.launched)
        self._add(START, flow)
        self._block(self.entry, flow)

    def _add(self, counts: Counts, flow: _Flow, factor: float = 1.0) -> None:
        times = flow.executions() * self.sample.share * factor
        for name, count in counts.items():
            self.instructions[name] += count * times

    def _block(self, block: ir.Block, flow: _Flow) -> None:
        for view in block.operations:
            self._op(view.operation, flow)

    def _op(self, op: ir.Operation, flow: _Flow) -> None:
        name = op.name
        if name == "scf.for":
            self._loop(op, flow)
        elif name == "scf.if":
            self._branch(op, flow)
        elif name == "scf.while":
            for region in op.regions:
                self._block(region.blocks[0], flow)
            self._add(ITERATION, flow)
        elif name in _LOADS:
            self._access(op, op.operands[0], op.results[0].type, stores=False, flow=flow)
        elif name in _STORES:
            self._access(op, op.operands[1], op.operands[0].type, stores=True, flow=flow)
        elif name in _ATOMICS:
            self._add({"atomic": 1, "integer": 1}, flow)
        elif name in _BARRIERS:
            self._add({"barrier": 1}, flow)
        elif name in ("llvm.fence", "nvvm.membar"):
            self._add({"fence": 1}, flow)
        else:
            self.sample.evaluate(op)
            if op.results and self._is_folded(op):
                return
            self._add(instructions_of(op), flow)

    def _is_folded(self, op: ir.Operation) -> bool:
        """An offset from another index by a constant is part of the access that uses it."""
        if op.name != "arith.addi" or not isinstance(op.results[0].type, ir.IndexType):
            return False
        return any(
            (source := defining_op(value)) is not None and source.name == "arith.constant" for value in op.operands
        )

    # Control flow ---------------------------------------------------------------------------------------------------

    def _loop(self, op: ir.Operation, flow: _Flow) -> None:
        body = op.regions[0].blocks[0]
        low, high, step = (self.sample.get(value) for value in list(op.operands)[:3])
        self.sample.set(body.arguments[0], low)
        if low is None or high is None or step is None:
            inner = _Flow(flow.times * self._share(body, op.block), flow.mask)
        else:
            trips = np.broadcast_to(np.maximum(0, -(-(high - low) // np.maximum(step, 1))), flow.mask.shape)
            trips = np.where(flow.mask, trips, 0)
            inner = _Flow(flow.times * trips.max(axis=1), flow.mask & (trips > 0))
        before = flow.executions()
        if not before or inner.executions() / before > UNROLLED:
            self._add(ITERATION, inner)
        self._block(body, inner)

    def _branch(self, op: ir.Operation, flow: _Flow) -> None:
        condition = self.sample.get(op.operands[0])
        self._add(BRANCH, flow)
        for number, region in enumerate(op.regions):
            for block in region.blocks:
                if condition is None:
                    inner = _Flow(flow.times * min(1.0, self._share(block, op.block)), flow.mask)
                else:
                    taken = np.broadcast_to(condition != 0, flow.mask.shape)
                    inner = _Flow(flow.times, flow.mask & (taken if number == 0 else ~taken))
                self._block(block, inner)

    def _share(self, inner: ir.Block, outer: ir.Block) -> float:
        """Visits of a block for each visit of the one around it."""
        within, around = self.visits.get(inner), self.visits.get(outer)
        return float(within / around) if within is not None and around else 1.0

    # Memory ---------------------------------------------------------------------------------------------------------

    def _access(self, op: ir.Operation, memory: ir.Value, kind: ir.Type, stores: bool, flow: _Flow) -> None:
        value = ValueKind.of(kind)
        base = self._base(memory)
        number = self._arguments.get(base) if base is not None else None
        shared = _is_shared(memory.type)
        index = None if op.name.startswith("llvm.") else op.operands[-1]
        self._add(
            access_instructions(value, "shared" if shared else "global", stores, self._is_fresh(op, memory, index)),
            flow,
        )
        if number is None or shared:
            return
        element = None if index is None else self.sample.get(index)
        width = -(-value.width // 8)
        if element is None and index is None:
            element = np.zeros((1, 1), np.int64)  # a ticket or a word that blocks wait for: one address a warp
        touched = self.sample.sectors(element, width, value.bytes, flow.mask)
        self.sectors[number] += float((touched * flow.times).sum()) * self.sample.share

    def _is_fresh(self, op: ir.Operation, memory: ir.Value, index: ir.Value | None) -> bool:
        """The first access of a block to an array at an index, constant offsets left out."""
        source = defining_op(index) if index is not None else None
        if source is not None and source.name == "arith.addi" and self._is_folded(source):
            first, second = source.operands
            maker = defining_op(first)
            index = second if maker is not None and maker.name == "arith.constant" else first
        key = (op.block, memory, index)
        if key in self._bases:
            return False
        self._bases.add(key)
        return True

    def _base(self, memory: ir.Value) -> ir.Value | None:
        """The argument of the kernel that a memref or pointer comes from."""
        op = defining_op(memory)
        while op is not None and op.name in _VIEWS:
            memory = op.operands[0]
            op = defining_op(memory)
        return memory if op is None else None


def _is_shared(kind: ir.Type) -> bool:
    if isinstance(kind, ir.MemRefType):
        return kind.memory_space is not None and "workgroup" in str(kind.memory_space)
    return "<3>" in str(kind) or "<7>" in str(kind)
