"""The body of a ``column`` kernel: reductions whose results are neighbours in memory.

A row of the iteration space is then a column of memory. A block owns a tile of ``across`` chunks of ``vector``
neighbouring results, so that accesses coalesce; ``lanes`` threads stand above each other in every chunk and share its
elements, which they fold in registers, by shuffles where they are in one warp, and through shared memory.

Sums over the batch, bias gradients, softmax over a middle dim and statistics of channels-last tensors are such kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirstitch.lowering.kernel.evaluate import Guard
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial, across_warps_of_columns
from mlirstitch.lowering.kernel.index_expr import Expr, constant, symbol
from mlirstitch.lowering.kernel.reduction_kernel import ReductionKernel, Thread


@dataclass(frozen=True)
class ColumnLayout:
    """How threads are laid over the columns of memory.

    Attributes:
        across: chunks side by side in a block, a power of two up to a warp.
        lanes: threads per chunk, a power of two.
        vector: results of a chunk; divides the extent of the innermost dim.
        resident: whether passes are unrolled and keep values in registers.
        blocks: blocks of the launch.
        unroll: elements of a result per iteration of the loop schedule.
        splits: blocks that share a column.
    """

    across: int
    lanes: int
    vector: int
    resident: bool
    blocks: int
    unroll: int = 1
    splits: int = 1

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.across * self.lanes


@dataclass(eq=False)
class ColumnKernel(ReductionKernel):
    """A kernel whose vector lane runs over rows of the space, which are neighbours in memory."""

    layout: ColumnLayout  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        self.inner = self.space.dims[-1][0]
        self.outer = self.space.rows // self.inner
        self.tiles = -(-self.inner // (self.layout.vector * self.layout.across))
        count = self.inner // self.layout.vector
        # Where there are idle threads at least two values, so that accesses keep the symbol and with it their guard.
        self.chunk_symbol = symbol("across", count if self.tiles * self.layout.across == count else max(2, count))
        self._outer = symbol("outer", self.outer)
        self._tile = constant(0)

    @property
    def chunks(self) -> int:
        return self.space.cols

    @property
    def row(self) -> Expr:
        place = self.chunk_symbol.expr * self.layout.vector
        if self.lane is not None:
            place = place + self.lane.expr
        return self._outer.expr * self.inner + place

    @property
    def result_width(self) -> int:
        return self.layout.vector

    def column(self, chunk: Expr) -> Expr:
        return chunk

    def place_threads(self) -> Thread:
        builder, layout = self.builder, self.layout
        block, thread = builder.block_id(), builder.thread_id()
        across, tiles = builder.index_constant(layout.across), builder.index_constant(self.tiles)
        place, in_row = builder.arith("remui", thread, across), builder.arith("divui", thread, across)
        group = self.tiles * self.outer
        part = builder.index_constant(0)
        in_whole_row = in_row
        self._tile = symbol("group", group).expr
        if layout.splits > 1:
            groups = builder.index_constant(group)
            part, block = builder.arith("divui", block, groups), builder.arith("remui", block, groups)
            shift = builder.arith("muli", part, builder.index_constant(layout.lanes))
            in_whole_row = builder.arith("addi", shift, in_row)
        builder.declare(symbol("group", group), block)
        tile, outer = block, builder.index_constant(0)
        if self.outer > 1:
            tile, outer = builder.arith("remui", block, tiles), builder.arith("divui", block, tiles)
        builder.declare(self._outer, outer)
        chunk = builder.arith("addi", builder.arith("muli", tile, across), place)
        builder.declare(self.chunk_symbol, chunk)
        builder.declare(self._in_row, in_whole_row)
        count, capacity = self.inner // layout.vector, self.tiles * layout.across
        if capacity > count:
            inside = builder.compare("ult", chunk, builder.index_constant(count))
            self._row_guards = (Guard(self.chunk_symbol, inside, count, capacity),)
        warp_size = builder.index_constant(WARP)
        lane, warp = builder.arith("remui", thread, warp_size), builder.arith("divui", thread, warp_size)
        return Thread(in_row, lane, warp, part)

    def fold_threads(self, folds: Sequence[tuple[Fold, Partial]], thread: Thread) -> list[Partial]:
        layout = self.layout
        in_warp = min(WARP, layout.threads) // layout.across
        partials: list[tuple[Fold, Partial]] = []
        for fold, partial in folds:
            self.builder.location = fold.combiner.linalg.op.location
            partials.append((fold, fold.across_threads(partial, in_warp, layout.across)))
        if layout.threads <= WARP or layout.lanes == in_warp:
            return [partial for _, partial in partials]
        place = self.builder.arith("remui", thread.lane, self.builder.index_constant(layout.across))
        return across_warps_of_columns(partials, layout.threads // WARP, layout.across, place, thread.warp, self.shared)

    def ticket(self) -> Expr:
        return self._tile
