"""Kernels over a flat space: every output has the same number of elements, and a thread computes some of them.

Shared by the templates ``elementwise`` (no reductions) and ``loop_nest`` (reductions run inside the thread).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from mlir import ir

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.builder import Builder, DryBuilder, Value
from mlirstitch.lowering.kernel.evaluate import Context, Evaluator, Reducer
from mlirstitch.lowering.kernel.index_expr import Expr, constant, delinearize, symbol
from mlirstitch.lowering.kernel.tensor_program import Computed, Node, TensorProgram, name_of
from mlirstitch.passes.stitching.template import Schedule
from mlirstitch.target import GRID_X_LIMIT


@dataclass(frozen=True)
class FlatLayout:
    """``blocks`` x ``threads``; a thread computes ``unroll`` chunks of ``vector`` neighbouring elements.

    Elements that do not fill a chunk are computed one by one by the first threads.
    """

    elements: int
    threads: int
    blocks: int
    vector: int
    unroll: int

    @property
    def chunks(self) -> int:
        """Whole chunks."""
        return self.elements // self.vector

    @staticmethod
    def over(elements: int, vector: int, unroll: int, threads: int, sms: int) -> FlatLayout:
        """Cover ``elements``; blocks get smaller while there are fewer of them than multiprocessors."""
        chunks = max(1, elements // vector)
        while threads > 32 and chunks <= (threads // 2) * unroll * sms:
            threads //= 2
        blocks = -(-chunks // (threads * unroll)) if elements else 0
        if blocks > GRID_X_LIMIT:
            raise PassError(f"{elements} elements exceed the largest launch", hint="split the batch")
        return FlatLayout(elements, threads, blocks, vector, unroll)

    @staticmethod
    def of(schedule: Schedule, elements: int) -> FlatLayout:
        """The layout that a schedule describes."""
        unroll = int(schedule.parameter("unroll", 1))
        return FlatLayout(elements, schedule.block[0], schedule.grid[0], schedule.vector, unroll)

    def schedule(self, template: str, schemes: tuple[tuple[int, str], ...] = ()) -> Schedule:
        """The schedule that describes this layout. An empty space has grid (0, 1, 1): there is nothing to launch."""
        return Schedule(
            template=template,
            grid=(self.blocks, 1, 1),
            block=(self.threads, 1, 1),
            vector=self.vector,
            parameters=(("unroll", self.unroll),),
            schemes=schemes,
        )

    def chunks_of(self, part: int) -> int:
        """Chunks that all threads together compute as their ``part``-th one."""
        whole, rest = divmod(self.chunks, self.threads * self.unroll)
        return whole * self.threads + min(self.threads, max(0, rest - part * self.threads))


def flat_elements(program: TensorProgram) -> int:
    """Elements of every output. Raises :class:`PassError` if outputs differ."""
    if not program.outputs:
        raise PassError("the cluster has no outputs")
    first = program.outputs[0]
    for node in program.outputs[1:]:
        if node.elements != first.elements:
            raise PassError(
                f"outputs differ in size: {name_of(first)} has {first.elements} elements, "
                f"{name_of(node)} has {node.elements}"
            )
    return first.elements


@dataclass(eq=False)
class FlatKernel:
    """Emits the body of a flat kernel into ``evaluator``'s builder; run dry it only checks and counts."""

    program: TensorProgram
    layout: FlatLayout
    evaluator: Evaluator

    @property
    def builder(self) -> Builder:
        """Where ops go."""
        return self.evaluator.builder

    def emit(self) -> None:
        """Emit the whole kernel body."""
        layout, builder = self.layout, self.builder
        if not layout.elements:
            return
        thread = builder.thread_id()
        start: Value | None = None
        if layout.blocks > 1:
            start = builder.arith("muli", builder.block_id(), builder.index_constant(layout.threads * layout.unroll))
        first = thread if start is None else builder.arith("addi", start, thread)
        for part in range(layout.unroll if layout.chunks else 0):
            number = first
            if part:
                number = builder.arith("addi", first, builder.index_constant(part * layout.threads))
            self._chunk(part, number)
        rest = layout.elements - layout.chunks * layout.vector
        if rest:
            self._rest(first, rest)

    def _chunk(self, part: int, number: Value) -> None:
        layout, builder = self.layout, self.builder
        # At least two values, so that a vector access keeps a symbol of its own scope.
        name = symbol(f"chunk{part}", max(2, layout.chunks))
        lane = symbol("lane", layout.vector) if layout.vector > 1 else None
        offset = name.expr * layout.vector
        if lane is not None:
            offset = offset + lane.expr

        def compute() -> list[Value]:
            builder.declare(name, number)
            with self.evaluator.within(Context(lane, layout.vector)):
                self._store_outputs(offset)
            return []

        inside = layout.chunks_of(part)
        if inside == layout.blocks * layout.threads:
            compute()
            return
        guard = builder.compare("ult", number, builder.index_constant(layout.chunks))
        builder.branch(guard, [], compute, None, Fraction(inside))

    def _rest(self, first: Value, rest: int) -> None:
        builder = self.builder
        name = symbol("rest", max(2, rest))

        def compute() -> list[Value]:
            builder.declare(name, first)
            with self.evaluator.within(Context()):
                self._store_outputs(name.expr + constant(self.layout.elements - rest))
            return []

        inside = builder.compare("ult", first, builder.index_constant(rest))
        builder.branch(inside, [], compute, None, Fraction(rest))

    def _store_outputs(self, offset: Expr) -> None:
        for number, node in enumerate(self.program.outputs):
            value = self.evaluator.get(node, delinearize(offset, node.shape))
            self._store(number, node, offset, value)

    def _store(self, number: int, node: Node, offset: Expr, value: Value) -> None:
        location = self.builder.location
        if node.op is not None:
            self.builder.location = node.op.location
        self.evaluator.store(number, offset, value)
        self.builder.location = location


def refuse_reduction(node: Computed, indices: object) -> Value:
    """The reducer of kernels without reductions."""
    raise PassError(f"{name_of(node)} is a reduction")


def dry_kernel(program: TensorProgram, layout: FlatLayout, reduce: Reducer | None = None) -> FlatKernel:
    """A kernel that emits nothing."""
    builder = DryBuilder(None, ir.Location.unknown(), layout.elements // layout.vector)
    memory = [None] * (len(program.arguments) + len(program.outputs))
    return FlatKernel(program, layout, Evaluator(builder, program, memory, Context(), reduce or refuse_reduction))
