"""The body of a ``row_column`` kernel: rows are reduced as in a row kernel, and values of all rows down the columns.

A block goes through rows, some at a time. For every row it does what a row kernel does; in the last pass it adds the
row to running values that it keeps for every column, and for every total over the rows. At the end the rows that were
under way together are folded through shared memory, each block leaves its running values in global memory, and they
are folded in two steps: by the last block of each group of blocks, then by the last group (see ``partials``).

Totals of few elements that rows depend on are computed by every block for itself before its first row.

The backward pass of a layer norm with the gradients of its weights is one such kernel, and so is a loss with its mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlirstitch.dialects.locations import refusal
from mlirstitch.lowering.kernel import body as scalar_ops
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.combiner import combiner_of
from mlirstitch.lowering.kernel.evaluate import Context, Guard
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial
from mlirstitch.lowering.kernel.index_expr import Expr, constant, delinearize, linearize, symbol
from mlirstitch.lowering.kernel.reduction_kernel import Thread
from mlirstitch.lowering.kernel.row_column_fold import FoldingDown, RowColumnLayout
from mlirstitch.lowering.kernel.row_space import row_shape
from mlirstitch.lowering.kernel.tensor_program import Computed, Indices
from mlirstitch.lowering.kernel.thread_fold import fold_threads

__all__ = ["RowColumnKernel", "RowColumnLayout"]


@dataclass(eq=False)
class RowColumnKernel(FoldingDown):
    """A row kernel with running values for the columns."""

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
        totals = fold_threads([(fold, partial)], threads, thread.lane, thread.warp, self.shared)
        self._publish_at([fold], totals, constant(0))

    # Running values ---------------------------------------------------------------------------------------------

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
