"""The body of a packed kernel: independent parts share one launch, each with its own range of blocks.

Kernel packing, the first composition scheme of FusionStitching (arXiv 2009.10924, section 2). A block finds its part by
comparing its number with the ends of the ranges, in a binary search whose every branch all threads of the block take
the same way. From there on nothing is shared: a part counts blocks from the first of its own, has its own scratch and
tickets (a range of the launch's), and its static and dynamic shared memory lies where that of the other parts does.

Parts of one block size are preferred. Where a part uses fewer threads than the launch, its threads are whole warps, the
other warps skip it, and it waits at barriers of as many threads as it has (``bar.sync 0, n``), which PTX allows: a
barrier with a count is complete when so many threads have arrived, whatever the other warps of the block do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlir import ir

from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.kernel_body import KernelBody
from mlirstitch.lowering.kernel.memory_access import Accesses
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule


@dataclass(frozen=True)
class PartRange:
    """A part's place in the launch.

    Attributes:
        cluster, schedule: the part.
        first_block: its first block.
        first_scratch: number of its first scratch buffer among those of the launch.
        first_ticket: its first ticket among those of the launch.
    """

    cluster: Cluster
    schedule: Schedule
    first_block: int
    first_scratch: int
    first_ticket: int

    @property
    def blocks(self) -> int:
        """Blocks of the part."""
        return self.schedule.grid[0]


def part_ranges(parts: Sequence[Cluster], schedules: Sequence[Schedule]) -> list[PartRange]:
    """The parts one behind the other."""
    found: list[PartRange] = []
    block = scratch = ticket = 0
    for cluster, schedule in zip(parts, schedules, strict=True):
        found.append(PartRange(cluster, schedule, block, scratch, ticket))
        block += schedule.grid[0]
        scratch += len(schedule.scratch)
        ticket += schedule.tickets
    return found


class PartBuilder(Builder):
    """Creates the ops of one part: block numbers count from its first block, barriers wait for its threads."""

    def __init__(self, around: Builder, part: PartRange, threads: int) -> None:
        """``around`` creates the ops of the launch, whose blocks have ``threads`` threads."""
        x, y, z = part.schedule.block
        own = x * y * z
        super().__init__(around.scope.block, around.location, part.blocks * own)
        around.visits.update(self.visits)
        self.visits = around.visits
        self._first_block = part.first_block
        self._counted = own if own != threads else None

    def block_id(self) -> Value:
        block = super().block_id()
        if not self._first_block:
            return block
        # In 32 bits, so that divisions of the result need no more.
        narrow = self.emit("arith.index_castui", self.i32, [block])
        narrow = self.arith("subi", narrow, self.integer(self._first_block, self.i32))
        return self.emit("arith.index_castui", self.index_type, [narrow])

    def barrier(self) -> None:
        if self._counted is None:
            super().barrier()
            return
        operands = [self.integer(number, self.i32) for number in (0, self._counted)]
        sizes: dict[str, ir.Attribute] = {"operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 0])}
        self.create("nvvm.barrier", [], operands, sizes)


EmitPart = Callable[[PartRange, KernelBody], Accesses]
"""Emits a part into its body and returns what it moves of the body's ``memory``."""


@dataclass(eq=False)
class PackedKernel:
    """Emits all parts of a launch into ``body``. ``program`` is the whole cluster."""

    cluster: Cluster
    program: TensorProgram
    schedule: Schedule
    body: KernelBody
    emit_part: EmitPart

    def __post_init__(self) -> None:
        self.accesses = Accesses.of(len(self.body.memory))
        places = [*self.cluster.inputs, *self.cluster.outputs]
        count = len(self.cluster.inputs)
        self._inputs = {value: number for number, value in enumerate(places[:count])}
        self._outputs = {value: count + number for number, value in enumerate(places[count:])}
        self._workspace = len(places)

    def emit(self, parts: Sequence[PartRange]) -> Accesses:
        """Emit the parts and return what they move of the launch's arguments."""
        running = [part for part in parts if part.blocks]
        if running:
            self._choose(running, self.body.builder.block_id() if len(running) > 1 else None)
        return self.accesses

    def _choose(self, parts: Sequence[PartRange], block: Value) -> None:
        """Run that of neighbouring parts which ``block`` belongs to."""
        if len(parts) == 1:
            self._run(parts[0])
            return
        builder = self.body.builder
        low, high = parts[: len(parts) // 2], parts[len(parts) // 2 :]
        is_low = builder.compare("ult", block, builder.index_constant(high[0].first_block))

        def side(chosen: Sequence[PartRange]) -> Callable[[], Sequence[Value]]:
            def emit() -> Sequence[Value]:
                self._choose(chosen, block)
                return []

            return emit

        share = Fraction(sum(part.blocks for part in low), sum(part.blocks for part in parts))
        builder.branch(is_low, [], side(low), side(high), builder.scope.executions * share)

    def _run(self, part: PartRange) -> None:
        """Emit a part at the current point, for as many threads as it uses."""
        builder, threads = self.body.builder, part.schedule.block[0]

        def emit() -> list[Value]:
            self._emit(part)
            return []

        if threads == self.schedule.block[0]:
            emit()
            return
        takes_part = builder.compare("ult", builder.thread_id(), builder.index_constant(threads))
        share = Fraction(threads, self.schedule.block[0])
        builder.branch(takes_part, [], emit, None, builder.scope.executions * share)

    def _emit(self, part: PartRange) -> None:
        numbers = [self._inputs[value] for value in part.cluster.inputs]
        numbers += [self._outputs[value] for value in part.cluster.outputs]
        first = self._workspace + part.first_scratch
        numbers += range(first, first + len(part.schedule.scratch))
        builder = PartBuilder(self.body.builder, part, self.schedule.block[0])
        memory = [self.body.memory[number] for number in numbers]
        if part.schedule.tickets:
            numbers.append(len(self.body.memory) - 1)
            memory.append(_tickets(builder, self.body.memory[-1], part.first_ticket, part.schedule.tickets))
        if builder.root.block is None:
            raise TypeError("a packed kernel is emitted, not run dry")
        self.body.begin_part(builder.root.block)
        body = KernelBody(
            builder,
            memory,
            self.body.shared,
            self.body.begin_part,
            self.body.dynamic_shared,
            self.body.table,
        )
        self.accesses.add(numbers, self.emit_part(part, body))


def _tickets(builder: Builder, memory: Value, first: int, count: int) -> Value:
    """The tickets of one part: ``count`` from number ``first`` on."""
    layout = ir.StridedLayoutAttr.get(first, [1])
    static = ir.DenseI64ArrayAttr.get
    return builder.emit(
        "memref.reinterpret_cast",
        ir.MemRefType.get([count], builder.i32, layout),
        [memory],
        {
            "static_offsets": static([first]),
            "static_sizes": static([count]),
            "static_strides": static([1]),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 0, 0, 0]),
        },
    )
