"""Counts what the warps of a kernel execute and which sectors they touch, on its ``gpu.func``. Nothing is run.

Every op counts as often as warps execute it. Conditions and bounds of loops that follow from the numbers of block and
thread are computed for sampled warps (``warp_sample``); for others the builder's accounting says which share of the
threads comes by. What an op becomes is a model: of its instructions (``instruction_model``), of loops (``loop_model``),
of what is computed only once (``redundancy``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from mlir import ir

from mlirstitch.lowering.kernel.instruction_model import (
    Counts,
    ValueKind,
    access_instructions,
    instructions_of,
    registers_of,
)
from mlirstitch.lowering.kernel.loop_model import Advance, unrolling
from mlirstitch.lowering.kernel.redundancy import BARRIERS, Numbering, Placement, constant_of, is_constant, is_pure
from mlirstitch.lowering.kernel.warp_sample import Array, WarpSample
from mlirstitch.passes.structured import defining_op

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
_LOOPS = frozenset(("scf.for", "scf.while"))
_FENCES = frozenset(("llvm.fence", "nvvm.membar"))

ARGUMENT: Counts = {"move": 2}
"""Reading the address of an argument, and making it one of global memory."""

RETURN: Counts = {"control": 1}

ITERATION: Counts = {"integer": 2, "control": 1}
"""Each time a loop comes around: advancing the counter, comparing, branching."""

BRANCH: Counts = {"control": 1}

SCALING: Counts = {"integer": 0.5}
"""From an element's number to its bytes, where that is not part of the arithmetic before."""

WIDEST = 16
"""Bytes of the widest access."""


@dataclass(frozen=True, eq=False)
class Flow:
    """How warps come by a point.

    ``times``: how often the warps do that a sampled one stands for; ``mask``: which of its threads are active.
    """

    times: Array
    mask: Array

    def executions(self) -> float:
        """Sum over the warps that have an active thread."""
        return float((self.times * self.mask.any(axis=1)).sum())


@dataclass(eq=False)
class _Loop:
    """The loop around: how warps come by it, and what changes in it."""

    before: Flow
    advance: Advance
    synchronises: bool


@dataclass(frozen=True, eq=False)
class _Access:
    """One load or store.

    ``argument``: number of the kernel's argument, None for other memory; ``element``: which one sampled threads access,
    if known; ``offset``: constant part of the index.
    """

    value: ValueKind
    stores: bool
    shared: bool
    argument: int | None
    element: Array | None
    offset: int
    flow: Flow


