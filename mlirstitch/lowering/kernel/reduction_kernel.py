"""What kernels that reduce have in common, whatever threads share a row: levels, passes, stores, splitting over blocks.

Reductions are grouped by dependence level and all of a level are folded in one pass over the row. With the *resident*
schedule the chunks of all passes are unrolled, so that a value computed in one pass is still in a register in the
next; with the *loop* schedule a pass is a loop and reads its inputs again.

A row that is *split* is folded by several blocks: each leaves its partial result in global memory, and the block that
finishes last folds those in a fixed order and stores what depends on the reductions.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Protocol

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.combiner import combiner_of
from mlirstitch.lowering.kernel.evaluate import Context, Evaluator, Guard
from mlirstitch.lowering.kernel.fold import Fold, Partial
from mlirstitch.lowering.kernel.index_expr import Expr, Symbol, constant, delinearize, linearize, symbol
from mlirstitch.lowering.kernel.partials import Partials
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.staging import Staging
from mlirstitch.lowering.kernel.tensor_program import Argument, Computed, Indices, Node, TensorProgram

Visit = Callable[[Expr, "Guard | None", list[Value]], Sequence[Value]]
"""From a column, the guard of its memory accesses and the carried values to the new carried values."""


class Layout(Protocol):
    """How threads are laid over the space.

    Attributes:
        lanes: threads per row, a power of two.
        resident: whether passes are unrolled and keep values in registers.
        unroll: chunks per iteration of the loop schedule.
        splits: blocks per row.
        vector: width of the vector lane.
        threads: threads of a block.
    """

    @property
    def lanes(self) -> int: ...
    @property
    def resident(self) -> bool: ...
    @property
    def unroll(self) -> int: ...
    @property
    def splits(self) -> int: ...
    @property
    def vector(self) -> int: ...
    @property
    def threads(self) -> int: ...


@dataclass(frozen=True)
class Thread:
    """Where a thread stands.

    Attributes:
        in_row: its place among the block's threads that share a row.
        lane, warp: its place in its warp, and the warp's in the block.
        part: which of the blocks that share a row this is.
    """

    in_row: Value
    lane: Value
    warp: Value
    part: Value


@dataclass(eq=False)
class ReductionKernel(ABC):
    """Emits the body of one kernel into ``evaluator``'s builder; run dry it only checks and counts.

    ``shared`` makes a buffer in shared memory, ``partials`` is where blocks leave partial results (None unless rows are
    split). ``on_pass`` is told before each pass which one begins. ``one_chunk`` visits one guarded chunk that stands
    for the whole row: enough for a dry run, and independent of the row's length. ``one_loop`` visits it in a loop of
    its own in every pass, as the loop schedule does. ``staging`` keeps rows in shared memory from pass to pass.
    """

    program: TensorProgram
    space: RowSpace
    layout: Layout
    evaluator: Evaluator
    shared: Callable[[int, ir.Type], Value]
    partials: Partials | None = None
    on_pass: Callable[[int], None] | None = None
    one_chunk: bool = False
    one_loop: bool = False
    staging: Staging | None = None
    results: dict[tuple[int, int], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.lane = symbol("lane", self.layout.vector) if self.layout.vector > 1 else None
        self.evaluator.reduce = self._reduced
        self._row_guards: tuple[Guard, ...] = ()
        # At least two values, so that indices keep the symbol and memory accesses their guard.
        self.tail_symbol = symbol("tail", max(2, self.chunks))
        self._tail: tuple[Symbol, Value] | None = None
        self._sharing = self.layout.lanes * self.layout.splits
        self._in_row = symbol("thread", self._sharing)
        self.outputs: tuple[int, ...] = tuple(range(len(self.program.outputs)))
        self.any_chunk = symbol("chunk", max(2, self.chunks))
        self._pass = 0
        self._chunk: Expr | None = None
        if self.staging is not None:
            self.evaluator.staged = self._staged

    # What a template decides ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def chunks(self) -> int:
        """Chunks of a row."""

    @property
    @abstractmethod
    def row(self) -> Expr:
        """The row of this thread (one a vector lane, if the lane runs over rows)."""

    @property
    @abstractmethod
    def result_width(self) -> int:
        """Results in one chunk: the width of the vector lane if it runs over rows, else 1."""

    @abstractmethod
    def column(self, chunk: Expr) -> Expr:
        """The column of a chunk (one a vector lane, if the lane runs over columns)."""

    @abstractmethod
    def place_threads(self) -> Thread:
        """Compute where this thread stands; declare the symbols of :attr:`row` and the thread's place in the row."""

    @abstractmethod
    def fold_threads(self, folds: Sequence[tuple[Fold, Partial]], thread: Thread) -> list[Partial]:
        """Fold the partial results of the threads that share a row; every one of them gets the result."""

    def staged_chunk(self, chunk: Expr) -> Expr:
        """Where in the block's shared memory a chunk of the row is staged, counted in chunks."""
        return chunk

    # Order of things --------------------------------------------------------------------------------------------

    @property
    def builder(self) -> Builder:
        """Where ops go."""
        return self.evaluator.builder

    def emit(self) -> None:
        """Emit the whole kernel body."""
        thread = self.place_threads()
        with self.evaluator.within(self._context()):
            self._emit_rows(thread)

    def _emit_rows(self, thread: Thread) -> None:
        stored: set[int] = set()
        if self.layout.splits > 1:
            self._emit_split(thread, stored)
            return
        for number, level in enumerate(self.space.levels):
            self._begin(number)
            folds, partials = self._fold_level(level, stored)
            totals = self.fold_threads(list(zip(folds, partials, strict=True)), thread)
            self._publish(folds, totals)
        self._store_rest(thread, stored)

    def _store_rest(self, thread: Thread, stored: set[int]) -> None:
        """What depends on all reductions."""
        self._begin(len(self.space.levels))
        final = [i for i in self.outputs if self._is_full(self.program.outputs[i]) and i not in stored]
        self._last_pass(final)
        self._store_per_row(thread)

    def _last_pass(self, outputs: Sequence[int]) -> None:
        """Store the outputs of full size that are left."""
        if outputs:
            self._for_each_chunk([], lambda col, guard, carried: self._store_full(outputs, col) or [])

    def _emit_split(self, thread: Thread, stored: set[int]) -> None:
        """One level of reductions whose rows several blocks share."""
        builder, partials = self.builder, self.partials
        if partials is None or len(self.space.levels) != 1:
            raise TypeError("split rows need memory for partial results and reductions of one level")
        (level,) = self.space.levels
        folds, own = self._fold_level(level, stored)
        totals = self.fold_threads(list(zip(folds, own, strict=True)), thread)
        part = symbol("part", self.layout.splits)
        builder.declare(part, thread.part)

        def write() -> list[Value]:
            for number, (fold, total) in enumerate(zip(folds, totals, strict=True)):
                partials.store(self.evaluator, number, fold, total, part.expr * self.space.rows + self.row)
            return []

        self._by_first_thread(thread, write)

        def finish() -> None:
            read = [self._read_partials(number, fold, thread) for number, fold in enumerate(folds)]
            self._publish(folds, self.fold_threads(list(zip(folds, read, strict=True)), thread))
            self._store_per_row(thread)

        partials.in_last_block(self.evaluator, self.ticket(), self.layout.splits, self.layout.threads, finish)

    def ticket(self) -> Expr:
        """The counter that the blocks sharing a row count with."""
        raise TypeError("this layout does not split rows")

    def _read_partials(self, number: int, fold: Fold, thread: Thread) -> Partial:
        """This thread's share of the parts of its row."""
        builder, partials = self.builder, self.partials
        if partials is None:
            raise TypeError("split rows need memory for partial results")
        part = symbol("read", self.layout.splits)
        bounds = (thread.in_row, *(builder.index_constant(n) for n in (self.layout.splits, self.layout.lanes)))

        def body(_: Value, carried: list[Value]) -> Sequence[Value]:
            loaded = partials.load(self.evaluator, number, fold, part.expr * self.space.rows + self.row)
            return fold.merge(tuple(carried), loaded)

        trips = Fraction(self.layout.splits, self.layout.lanes)
        initial = self._initial(fold, self.result_width)
        return tuple(builder.loop(part, bounds, trips, initial, body))

    def _begin(self, number: int) -> None:
        self._pass = number
        if self.on_pass is not None:
            self.on_pass(number)

    def _context(self, *guards: Guard) -> Context:
        return Context(self.lane, self.layout.vector, (*self._row_guards, *guards))

    def _is_full(self, node: Node) -> bool:
        self.space.output_offset(node, constant(0), constant(0))
        return node.elements == self.space.rows * self.space.cols and self.space.cols > 1

    # Passes -----------------------------------------------------------------------------------------------------

    def _for_each_chunk(self, initial: Sequence[Value], visit: Visit) -> list[Value]:
        """Call ``visit(column, guard, carried)`` for every chunk of this thread, threading the carried values."""
        lanes = self._sharing
        carried = list(initial)
        if self.one_loop:
            bounds = tuple(self.builder.index_constant(value) for value in (0, self.chunks, 1))
            name = self.any_chunk
            return self.builder.loop(
                name, (bounds[0], bounds[1], bounds[2]), 1, carried, lambda _, v: self._visit(name.expr, None, v, visit)
            )
        full, partial = (0, 1) if self.one_chunk else divmod(self.chunks, lanes)
        if self.layout.resident or full < 2 * self.layout.unroll:  # a loop of one iteration is none
            for number in range(full):
                carried = self._visit(self._in_row.expr + number * lanes, None, carried, visit)
        else:
            carried = self._loop(full, carried, visit)
        if partial:
            name, condition = self._tail_chunk(full)
            guard = Guard(name, condition, partial, lanes)
            carried = self._visit(name.expr, guard, carried, visit)
        return carried

    def _visit(self, chunk: Expr, guard: Guard | None, carried: list[Value], visit: Visit) -> list[Value]:
        self._chunk = None if guard else chunk  # values of a guarded chunk stay in registers
        with self.evaluator.within(self._context(*([guard] if guard else []))):
            taken = list(visit(self.column(chunk), guard, carried))
        self._chunk = None
        return taken

    def _staged(self, node: Argument, offset: Expr) -> Value | None:
        """The element of a staged tensor: loaded and stored in the pass that fills it, read back in later ones."""
        staging, chunk, evaluator = self.staging, self._chunk, self.evaluator
        if staging is None or chunk is None:
            return None
        tensor = staging.find(node, offset, self.column(chunk))
        if tensor is None:
            return None
        builder, vector = self.builder, self.layout.vector
        at = builder.index(self.staged_chunk(chunk) * vector)
        if self._pass == tensor.first:
            value = evaluator.load_from(node.position, node.element, offset)
            staging.store(builder, tensor, at, scalar_ops.to_memory(builder, value))
            return value
        stored = scalar_ops.memory_type(node.element)
        kind = ir.VectorType.get([vector], stored) if vector > 1 else stored
        return scalar_ops.from_memory(builder, staging.load(builder, tensor, at, kind), node.element)

    def _loop(self, full: int, initial: list[Value], visit: Visit) -> list[Value]:
        builder, lanes, unroll = self.builder, self._sharing, self.layout.unroll
        name = symbol("step", full // unroll)

        def body(counter: Value, carried: list[Value]) -> Sequence[Value]:
            for part in range(unroll):
                chunk = name.expr * (unroll * lanes) + self._in_row.expr + part * lanes
                carried = self._visit(chunk, None, carried, visit)
            return carried

        bounds = tuple(builder.index_constant(value) for value in (0, full // unroll, 1))
        carried = builder.loop(name, (bounds[0], bounds[1], bounds[2]), full // unroll, initial, body)
        for number in range(full // unroll * unroll, full):
            carried = self._visit(self._in_row.expr + number * lanes, None, carried, visit)
        return carried

    def _tail_chunk(self, full: int) -> tuple[Symbol, Value]:
        """The chunk that only some threads have: its symbol, and the condition that this thread has it."""
        if self._tail is None:
            builder = self.builder
            with builder.at(builder.root):
                number = builder.index(self._in_row.expr + full * self._sharing)
                inside = builder.compare("ult", number, builder.index_constant(self.chunks))
            builder.root.symbols[self.tail_symbol] = number
            self._tail = (self.tail_symbol, inside)
        return self._tail

    # Reductions -------------------------------------------------------------------------------------------------

    def _reduced(self, node: Computed, indices: Indices) -> Value:
        """The value of a reduction for :class:`Evaluator`: it must belong to the current row."""
        linalg = node.linalg
        place = linearize(linalg.parallel_point(node.result, indices), linalg.parallel_extents)
        if place != self.row:
            raise refusal(
                linalg.op,
                f"its result is needed at row {place} while row {self.row} is computed",
                "it becomes a kernel of its own",
            )
        value = self.results.get((id(linalg), node.result))
        if value is None:
            raise refusal(linalg.op, "its result is needed before it is complete", "it becomes a kernel of its own")
        return value

    def _fold_level(self, level: Sequence[Computed], stored: set[int]) -> tuple[list[Fold], list[Partial]]:
        """One pass: this thread's partial results, and the outputs that can be stored on the way."""
        folds = [Fold(self.evaluator, node, combiner_of(node.linalg, node.result)) for node in level]
        counts = [len(fold.combiner.results) for fold in folds]
        initial = [self._initial(fold, self.layout.vector) for fold in folds]
        nodes = self.program.outputs
        waiting = [i for i in self.outputs if i not in stored and self._is_full(nodes[i])]
        ready = [i for i in waiting if nodes[i].level < level[0].level]
        stored.update(ready)

        def visit(col: Expr, guard: Guard | None, carried: list[Value]) -> Sequence[Value]:
            taken: list[Value] = []
            for fold, count in zip(folds, counts, strict=True):
                running = tuple(carried[len(taken) : len(taken) + count])
                taken.extend(self._accumulate(fold, running, col, guard))
            self._store_full(ready, col)
            return taken

        carried = self._for_each_chunk([value for partial in initial for value in partial], visit)
        partials: list[Partial] = []
        for count in counts:
            partials.append(tuple(carried[:count]))
            carried = carried[count:]
        return folds, partials

    def _row_init(self, fold: Fold, result: int) -> Value:
        """The initial running value of the current row."""
        linalg = fold.combiner.linalg
        operand = len(linalg.inputs) + result
        loop = linalg.loop_indices(
            delinearize(self.row, linalg.parallel_extents), delinearize(constant(0), linalg.reduction_extents)
        )
        return self.evaluator.get(fold.node.operands[operand], linalg.operand_indices(operand, loop))

    def _initial(self, fold: Fold, width: int) -> Partial:
        """Where a thread starts: the neutral element, or for a selection the initial value itself."""
        if fold.combiner.merge and width > self.result_width:
            return (fold.start(width),)
        if fold.combiner.merge:
            values = [fold.neutral()]
        else:
            values = [self._row_init(fold, result) for result in fold.combiner.results]
        return tuple(self.builder.broadcast(value, width) if width > 1 else value for value in values)

    def _accumulate(self, fold: Fold, running: Partial, col: Expr, guard: Guard | None) -> Partial:
        linalg = fold.combiner.linalg
        loop = linalg.loop_indices(
            delinearize(self.row, linalg.parallel_extents), delinearize(col, linalg.reduction_extents)
        )
        elements = self.evaluator.run_body(fold.node, fold.combiner.elements, loop, {})
        width = self.layout.vector
        if width > 1:
            elements = [self.builder.broadcast(value, width) for value in elements]
        location, self.builder.location = self.builder.location, linalg.op.location
        folded = fold.step(running, elements)
        if guard is not None:
            condition = guard.condition
            if width > 1:
                condition = self.builder.broadcast(condition, width)
            folded = tuple(self.builder.select(condition, x, y) for x, y in zip(folded, running, strict=True))
        self.builder.location = location
        return folded

    def _publish(self, folds: Sequence[Fold], totals: Sequence[Partial]) -> None:
        """Take the initial values in (once), and make the results known."""
        for fold, total in zip(folds, totals, strict=True):
            combiner = fold.combiner
            if combiner.merge:
                initial = self._row_init(fold, combiner.results[0])
                if not self._is_neutral(fold, initial):
                    total = fold.combine((initial,), total)
            for result, value in zip(combiner.results, total, strict=True):
                self.results[id(combiner.linalg), result] = value

    def _is_neutral(self, fold: Fold, value: Value) -> bool:
        attribute = self.builder.attribute_of(value)
        neutral = self.builder.attribute_of(fold.neutral())
        return attribute is not None and attribute == neutral

    # Stores -----------------------------------------------------------------------------------------------------

    def _store_full(self, outputs: Sequence[int], col: Expr) -> None:
        for number in outputs:
            node = self.program.outputs[number]
            offset = self.space.output_offset(node, self.row, col)
            value = self.evaluator.get(node, delinearize(offset, node.shape))
            self._located(node, lambda n=number, o=offset, v=value: self.evaluator.store(n, o, v))

    def _store_per_row(self, thread: Thread) -> None:
        """Outputs with one element per row, stored by the first thread of the row."""
        numbers = [i for i in self.outputs if not self._is_full(self.program.outputs[i])]
        if not numbers:
            return

        def write() -> list[Value]:
            for number in numbers:
                node = self.program.outputs[number]
                value = self.evaluator.get(node, delinearize(self.row, node.shape))
                self._located(node, lambda n=number, v=value: self.evaluator.store(n, self.row, v))
            return []

        self._by_first_thread(thread, write)

    def _by_first_thread(self, thread: Thread, action: Callable[[], list[Value]]) -> None:
        """Run ``action`` in the first of the block's threads that share a row."""
        builder, lanes = self.builder, self.layout.lanes
        if lanes == 1:
            action()
            return
        first = builder.compare("eq", thread.in_row, builder.index_constant(0))
        builder.branch(first, [], action, None, builder.scope.executions / lanes)

    def _located(self, node: Node, action: Callable[[], None]) -> None:
        location = self.builder.location
        if node.op is not None:
            self.builder.location = node.op.location
        action()
        self.builder.location = location
