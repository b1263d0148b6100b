"""The body of a ``row`` kernel whose rows several blocks share, all of which need the results.

Blocks take turns at the chunks of a row: of ``n`` threads, thread ``t`` of the row has chunks ``t``, ``t + n``, ...
Between two levels of reductions the blocks exchange their partial results (see ``exchange``), so that every block
keeps its part of the row in registers or shared memory, and the row is read once and written once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.exchange import Exchange, Place
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.index_expr import Expr, floordiv, symbol
from mlirstitch.lowering.kernel.reduction_kernel import Thread
from mlirstitch.lowering.kernel.row_kernel import RowKernel


@dataclass(eq=False)
class ReusedBuffers:
    """Shared memory that is used again from level to level: an exchange lies between, so all threads have read it."""

    make: Callable[[int, ir.Type], Value]
    _made: dict[tuple[int, ir.Type], list[Value]] = field(default_factory=dict)
    _taken: dict[tuple[int, ir.Type], int] = field(default_factory=dict)

    def __call__(self, elements: int, element: ir.Type) -> Value:
        """A buffer that nobody has taken since :meth:`rewind`."""
        key = elements, element
        number = self._taken.get(key, 0)
        self._taken[key] = number + 1
        made = self._made.setdefault(key, [])
        if number == len(made):
            made.append(self.make(elements, element))
        return made[number]

    def rewind(self) -> None:
        """All buffers may be taken again."""
        self._taken.clear()


@dataclass(eq=False, kw_only=True)
class SharedRowKernel(RowKernel):
    """A row kernel with ``layout.splits`` blocks a row that tell each other their results through ``exchange``."""

    exchange: Exchange

    def __post_init__(self) -> None:
        super().__post_init__()
        self._in_block = symbol("in_block", self.layout.lanes)
        self._buffers = self.shared = ReusedBuffers(self.shared)

    def place_threads(self) -> Thread:
        """The blocks of a row are neighbours, as those of a thread-block cluster must be."""
        builder, layout = self.builder, self.layout
        block, thread = builder.block_id(), builder.thread_id()
        warp_size, splits = builder.index_constant(WARP), builder.index_constant(layout.splits)
        row, part = builder.arith("divui", block, splits), builder.arith("remui", block, splits)
        lane, warp = builder.arith("remui", thread, warp_size), builder.arith("divui", thread, warp_size)
        start = builder.arith("muli", part, builder.index_constant(layout.lanes))
        in_row = builder.arith("addi", start, thread)
        builder.declare(self._row, row)
        builder.declare(self._in_row, in_row)
        builder.declare(self._in_block, thread)
        return Thread(in_row, lane, warp, part)

    def _emit_rows(self, thread: Thread) -> None:
        evaluator, exchange = self.evaluator, self.exchange
        in_block = self.builder.index(self._in_block.expr)
        place = Place(
            in_block,
            thread.lane,
            thread.part,
            self.row,
            self.layout.threads,
            lambda fold: self._initial(fold, 1),
            lambda held: self.fold_threads(held, thread),
        )
        stored: set[int] = set()
        for number, level in enumerate(self.space.levels):
            self._begin(number)
            self._buffers.rewind()
            folds, partials = self._fold_level(level, stored)
            own = self.fold_threads(list(zip(folds, partials, strict=True)), thread)
            self._publish(folds, exchange.totals(evaluator, folds, own, place))
        exchange.last_read(evaluator, place)
        self._store_rest(thread, stored)
        exchange.leave(evaluator)

    def staged_chunk(self, chunk: Expr) -> Expr:
        return floordiv(chunk, self._sharing) * self.layout.lanes + self._in_block.expr

    def _by_first_thread(self, thread: Thread, action: Callable[[], list[Value]]) -> None:
        """Run ``action`` in the first of all threads that share a row."""
        builder = self.builder
        first = builder.compare("eq", thread.in_row, builder.index_constant(0))
        builder.branch(first, [], action, None, builder.scope.executions / self._sharing)