@dataclass(eq=False)
class KernelCounter:
    """Walks one kernel.

    Attributes:
        old: the chip is older than sm_80.
        instructions: warp instructions of the whole launch by class.
        sectors: 32-byte sectors of all requests to each argument, by its number.
        waits: how often warps wait for global memory: once for all loads between two barriers.
    """

    kernel: ir.Operation
    blocks: int
    threads: int
    visits: Visits
    old: bool = False
    instructions: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    sectors: dict[int, float] = field(default_factory=lambda: defaultdict(float))
    waits: float = 0.0
    _bases: set[tuple[ir.Block, ir.Value, int | None]] = field(default_factory=set)
    _moved_down: dict[ir.Block, list[Callable[[Flow], None]]] = field(default_factory=lambda: defaultdict(list))
    _loops: list[_Loop] = field(default_factory=list)
    _scaled: set[tuple[int, int]] = field(default_factory=set)
    _static: set[ir.Value] = field(default_factory=set)
    _stored: set[tuple[ir.Value, int | None, int, int]] = field(default_factory=set)
    _wait: float = 0.0
    _waiting: dict[tuple[ir.Value, int, bool, ValueKind], list[_Access]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def __post_init__(self) -> None:
        self.sample = WarpSample(self.blocks, self.threads)
        self.entry = self.kernel.regions[0].blocks[0]
        self._arguments = {value: number for number, value in enumerate(self.entry.arguments)}
        attributes = ir.ArrayAttr(self.kernel.attributes["arg_attrs"])
        given = list(zip(self.entry.arguments, attributes, strict=False))
        self._read_only = {value for value, each in given if "llvm.readonly" in ir.DictAttr(each)}
        self._arguments_given = len(given)
        self._placement = Placement.of(self.kernel)
        self._numbering = Numbering(self._read_only)

    def count(self) -> None:
        """Count the whole kernel."""
        flow = Flow(self.sample.weights, self.sample.launched)
        self._add(ARGUMENT, flow, self._arguments_given)
        self._add(RETURN, flow)
        self._block(self.entry, flow)

    def _add(self, counts: Counts, flow: Flow, factor: float = 1.0) -> None:
        times = flow.executions() * factor
        for name, count in counts.items():
            self.instructions[name] += count * times

    def _block(self, block: ir.Block, flow: Flow) -> None:
        self._finish_accesses()
        for count in self._moved_down.pop(block, ()):
            count(flow)
        with self._numbering.scope():
            self._ops(block, flow)
        self._finish_accesses()

    def _ops(self, block: ir.Block, flow: Flow) -> None:
        for view in block.operations:
            if view.operation in self._placement.live:
                self._op(view.operation, flow)

    def _op(self, op: ir.Operation, flow: Flow) -> None:
        name = op.name
        if self._loops:
            self._loops[-1].advance.note(op)
        if is_pure(op):
            self.sample.evaluate(op)
            if all(self._is_static(operand) for operand in op.operands) and op.operands:
                self._static.update(op.results)
                return
        if self._numbering.is_known(op):
            return
        if name == "scf.for":
            self._loop(op, flow)
        elif name == "scf.if":
            self._branch(op, flow)
        elif name == "scf.while":
            for region in op.regions:
                self._block(region.blocks[0], flow)
            self._add(ITERATION, flow)
        elif name in _LOADS:
            self._load(op, flow)
        elif name in _STORES:
            self._access(op, op.operands[1], op.operands[0].type, stores=True, flow=flow)
        elif name in _ATOMICS:
            self._atomic(op, flow)
        elif name in BARRIERS:
            self._finish_accesses()
            self._stored.clear()
            self._add({"barrier": 1}, flow)
        elif name in _FENCES:
            self._add({"fence": 1}, flow)
        else:
            self._value(op, flow)

    def _value(self, op: ir.Operation, flow: Flow) -> None:
        """Count an op that computes, where it is computed."""
        counts = instructions_of(op, self._numbering.is_uniform(op.results[0]), self.old) if op.results else {}
        block = self._placement.block.get(op, op.block)
        if self._loops and (self._loops[-1].advance.is_fixed(op) or self._loops[-1].advance.is_advanced(op)):
            self._add(counts, self._loops[-1].before)
        elif block != op.block:
            self._moved_down[block].append(lambda inner: self._add(counts, inner))
        else:
            self._add(counts, flow)

    # Control flow ---------------------------------------------------------------------------------------------------

    def _loop(self, op: ir.Operation, flow: Flow) -> None:
        body = op.regions[0].blocks[0]
        known = [self.sample.get(value) for value in list(op.operands)[:3]]
        low, high, step = known
        self.sample.set(body.arguments[0], low)
        trips: int | None = None
        if low is None or high is None or step is None:
            inner = Flow(flow.times * self._share(body, op.block), flow.mask)
        else:
            each = np.broadcast_to(np.maximum(0, -(-(high - low) // np.maximum(step, 1))), flow.mask.shape)
            each = np.where(flow.mask, each, 0)
            # The sample stands at the first iteration of loops around, and need not be typical: the builder knows the
            # average over all threads.
            typical = self._calibration(body, op.block, flow, each)
            inner = Flow(flow.times * each.max(axis=1) * typical, flow.mask & (each > 0))
            static = all(self._is_static(value) for value in list(op.operands)[:3])
            always = low.size == high.size == step.size == 1 and self._share(body, op.block) == each.max()
            trips = int(each.max()) if static or always else None
        unrolled = unrolling(self._size(body), trips, self._contains(body, _LOOPS))
        if unrolled.whole:
            self._static.add(body.arguments[0])
        else:
            self._add(ITERATION, inner, 1 / unrolled.copies)
            self._add({"move": 1 + self._moves(list(op.operands)[3:])}, flow)
        advance = Advance(unrolled)
        advance.enter(op)
        self._loops.append(_Loop(flow, advance, self._contains(body, BARRIERS)))
        self._block(body, inner)
        self._loops.pop()

    def _is_static(self, value: ir.Value) -> bool:
        """Known when the kernel is compiled, once loops are unrolled whole."""
        return value in self._static or constant_of(value) is not None

    def _size(self, block: ir.Block) -> float:
        """Instructions of a block before LLVM simplifies it."""
        size = 0.0
        for view in block.operations:
            op = view.operation
            if op not in self._placement.live:
                continue
            if op.name in _LOADS or op.name in _STORES:
                size += 2  # and its address
            elif op.results and isinstance(op.results[0].type, ir.IndexType):
                size += 1
            else:
                size += sum(instructions_of(op).values())
            size += sum(self._size(inner) for region in op.regions for inner in region.blocks)
        return size

    def _contains(self, block: ir.Block, names: frozenset[str]) -> bool:
        """An op of one of the names stands in the block, or in one inside."""
        return any(
            view.operation.name in names
            or any(self._contains(inner, names) for region in view.operation.regions for inner in region.blocks)
            for view in block.operations
        )

    def _moves(self, values: Iterable[ir.Value]) -> float:
        """Moves that set registers to those of the values that are constants."""
        return sum(registers_of(value.type) for value in values if is_constant(value))

    def _branch(self, op: ir.Operation, flow: Flow) -> None:
        blocks = [block for region in op.regions for block in region.blocks]
        condition = self.sample.get(op.operands[0])
        always = condition is not None and bool(np.all(condition | ~flow.mask))
        if always and self._share(blocks[0], op.block) == 1.0 and not op.results:
            self._ops(blocks[0], flow)  # LLVM finds that, too
            return
        self._add(BRANCH, flow)
        for number, block in enumerate(blocks):
            taken = None if condition is None else flow.mask & ((condition != 0) == (number == 0))
            if taken is not None and taken.any():
                typical = self._calibration(block, op.block, flow, taken)
                inner = Flow(flow.times * typical, taken)
            else:
                inner = Flow(flow.times * min(1.0, self._share(block, op.block)), flow.mask)
            self._block(block, inner)
            self._add({"move": self._moves(block.operations[len(block.operations) - 1].operands)}, flow)

    def _calibration(self, inner: ir.Block, outer: ir.Block, flow: Flow, visits: Array) -> float:
        """What ``visits`` of the sampled threads have to be multiplied by to be those of all threads, on average."""
        arrivals = float((flow.mask * flow.times[:, None]).sum())
        sampled = float((visits * flow.times[:, None]).sum())
        if inner not in self.visits or not sampled or not arrivals:
            return 1.0
        return self._share(inner, outer) * arrivals / sampled

    def _share(self, inner: ir.Block, outer: ir.Block) -> float:
        """Visits of a block for each visit of the one around it."""
        within, around = self.visits.get(inner), self.visits.get(outer)
        return float(within / around) if within is not None and around else 1.0

    # Memory ---------------------------------------------------------------------------------------------------------

    def _load(self, op: ir.Operation, flow: Flow) -> None:
        def count(flow: Flow) -> None:
            self._access(op, op.operands[0], op.results[0].type, stores=False, flow=flow)

        block = self._placement.block.get(op, op.block)
        if block == op.block:
            count(flow)
        else:
            self._moved_down[block].append(count)

    def _access(self, op: ir.Operation, memory: ir.Value, kind: ir.Type, stores: bool, flow: Flow) -> None:
        value = ValueKind.of(kind)
        shared = _is_shared(memory.type)
        index = None if op.name.startswith("llvm.") else op.operands[-1]
        base, offset = (None, 0) if index is None else self._numbering.place(index)
        place = (memory, base, offset, value.bytes)
        if shared and not stores and place in self._stored:
            return  # the thread has just written it
        if shared and stores:
            self._stored.add(place)
        argument = self._base(memory)
        element = None if index is None else self.sample.get(index)
        if element is None and index is None:
            element = np.zeros((1, 1), np.int64)  # a ticket or a word that blocks wait for: one address a warp
        if (op.block, memory, base) not in self._bases:
            self._bases.add((op.block, memory, base))
            self._address(index, flow)
            if base is not None and (base, value.width) not in self._scaled:
                self._scaled.add((base, value.width))
                self._add(SCALING, self._loops[-1].before if self._loops else flow)
        access = _Access(
            value, stores, shared, None if argument is None else self._arguments.get(argument), element, offset, flow
        )
        merged = self._merged(op, argument, index, element, value)
        if not shared and not stores:
            self._wait = max(self._wait, self._free_flow(flow).executions())
        if merged > 1 or base is None:
            self._request(access, merged, 1 / merged)
        else:
            self._waiting[(memory, base, stores, value)].append(access)

    def _free_flow(self, flow: Flow) -> Flow:
        """How warps come by the outermost loop around without barriers, whose iterations may load ahead."""
        for loop in reversed(self._loops):
            if loop.synchronises:
                break
            flow = loop.before
        return flow

    def _atomic(self, op: ir.Operation, flow: Flow) -> None:
        """Count an atomic, whose threads access one place each."""
        self._add({"atomic": 1, "integer": 1}, flow)
        base = next((found for operand in op.operands if (found := self._base(operand)) in self._arguments), None)
        if base is not None:
            self.sectors[self._arguments[base]] += float((flow.mask.sum(axis=1) * flow.times).sum())

    def _finish_accesses(self) -> None:
        """Count the accesses of a block; neighbours in memory become one, as far as it is aligned."""
        self.waits += self._wait
        self._wait = 0.0
        for (_, _, _, value), accesses in self._waiting.items():
            left = sorted(accesses, key=lambda access: access.offset)
            while left:
                merged = WIDEST // value.bytes or 1
                while merged > 1 and not _is_run(left[:merged], merged):
                    merged //= 2
                self._request(left[0], merged, 1.0)
                left = left[merged:]
        self._waiting.clear()

    def _request(self, access: _Access, merged: int, times: float) -> None:
        """Count one request of ``merged`` accesses side by side."""
        value = access.value
        space = "shared" if access.shared else "global"
        self._add(access_instructions(value, space, access.stores, merged), access.flow, times)
        if access.argument is None or access.shared:
            return
        width = -(-value.width // 8)
        touched = self.sample.sectors(access.element, width, value.bytes * merged, access.flow.mask)
        self.sectors[access.argument] += float((touched * access.flow.times).sum()) * times

    def _merged(
        self, op: ir.Operation, base: ir.Value | None, index: ir.Value | None, element: Array | None, value: ValueKind
    ) -> int:
        """How many iterations of an unrolled loop load with one access: neighbours in memory that nothing writes."""
        if not self._loops or index is None or element is None or op.name not in _LOADS or base not in self._read_only:
            return 1
        advance = self._loops[-1].advance
        if advance.of(index) != value.lanes:
            return 1
        merged = 1
        most = min(advance.unrolling.copies, WIDEST // value.bytes)
        while 2 * merged <= most and not (element % (2 * merged * value.lanes)).any():
            merged *= 2
        return merged

    def _address(self, index: ir.Value | None, flow: Flow) -> None:
        """Count the address of the first access to an array at an index."""
        change = self._loops[-1].advance.of(index) if self._loops and index is not None else None
        if change is None:
            self._add({"integer": 1}, flow)
            return
        loop = self._loops[-1]
        self._add({"integer": 1}, loop.before)
        if change and not loop.advance.unrolling.whole:
            self._add({"integer": 1}, flow, 1 / loop.advance.unrolling.copies)

    def _base(self, memory: ir.Value) -> ir.Value | None:
        """The argument of the kernel that a memref or pointer comes from."""
        op = defining_op(memory)
        while op is not None and op.name in _VIEWS:
            memory = op.operands[0]
            op = defining_op(memory)
        return memory if op is None else None


def _is_run(accesses: Sequence[_Access], count: int) -> bool:
    """``count`` accesses lie side by side, and start where one access to all of them may."""
    if len(accesses) < count:
        return False
    lanes = accesses[0].value.lanes
    element = accesses[0].element
    aligned = element is not None and not (element % (count * lanes)).any()
    return aligned and all(access.offset == accesses[0].offset + n * lanes for n, access in enumerate(accesses))


def _is_shared(kind: ir.Type) -> bool:
    if isinstance(kind, ir.MemRefType):
        return kind.memory_space is not None and "workgroup" in str(kind.memory_space)
    return "<3>" in str(kind) or "<7>" in str(kind)
