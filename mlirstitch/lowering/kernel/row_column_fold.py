"""The second half of a ``row_column`` kernel: running values of columns, folded over rows, blocks and groups of blocks.

See ``row_column_kernel``, which fills the running values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.combiner import combiner_of
from mlirstitch.lowering.kernel.evaluate import Context, Guard
from mlirstitch.lowering.kernel.fold import Fold, Partial, load_chunk, store_chunk
from mlirstitch.lowering.kernel.index_expr import Expr, constant, delinearize, symbol
from mlirstitch.lowering.kernel.reduction_kernel import Thread
from mlirstitch.lowering.kernel.row_column_space import RowColumnSpace
from mlirstitch.lowering.kernel.row_kernel import RowKernel, RowLayout


@dataclass(frozen=True)
class RowColumnLayout(RowLayout):
    """``blocks`` blocks take rows in turn; ``group`` of them are folded together first (1: all in one step)."""

    group: int = 1

    @property
    def groups(self) -> int:
        """Groups of blocks."""
        return self.blocks // self.group


@dataclass(eq=False)
class FoldingDown(RowKernel):
    """A row kernel with running values for the columns. ``space`` says what is reduced which way."""

    space: RowColumnSpace  # pyright: ignore[reportIncompatibleVariableOverride]
    layout: RowColumnLayout  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outputs = self.space.row_outputs
        self._downs = [Fold(self.evaluator, node, combiner_of(node.linalg, node.result)) for node in self.space.downs]
        self._running: list[list[Partial]] = []
        self._column: Expr | None = None
        self._slot: Value = None
        self._thread: Value = None
        self._block: Value = None
        self._pool: dict[tuple[int, tuple[str, ...]], list[Value]] = {}

    # Where a thread starts --------------------------------------------------------------------------------------

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
        """What :meth:`_finish` computes after the running values, for one chunk of every width.

        Each width in a branch of its own, as there: outputs of one width see no values of another.
        """
        for columns in sorted({self.space.columns_of(fold.node) for fold in self._downs}):
            folds = [fold for fold in self._downs if self.space.columns_of(fold.node) == columns]
            context = Context() if self._is_total(folds[0]) else Context(self.lane, self.layout.vector)

            def finish(folds: Sequence[Fold] = folds, columns: int = columns) -> list[Value]:
                chunk = self._own_chunks(folds[0])[0]
                starts = [self._start(fold, chunk) for fold in folds]
                self._publish_down(folds, starts, self._columns(folds[0], chunk))
                self._store_down(columns)
                return []

            with self.evaluator.within(context):
                inside = self.builder.compare("ult", self._thread, self.builder.index_constant(columns))
                self.builder.branch(inside, [], finish)

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
