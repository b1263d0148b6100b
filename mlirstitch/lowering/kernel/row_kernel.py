"""The body of a ``row`` kernel: everything that reduces trailing dims, in one kernel.

The iteration space is (row, column). A group of lanes, a warp, a block or several blocks own a row; each thread takes
chunks of ``vector`` neighbouring columns (see ``reduction_kernel``).

LayerNorm, softmax, RMS norm, group norm, masked attention softmax, argmax and full sums are one kernel each, and so
are the statistics of a batch norm over images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirstitch.lowering.kernel.evaluate import Guard
from mlirstitch.lowering.kernel.fold import WARP, Fold, Partial
from mlirstitch.lowering.kernel.index_expr import Expr, symbol
from mlirstitch.lowering.kernel.reduction_kernel import ReductionKernel, Thread
from mlirstitch.lowering.kernel.thread_fold import fold_threads


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
        splits: blocks that share a row (then a block holds a part of one row).
        shared_bytes: dynamic shared memory in which the loop schedule keeps what several passes read.
        exchange: how the blocks that share a row tell each other their results: "cluster", "grid", or "" where the
            block that finishes last folds those of the others.
    """

    lanes: int
    rows_per_block: int
    vector: int
    resident: bool
    blocks: int
    unroll: int = 1
    splits: int = 1
    shared_bytes: int = 0
    exchange: str = ""

    @property
    def mode(self) -> str:
        """The name of the schedule."""
        return "resident" if self.resident else "staged" if self.shared_bytes else "loop"

    def staged_columns(self, cols: int) -> int:
        """Columns of ``cols`` that a block stages: chunks that every thread has. The rest stay in registers."""
        return cols // (self.lanes * self.splits * self.vector) * self.lanes * self.vector

    @property
    def threads(self) -> int:
        """Threads of a block."""
        return self.lanes * self.rows_per_block


@dataclass(eq=False)
class RowKernel(ReductionKernel):
    """A kernel whose vector lane runs over columns."""

    layout: RowLayout  # pyright: ignore[reportIncompatibleVariableOverride]

    def __post_init__(self) -> None:
        super().__post_init__()
        self._row = symbol("row", self.space.rows)

    @property
    def chunks(self) -> int:
        return self.space.cols // self.layout.vector

    @property
    def row(self) -> Expr:
        return self._row.expr

    @property
    def result_width(self) -> int:
        return 1

    def column(self, chunk: Expr) -> Expr:
        col = chunk * self.layout.vector
        return col if self.lane is None else col + self.lane.expr

    def place_threads(self) -> Thread:
        builder, layout = self.builder, self.layout
        block, thread = builder.block_id(), builder.thread_id()
        warp_size = builder.index_constant(WARP)
        part = builder.index_constant(0)
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
        in_whole_row = in_row
        if layout.splits > 1:
            rows = builder.index_constant(self.space.rows)
            row, part = builder.arith("remui", block, rows), builder.arith("divui", block, rows)
            in_whole_row = builder.arith(
                "addi", builder.arith("muli", part, builder.index_constant(layout.lanes)), in_row
            )
        builder.declare(self._row, row)
        builder.declare(self._in_row, in_whole_row)
        capacity = layout.blocks // layout.splits * layout.rows_per_block
        if capacity > self.space.rows:
            inside = builder.compare("ult", row, builder.index_constant(self.space.rows))
            self._row_guards = (Guard(self._row, inside, self.space.rows, capacity),)
        return Thread(in_row, lane, warp, part)

    def fold_threads(self, folds: Sequence[tuple[Fold, Partial]], thread: Thread) -> list[Partial]:
        scalars: list[tuple[Fold, Partial]] = []
        for fold, partial in folds:
            self.builder.location = fold.combiner.linalg.op.location
            scalars.append((fold, fold.across_lanes(partial)))
        return fold_threads(scalars, self.layout.lanes, thread.lane, thread.warp, self.shared)

    def ticket(self) -> Expr:
        return self.row
