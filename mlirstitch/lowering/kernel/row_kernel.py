"""The body of a ``row`` kernel: everything that reduces trailing dims, in one kernel.

The iteration space is (row, column). A group of lanes, a warp or a block owns a row; each thread takes chunks of
``vector`` neighbouring columns. Reductions are grouped by dependence level and all of a level are folded in one pass
over the row. With the *resident* schedule the chunks of all passes are unrolled, so that a value computed in one pass
is still in a register in the next; with the *loop* schedule a pass is a loop and reads its inputs again.

LayerNorm, softmax, RMS norm, group norm, masked attention softmax, argmax and full sums are one kernel each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.builder import Builder, Value
from mlirstitch.lowering.kernel.combiner import NotParallel, combiner_of
from mlirstitch.lowering.kernel.evaluate import Context, Evaluator, Guard
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial, across_block
from mlirstitch.lowering.kernel.index_expr import Expr, Symbol, delinearize, linearize, symbol
from mlirstitch.lowering.kernel.tensor_program import Computed, Indices, Node, TensorProgram, name_of


@dataclass(frozen=True)
class RowSpace:
    """``rows`` x ``cols``, and the reductions of the cluster by level (1, 2, ...), one value per folding."""

    rows: int
    cols: int
    levels: tuple[tuple[Computed, ...], ...]

    @staticmethod
    def of(program: TensorProgram) -> RowSpace:
        """Derive the space from the reductions. Raises :class:`PassError` if they do not share one."""
        reductions = [n for n in program.nodes.values() if isinstance(n, Computed) and n.is_reduction]
        if not reductions:
            raise PassError("nothing is reduced")
        shape: tuple[int, int] | None = None
        for node in reductions:
            own = _row_shape(node)
            shape = shape or own
            if own != shape:
                raise refusal(
                    _op(node),
                    f"reduces {own[0]} rows of {own[1]}, another reduction {shape[0]} rows of {shape[1]}",
                    "they become separate kernels",
                )
        if shape is None or 0 in shape:
            raise refusal(_op(reductions[0]), "reduces an empty space")
        levels: dict[int, list[Computed]] = {}
        covered: set[tuple[int, int]] = set()
        # Larger groups first: the maximum that an argmax keeps is not folded a second time.
        for node, results in sorted(_groups(reductions), key=lambda item: -len(item[1])):
            keys = {(id(node.linalg), result) for result in results}
            if not keys <= covered:
                covered |= keys
                levels.setdefault(node.level, []).append(node)
        for members in levels.values():
            members.sort(key=lambda node: node.uid)
        return RowSpace(*shape, tuple(tuple(levels[level]) for level in sorted(levels)))

    def output_offset(self, node: Node, row: Expr, col: Expr) -> Expr:
        """Where (row, col), or the row alone, lies in an output. Raises :class:`PassError` for any other size."""
        if node.elements == self.rows * self.cols:
            return row * self.cols + col
        if node.elements == self.rows:
            return row
        expected = f"neither {self.rows} nor {self.rows} x {self.cols}"
        raise PassError(f"output {name_of(node)} has {node.elements} elements, {expected}")


def _groups(reductions: Sequence[Computed]) -> list[tuple[Computed, tuple[int, ...]]]:
    """Each reduction with the results that are folded together with it."""
    found: list[tuple[Computed, tuple[int, ...]]] = []
    for node in reductions:
        try:
            found.append((node, combiner_of(node.linalg, node.result).results))
        except NotParallel as reason:
            raise refusal(_op(node), f"cannot be folded in parallel: {reason}") from None
    return found


def _row_shape(node: Computed) -> tuple[int, int]:
    linalg = node.linalg
    if linalg.is_contraction_like:
        raise refusal(linalg.op, "reads its inputs many times (contraction, convolution or pooling)")
    rows = cols = 1
    for extent, reduced in zip(linalg.extents, linalg.reduced, strict=True):
        rows, cols = (rows, cols * extent) if reduced else (rows * extent, cols)
    return rows, cols


def _op(node: Node) -> ir.Operation:
    if node.op is None:
        raise TypeError("an argument has no op")
    return node.op


@dataclass(frozen=True)
class RowLayout:
    """How threads are laid over the rows.

    Attributes:
        lanes: threads per row, a power of two; up to a warp several rows share a block.
        rows_per_block: rows of a block (1 if a row takes more than a warp).
        vector: columns of a chunk; divides the number of columns.
        resident: whether passes are unrolled and keep values in registers.
        blocks: blocks of the launch.
        unroll: chunks per iteration of the loop schedule.
    """

    lanes: int
    rows_per_block: int
    vector: int
    resident: bool
    blocks: int
    unroll: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.rows_per_block


@dataclass(frozen=True)
class Thread:
    """Where a thread stands: its place among the threads of its row, and in its block."""

    in_row: Value
    lane: Value
    warp: Value


@dataclass(eq=False)
class RowKernel:
    """Emits the body of one row kernel into ``evaluator``'s builder; run dry it only checks and counts.

    ``shared`` makes a buffer in shared memory. ``on_pass`` is told before each pass which one begins. ``one_chunk``
    visits one guarded chunk that stands for the whole row: enough for a dry run, and independent of the row's length.
    """

    program: TensorProgram
    space: RowSpace
    layout: RowLayout
    evaluator: Evaluator
    shared: Callable[[int, ir.Type], Value]
    on_pass: Callable[[int], None] | None = None
    one_chunk: bool = False
    results: dict[tuple[int, int], Value] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.row = symbol("row", self.space.rows)
        self.lane = symbol("lane", self.layout.vector) if self.layout.vector > 1 else None
        self.evaluator.reduce = self._reduced
        self._row_guards: tuple[Guard, ...] = ()
        # At least two values, so that indices keep the symbol and memory accesses their guard.
        self.tail_symbol = symbol("tail", max(2, self.chunks))
        self._tail: tuple[Symbol, Value] | None = None

    @property
    def builder(self) -> Builder:
        """Where ops go."""
        return self.evaluator.builder

    @property
    def chunks(self) -> int:
        """Chunks of a row."""
        return self.space.cols // self.layout.vector

    def emit(self) -> None:
        """Emit the whole kernel body."""
        thread = self._place_threads()
        stored: set[int] = set()
        with self.evaluator.within(self._context()):
            for number, level in enumerate(self.space.levels):
                self._begin(number)
                self._reduce_level(level, thread, stored)
            self._begin(len(self.space.levels))
            final = [i for i, node in enumerate(self.program.outputs) if self._is_full(node) and i not in stored]
            if final:
                self._for_each_chunk([], lambda col, guard, carried: self._store_full(final, col) or [])
            self._store_per_row(thread)

    def _begin(self, number: int) -> None:
        if self.on_pass is not None:
            self.on_pass(number)

    def _context(self, *guards: Guard) -> Context:
        return Context(self.lane, self.layout.vector, (*self._row_guards, *guards))

    def _is_full(self, node: Node) -> bool:
        self.space.output_offset(node, self.row.expr, self.row.expr)
        return node.elements == self.space.rows * self.space.cols and self.space.cols > 1

    # Threads ----------------------------------------------------------------------------------------------------

    def _place_threads(self) -> Thread:
        """Compute row and place of this thread and declare their symbols."""
        builder, layout = self.builder, self.layout
        x = {"dimension": ir.Attribute.parse("#gpu<dim x>")}
        block = builder.emit("gpu.block_id", builder.index_type, [], x)
        thread = builder.emit("gpu.thread_id", builder.index_type, [], x)
        warp_size = builder.index_constant(WARP)
        if layout.lanes > WARP:
            row, in_row = block, thread
            lane = builder.arith("remui", thread, warp_size)
            warp = builder.arith("divui", thread, warp_size)
        else:
            lanes = builder.index_constant(layout.lanes)
            in_row = lane = builder.arith("remui", thread, lanes)
            warp = builder.arith("divui", thread, lanes)
            row = warp
            if layout.blocks > 1:
                start = builder.arith("muli", block, builder.index_constant(layout.rows_per_block))
                row = builder.arith("addi", start, warp)
        builder.declare(self.row, row)
        self._in_row = symbol("thread", layout.lanes)
        builder.declare(self._in_row, in_row)
        capacity = layout.blocks * layout.rows_per_block
        if capacity > self.space.rows:
            inside = builder.compare("ult", row, builder.index_constant(self.space.rows))
            self._row_guards = (Guard(self.row, inside, self.space.rows, capacity),)
        return Thread(in_row, lane, warp)

    # Passes -----------------------------------------------------------------------------------------------------

    def _for_each_chunk(
        self, initial: Sequence[Value], visit: Callable[[Expr, Guard | None, list[Value]], Sequence[Value]]
    ) -> list[Value]:
        """Call ``visit(column, guard, carried)`` for every chunk of this thread, threading the carried values."""
        lanes = self.layout.lanes
        full, partial = (0, 1) if self.one_chunk else divmod(self.chunks, lanes)
        carried = list(initial)
        if self.layout.resident:
            for number in range(full):
                carried = self._visit(self._in_row.expr + number * lanes, None, carried, visit)
        elif full:
            carried = self._loop(full, carried, visit)
        if partial:
            name, condition = self._tail_chunk(full)
            guard = Guard(name, condition, partial, lanes)
            carried = self._visit(name.expr, guard, carried, visit)
        return carried

    def _visit(
        self,
        chunk: Expr,
        guard: Guard | None,
        carried: list[Value],
        visit: Callable[[Expr, Guard | None, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        col = chunk * self.layout.vector
        if self.lane is not None:
            col = col + self.lane.expr
        with self.evaluator.within(self._context(*([guard] if guard else []))):
            return list(visit(col, guard, carried))

    def _loop(
        self,
        full: int,
        initial: list[Value],
        visit: Callable[[Expr, Guard | None, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        builder, lanes, unroll = self.builder, self.layout.lanes, self.layout.unroll
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
                number = builder.index(self._in_row.expr + full * self.layout.lanes)
                inside = builder.compare("ult", number, builder.index_constant(self.chunks))
            builder.root.symbols[self.tail_symbol] = number
            self._tail = (self.tail_symbol, inside)
        return self._tail

    # Reductions -------------------------------------------------------------------------------------------------

    def _reduced(self, node: Computed, indices: Indices) -> Value:
        """The value of a reduction for :class:`Evaluator`: it must belong to the current row."""
        linalg = node.linalg
        place = linearize(linalg.parallel_point(node.result, indices), linalg.parallel_extents)
        if place != self.row.expr:
            raise refusal(
                linalg.op,
                f"its result is needed at row {place} while row {self.row.text.split(':')[0]} is computed",
                "it becomes a kernel of its own",
            )
        return self.results[id(linalg), node.result]

    def _reduce_level(self, level: Sequence[Computed], thread: Thread, stored: set[int]) -> None:
        builder = self.builder
        folds = [Fold(self.evaluator, node, combiner_of(node.linalg, node.result)) for node in level]
        counts = [len(fold.combiner.results) for fold in folds]
        initial = [self._initial(fold) for fold in folds]
        ready = [
            i
            for i, node in enumerate(self.program.outputs)
            if i not in stored and self._is_full(node) and node.level < level[0].level
        ]
        stored.update(ready)

        def visit(col: Expr, guard: Guard | None, carried: list[Value]) -> Sequence[Value]:
            taken: list[Value] = []
            for fold, count in zip(folds, counts, strict=True):
                running = tuple(carried[len(taken) : len(taken) + count])
                taken.extend(self._accumulate(fold, running, col, guard))
            self._store_full(ready, col)
            return taken

        carried = self._for_each_chunk([value for partial in initial for value in partial], visit)
        partials: list[tuple[Fold, Partial]] = []
        for fold, count in zip(folds, counts, strict=True):
            builder.location = fold.combiner.linalg.op.location
            partial, carried = tuple(carried[:count]), carried[count:]
            partial = fold.across_threads(fold.across_lanes(partial), min(WARP, self.layout.lanes))
            partials.append((fold, partial))
        if self.layout.lanes > WARP:
            warps = self.layout.lanes // WARP
            totals = across_block(partials, warps, thread.lane, thread.warp, self.shared)
        else:
            totals = [partial for _, partial in partials]
        for (fold, _), total in zip(partials, totals, strict=True):
            self._finish(fold, total)

    def _row_init(self, fold: Fold, result: int) -> Value:
        """The initial running value of the current row."""
        linalg = fold.combiner.linalg
        operand = len(linalg.inputs) + result
        loop = linalg.loop_indices(
            delinearize(self.row.expr, linalg.parallel_extents),
            delinearize(Expr(0, ()), linalg.reduction_extents),
        )
        return self.evaluator.get(fold.node.operands[operand], linalg.operand_indices(operand, loop))

    def _initial(self, fold: Fold) -> Partial:
        """Where a thread starts: the neutral element, or for a selection the initial value itself."""
        if fold.combiner.merge:
            values = [fold.neutral()]
        else:
            values = [self._row_init(fold, result) for result in fold.combiner.results]
        width = self.layout.vector
        return tuple(self.builder.broadcast(value, width) if width > 1 else value for value in values)

    def _accumulate(self, fold: Fold, running: Partial, col: Expr, guard: Guard | None) -> Partial:
        linalg = fold.combiner.linalg
        loop = linalg.loop_indices(
            delinearize(self.row.expr, linalg.parallel_extents), delinearize(col, linalg.reduction_extents)
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

    def _finish(self, fold: Fold, total: Partial) -> None:
        """Take the initial value in (once), and publish the results."""
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
            offset = self.space.output_offset(node, self.row.expr, col)
            value = self.evaluator.get(node, delinearize(offset, node.shape))
            self._located(node, lambda n=number, o=offset, v=value: self.evaluator.store(n, o, v))

    def _store_per_row(self, thread: Thread) -> None:
        """Outputs with one element per row, stored by the first thread of the row."""
        numbers = [i for i, node in enumerate(self.program.outputs) if not self._is_full(node)]
        if not numbers:
            return
        row = self.row.expr

        def write() -> list[Value]:
            for number in numbers:
                node = self.program.outputs[number]
                value = self.evaluator.get(node, delinearize(row, node.shape))
                self._located(node, lambda n=number, v=value: self.evaluator.store(n, row, v))
            return []

        builder = self.builder
        if self.layout.lanes == 1:
            write()
            return
        first = builder.compare("eq", thread.in_row, builder.index_constant(0))
        builder.branch(first, [], write, None, builder.scope.executions / self.layout.lanes)

    def _located(self, node: Node, action: Callable[[], None]) -> None:
        location = self.builder.location
        if node.op is not None:
            self.builder.location = node.op.location
        action()
        self.builder.location = location
