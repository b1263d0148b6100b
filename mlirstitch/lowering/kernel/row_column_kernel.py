"""The body of a ``row_column`` kernel: rows are reduced as in a row kernel, and values of all rows down the columns.

A block goes through rows, some at a time. For every row it does what a row kernel does; in the last pass it adds the
row to running values that it keeps for every column, and for every total over the rows. At the end the rows that were
under way together are folded through shared memory, each block leaves its running values in global memory, and they
are folded in two steps: by the last block of each group of blocks, then by the last group (see ``partials``).

Totals of few elements that rows depend on are computed by every block for itself before its first row.

The backward pass of a layer norm with the gradients of its weights is one such kernel, and so is a loss with its mean.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlirstitch.dialects.locations import refusal
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.combiner import combiner_of
from mlirstitch.lowering.kernel.evaluate import Context, Guard
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial, across_block, load_chunk, store_chunk
from mlirstitch.lowering.kernel.index_expr import Expr, constant, delinearize, linearize, symbol
from mlirstitch.lowering.kernel.reduction_kernel import Thread
from mlirstitch.lowering.kernel.row_column_space import RowColumnSpace
from mlirstitch.lowering.kernel.row_kernel import RowKernel, RowLayout
from mlirstitch.lowering.kernel.row_space import row_shape
from mlirstitch.lowering.kernel.tensor_program import Computed, Indices


@dataclass(frozen=True)
class RowColumnLayout(RowLayout):
    """``blocks`` blocks take rows in turn; ``group`` of them are folded together first (1: all in one step)."""

    group: int = 1

    @property
    def groups(self) -> int:
        """Groups of blocks."""
        return self.blocks // self.group


@dataclass(eq=False)
class RowColumnKernel(RowKernel):
    """A row kernel with running values for the columns. ``space`` says what is reduced which way."""

    space: RowColumnSpace  # pyright: ignore[reportIncompatibleVariableOverride]
    layout: RowColumnLayout  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outputs = self.space.row_outputs
        self._downs = [Fold(self.evaluator, node, combiner_of(node.linalg, node.result)) for node in self.space.downs]
        self._running: list[list[Partial]] = []
        self._column: Expr | None = None
        self._pool: dict[tuple[int, tuple[str, ...]], list[Value]] = {}

    # Order of things --------------------------------------------------------------------------------------------

    def emit(self) -> None:
        """Emit the whole kernel body."""
        builder, layout = self.builder, self.layout
        thread = self.place_threads()
        with self.evaluator.within(Context()):
            for number, node in enumerate(self.space.heads):
                self._fold_head(number, Fold(self.evaluator, node, combiner_of(node.linalg, node.result)), thread)
        steps = -(-self.space.rows // layout.rows_per_block)
        with self.evaluator.within(Context(self.lane, layout.vector)):
            initial = [[self._start(fold, chunk) for chunk in self._own_chunks(fold)] for fold in self._downs]
        name = symbol("step of rows", steps)
        bounds = (self._block, builder.index_constant(steps), builder.index_constant(layout.blocks))
        flat = [value for parts in initial for partial in parts for value in partial]

        def body(counter: Value, carried: list[Value]) -> Sequence[Value]:
            self._running = _like(initial, carried)
            self._begin_row(counter, steps)
            with self.evaluator.within(self._context()):
                self._emit_rows(thread)
                self._add_row_to_totals(thread)
            if layout.lanes > WARP and len(self.space.levels) == 1:
                builder.barrier()  # the next row writes the same shared memory
            return [value for parts in self._running for partial in parts for value in partial]

        carried = builder.loop(name, bounds, Fraction(steps, layout.blocks), flat, body)
        self._row_guards = ()
        self._running = _like(initial, carried)
        self._fold_down(thread)

    def place_threads(self) -> Thread:
        builder, layout = self.builder, self.layout
        self._block, self._thread = builder.block_id(), builder.thread_id()
        lanes, warp_size = builder.index_constant(layout.lanes), builder.index_constant(WARP)
        in_row = builder.arith("remui", self._thread, lanes)
        self._slot = builder.arith("divui", self._thread, lanes)
        builder.declare(self._in_row, in_row)
        lane = builder.arith("remui", self._thread, warp_size)
        warp = builder.arith("divui", self._thread, warp_size)
        return Thread(in_row, lane, warp, builder.index_constant(0))

    def _begin_row(self, counter: Value, steps: int) -> None:
        """Declare the row of this thread in the current step."""
        builder, layout = self.builder, self.layout
        row = builder.arith("muli", counter, builder.index_constant(layout.rows_per_block))
        row = builder.arith("addi", row, self._slot)
        builder.declare(self._row, row)
        capacity = steps * layout.rows_per_block
        if capacity > self.space.rows:
            inside = builder.compare("ult", row, builder.index_constant(self.space.rows))
            self._row_guards = (Guard(self._row, inside, self.space.rows, capacity),)

    def _fold_head(self, number: int, fold: Fold, thread: Thread) -> None:
        """A total that every block computes for itself, with all its threads."""
        builder, linalg, threads = self.builder, fold.combiner.linalg, self.layout.threads
        size = row_shape(fold.node)[1]
        name = symbol(f"head{number}", max(2, size))

        def body(_: Value, carried: list[Value]) -> Sequence[Value]:
            parallel = delinearize(constant(0), linalg.parallel_extents)
            loop = linalg.loop_indices(parallel, delinearize(name.expr, linalg.reduction_extents))
            elements = self.evaluator.run_body(fold.node, fold.combiner.elements, loop, {})
            builder.location = linalg.op.location
            return fold.step(tuple(carried), elements)

        bounds = (self._thread, builder.index_constant(size), builder.index_constant(threads))
        start = self._neutral(fold, constant(0))
        partial = tuple(builder.loop(name, bounds, Fraction(size, threads), start, body))
        partial = fold.across_threads(partial, min(WARP, threads))
        if threads > WARP:
            (partial,) = across_block([(fold, partial)], threads // WARP, thread.lane, thread.warp, self.shared)
        self._publish_at([fold], [partial], constant(0))

    # Running values ---------------------------------------------------------------------------------------------

    def _is_total(self, fold: Fold) -> bool:
        return self.space.columns_of(fold.node) == 1

    def _own_chunks(self, fold: Fold) -> list[Expr]:
        """The chunks of columns for which this thread keeps running values (one for a total)."""
        if self._is_total(fold):
            return [constant(0)]
        if self.one_chunk:
            self._tail_chunk(0)
            return [self.tail_symbol.expr]
        full, partial = divmod(self.chunks, self.layout.lanes)
        chunks = [self._in_row.expr + number * self.layout.lanes for number in range(full)]
        if partial:
            self._tail_chunk(full)
            chunks.append(self.tail_symbol.expr)
        return chunks

    def _start(self, fold: Fold, chunk: Expr) -> Partial:
        """The neutral element, or for a selection the initial value of the chunk's columns."""
        width = 1 if self._is_total(fold) else self.layout.vector
        values = self._neutral(fold, self._columns(fold, chunk))
        return tuple(self.builder.broadcast(value, width) if width > 1 else value for value in values)

    def _neutral(self, fold: Fold, column: Expr) -> list[Value]:
        if fold.combiner.merge:
            return [fold.neutral()]
        return [self._column_init(fold, result, column) for result in fold.combiner.results]

    def _columns(self, fold: Fold, chunk: Expr) -> Expr:
        return constant(0) if self._is_total(fold) else self.column(chunk)

    def _column_init(self, fold: Fold, result: int, column: Expr) -> Value:
        linalg = fold.combiner.linalg
        operand = len(linalg.inputs) + result
        zero = delinearize(constant(0), linalg.reduction_extents)
        loop = linalg.loop_indices(delinearize(column, linalg.parallel_extents), zero)
        return self.evaluator.get(fold.node.operands[operand], linalg.operand_indices(operand, loop))

    def _last_pass(self, outputs: Sequence[int]) -> None:
        """Store the outputs that are left, and add the row to the running values of its columns."""
        numbers = [number for number, fold in enumerate(self._downs) if not self._is_total(fold)]
        if not numbers:
            super()._last_pass(outputs)
            return
        visited = [0]

        def visit(col: Expr, guard: Guard | None, carried: list[Value]) -> list[Value]:
            self._store_full(outputs, col)
            for number in numbers:
                running = self._running[number][visited[0]]
                self._running[number][visited[0]] = self._add(self._downs[number], running, col, guard)
            visited[0] += 1
            return []

        self._for_each_chunk([], visit)

    def _add_row_to_totals(self, thread: Thread) -> None:
        """The first thread of a row adds the row's value to the totals."""
        numbers = [number for number, fold in enumerate(self._downs) if self._is_total(fold)]
        if not numbers:
            return
        builder = self.builder
        before = [value for number in numbers for value in self._running[number][0]]

        def add() -> list[Value]:
            taken: list[Value] = []
            for number in numbers:
                taken.extend(self._add(self._downs[number], self._running[number][0], constant(0), None))
            return taken

        after = before
        if self.layout.lanes == 1:
            after = add()
        else:
            first = builder.compare("eq", thread.in_row, builder.index_constant(0))
            kinds = [value.type for value in before]
            executions = builder.scope.executions / self.layout.lanes
            after = builder.branch(first, kinds, add, lambda: before, executions)
        for number in numbers:
            count = len(self._running[number][0])
            self._running[number][0], after = tuple(after[:count]), after[count:]

    def _add(self, fold: Fold, running: Partial, col: Expr, guard: Guard | None) -> Partial:
        """Fold in the current row's element of a column (of all columns of a chunk)."""
        linalg, builder = fold.combiner.linalg, self.builder
        loop = linalg.loop_indices(
            delinearize(col, linalg.parallel_extents), delinearize(self.row, linalg.reduction_extents)
        )
        elements = self.evaluator.run_body(fold.node, fold.combiner.elements, loop, {})
        width = scalar_ops.width_of(running[0])
        if width:
            elements = [builder.broadcast(value, width) for value in elements]
        location, builder.location = builder.location, linalg.op.location
        folded = fold.step(running, elements)
        for condition in [g.condition for g in (*self._row_guards, *([guard] if guard else []))]:
            condition = builder.broadcast(condition, width) if width else condition
            folded = tuple(builder.select(condition, x, y) for x, y in zip(folded, running, strict=True))
        builder.location = location
        return folded

    # Folding down -----------------------------------------------------------------------------------------------

    def _fold_down(self, thread: Thread) -> None:
        partials, layout = self.partials, self.layout
        if partials is None:
            self._dry_epilogue()
            return
        part = symbol("block", layout.blocks)
        self.builder.declare(part, self._block)
        self._leave_running(part.expr, thread)
        if layout.group == 1:

            def finish() -> None:
                self._finish(constant(0), layout.blocks, 0)

            partials.in_last_block(self.evaluator, constant(0), layout.blocks, layout.threads, finish)
            return
        group = symbol("group", layout.groups)
        self.builder.declare(group, self.builder.arith("divui", self._block, self.builder.index_constant(layout.group)))

        def fold_groups() -> None:
            self._finish(constant(0), layout.groups, layout.blocks)

        def fold_group() -> None:
            self._for_columns(
                lambda number, fold, chunk: self._store_part(
                    number, fold, chunk, self._read_parts(number, fold, chunk, group.expr * layout.group, layout.group),
                    group.expr + layout.blocks,
                )
            )  # fmt: skip
            partials.in_last_block(self.evaluator, constant(layout.groups), layout.groups, layout.threads, fold_groups)

        partials.in_last_block(self.evaluator, group.expr, layout.group, layout.threads, fold_group)

    def _leave_running(self, part: Expr, thread: Thread) -> None:
        """Fold the rows that were under way together, and store the block's running values."""
        builder, layout = self.builder, self.layout
        for number, fold in enumerate(self._downs):
            if layout.rows_per_block == 1:
                self._store_own(number, fold, part, thread)
                continue
            columns = self.space.columns_of(fold.node)
            width = 1 if self._is_total(fold) else layout.vector
            slots = self._slots(fold, layout.rows_per_block * columns)
            base = builder.arith("muli", self._slot, builder.index_constant(columns))

            def leave(at: Value, partial: Partial, base: Value = base, slots: Sequence[Value] = slots) -> list[Value]:
                place = builder.arith("addi", base, at)
                for value, slot in zip(partial, slots, strict=True):
                    store_chunk(builder, scalar_ops.to_memory(builder, value), slot, place)
                return []

            self._each_own(fold, self._running[number], leave, thread)
            builder.barrier()

            def gather(
                chunk: Expr,
                fold: Fold = fold,
                slots: Sequence[Value] = slots,
                columns: int = columns,
                width: int = width,
            ) -> Partial:
                at = builder.index(chunk * width)
                parts: list[Partial] = []
                for row in range(layout.rows_per_block):
                    place = builder.arith("addi", at, builder.index_constant(row * columns))
                    loaded = [
                        scalar_ops.from_memory(builder, load_chunk(builder, slot, place, width, kind), kind)
                        for slot, kind in zip(slots, fold.types(), strict=True)
                    ]
                    parts.append(tuple(loaded))
                return fold.tree(parts)

            self._for_chunks(
                fold, lambda chunk, n=number, f=fold, g=gather: self._store_part(n, f, chunk, g(chunk), part)
            )

    def _slots(self, fold: Fold, size: int) -> list[Value]:
        """Shared memory for the running values of one fold; folds of a kind take turns."""
        kinds = fold.types()
        key = (size, tuple(str(kind) for kind in kinds))
        if key in self._pool:
            self.builder.barrier()
        else:
            self._pool[key] = [self.shared(size, kind) for kind in kinds]
        return self._pool[key]

    def _store_own(self, number: int, fold: Fold, part: Expr, thread: Thread) -> None:
        """Store this thread's running values as the block's."""
        for chunk, partial in zip(self._own_chunks(fold), self._running[number], strict=True):
            if self._is_total(fold):
                self._by_first_thread(
                    thread, lambda c=chunk, p=partial: self._store_part(number, fold, c, p, part) or []
                )
                continue
            guard = None
            if self._tail is not None and chunk == self.tail_symbol.expr:
                lanes = self.layout.lanes
                guard = Guard(self.tail_symbol, self._tail[1], self.chunks % lanes, lanes)
            with self.evaluator.within(Context(self.lane, self.layout.vector, (guard,) if guard else ())):
                self._store_part(number, fold, chunk, partial, part)

    def _each_own(
        self, fold: Fold, running: Sequence[Partial], leave: Callable[[Value, Partial], list[Value]], thread: Thread
    ) -> None:
        """Call ``leave(column, running values)`` for the chunks that this thread has."""
        builder = self.builder
        for chunk, partial in zip(self._own_chunks(fold), running, strict=True):
            if self._is_total(fold):
                self._by_first_thread(thread, lambda p=partial: leave(builder.index_constant(0), p))
                continue
            at = builder.index(chunk * self.layout.vector)
            if self._tail is not None and chunk == self.tail_symbol.expr:
                builder.branch(self._tail[1], [], lambda a=at, p=partial: leave(a, p))
            else:
                leave(at, partial)

    def _store_part(self, number: int, fold: Fold, chunk: Expr, partial: Partial, part: Expr) -> None:
        if self.partials is None:
            raise TypeError("running values need memory")
        size = self.space.part_size(fold.node)
        self.partials.store(self.evaluator, number, fold, partial, part * size + self._columns(fold, chunk))

    def _read_parts(self, number: int, fold: Fold, chunk: Expr, first: Expr, count: int) -> Partial:
        """The running values of ``count`` parts, folded pair by pair."""
        partials = self.partials
        if partials is None:
            raise TypeError("running values need memory")
        size, at = self.space.part_size(fold.node), self._columns(fold, chunk)
        parts = [partials.load(self.evaluator, number, fold, (first + k) * size + at) for k in range(count)]
        return fold.tree(parts)

    def _finish(self, first: Expr, count: int, offset: int) -> None:
        """Fold ``count`` parts of every column, take the initial values in, and store what depends on the results."""
        widths = sorted({self.space.columns_of(fold.node) for fold in self._downs})
        for columns in widths:
            numbers = [n for n, fold in enumerate(self._downs) if self.space.columns_of(fold.node) == columns]

            def store(chunk: Expr, numbers: Sequence[int] = numbers, columns: int = columns) -> None:
                folds = [self._downs[number] for number in numbers]
                totals = [
                    self._read_parts(n, fold, chunk, first + offset, count)
                    for n, fold in zip(numbers, folds, strict=True)
                ]
                self._publish_down(folds, totals, self._columns(folds[0], chunk))
                self._store_down(columns)

            self._for_chunks(self._downs[numbers[0]], store)

    def _dry_epilogue(self) -> None:
        """What :meth:`_finish` computes after the running values, for one chunk."""
        for fold in self._downs:
            with self.evaluator.within(Context(self.lane, self.layout.vector)):
                chunk = self._own_chunks(fold)[0]
                self._publish_down([fold], [self._start(fold, chunk)], self._columns(fold, chunk))
        for columns in sorted({self.space.columns_of(fold.node) for fold in self._downs}):
            folds = [fold for fold in self._downs if self.space.columns_of(fold.node) == columns]
            self._column = self._columns(folds[0], self._own_chunks(folds[0])[0])
            with self.evaluator.within(Context(self.lane, self.layout.vector)):
                self._store_down(columns)

    def _for_columns(self, action: Callable[[int, Fold, Expr], None]) -> None:
        for number, fold in enumerate(self._downs):
            self._for_chunks(fold, lambda chunk, n=number, f=fold: action(n, f, chunk))

    def _for_chunks(self, fold: Fold, action: Callable[[Expr], None]) -> None:
        """Share the chunks of a fold's columns among all threads of the block."""
        builder, layout = self.builder, self.layout
        count = 1 if self._is_total(fold) else self.chunks
        context = Context() if self._is_total(fold) else Context(self.lane, layout.vector)
        for start in range(0, count, layout.threads):
            # At least two values, so that accesses keep the symbol.
            name = symbol(f"shared{start}of{count}", max(2, count))

            def run(start: int = start, name: Expr = name.expr) -> list[Value]:
                with self.evaluator.within(context):
                    action(name)
                return []

            number = builder.arith("addi", self._thread, builder.index_constant(start)) if start else self._thread
            builder.declare(name, number)
            if start + layout.threads <= count:
                run()
                continue
            inside = builder.compare("ult", number, builder.index_constant(count))
            share = Fraction(min(count - start, layout.threads), layout.threads)
            builder.branch(inside, [], run, None, builder.scope.executions * share)

    def _publish_down(self, folds: Sequence[Fold], totals: Sequence[Partial], column: Expr) -> None:
        self._column = column
        self._publish_at(folds, totals, column)

    def _publish_at(self, folds: Sequence[Fold], totals: Sequence[Partial], column: Expr) -> None:
        """Take the initial values of ``column`` in, and make the results known."""
        for fold, total in zip(folds, totals, strict=True):
            combiner = fold.combiner
            if combiner.merge:
                initial = self._column_init(fold, combiner.results[0], column)
                if not self._is_neutral(fold, initial):
                    total = fold.combine((initial,), total)
            for result, value in zip(combiner.results, total, strict=True):
                self.results[id(combiner.linalg), result] = value

    def _store_down(self, columns: int) -> None:
        """Store the outputs with ``columns`` elements that depend on the running values."""
        if self._column is None:
            raise TypeError("no column")
        for number in self.space.down_outputs:
            node = self.program.outputs[number]
            if node.elements == columns:
                value = self.evaluator.get(node, delinearize(self._column, node.shape))
                column = self._column
                self._located(node, lambda n=number, v=value, c=column: self.evaluator.store(n, c, v))

    def _reduced(self, node: Computed, indices: Indices) -> Value:
        if self.space.is_head(node):
            return self.results[id(node.linalg), node.result]
        if not self.space.is_down(node):
            return super()._reduced(node, indices)
        linalg = node.linalg
        place = linearize(linalg.parallel_point(node.result, indices), linalg.parallel_extents)
        value = self.results.get((id(linalg), node.result))
        if value is None or self._column is None or place != self._column:
            reason = "its result is needed before all rows are folded"
            raise refusal(linalg.op, reason, "it becomes a kernel of its own")
        return value


def _like(shape: Sequence[Sequence[Partial]], values: Sequence[Value]) -> list[list[Partial]]:
    """``values`` in the nesting of ``shape``."""
    left = list(values)
    found: list[list[Partial]] = []
    for parts in shape:
        row: list[Partial] = []
        for partial in parts:
            row.append(tuple(left[: len(partial)]))
            left = left[len(partial) :]
        found.append(row)
    return found
