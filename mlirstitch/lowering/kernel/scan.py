"""Template ``scan``: clusters with prefix scans, as one kernel (see ``scan_kernel``).

Scans of one space, in any order of dependence, share the kernel with everything element-wise around them and with
reductions of the same rows that they need or feed: ``(cumsum(softmax(x)) <= p).sum()`` is one kernel. What depends on a
scan at another place than its own (its last element, a reversal), or needs a sum of scanned values again for each of
them, reads it from memory.

Threads are laid over rows as the templates ``row`` and ``column`` do it, and read schedules of the same parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.column_kernel import ColumnLayout
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel, schemes_of
from mlirstitch.lowering.kernel.reduction_facts import (
    RESIDENT_VALUES,
    dry_evaluator,
    measure,
    no_shared,
    power_of_two,
    unroll_of,
)
from mlirstitch.lowering.kernel.row import row_layouts, scheme_in_block, widest_vector
from mlirstitch.lowering.kernel.row_kernel import RowLayout
from mlirstitch.lowering.kernel.scan_kernel import ColumnScanKernel, RowScanKernel, ScanSpace
from mlirstitch.lowering.kernel.schedule_checks import check_column_schedule, check_row_schedule, check_shared_work
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

ScanLayout = RowLayout | ColumnLayout
MAX_COLUMN_VECTOR = 4
COLUMN_THREADS = 256
SEGMENT_BYTES = 32
"""Bytes side by side that a block reads at least: a sector, the least that memory transfers."""

MAX_UNROLL = 2
"""Tiles per iteration of the loop schedule: a tile is far more code than a load and an addition."""

PER_THREAD = 4
"""Elements of a column that a thread takes at least, if it shares the column with others."""


@dataclass(frozen=True)
class ScanTemplate(KernelTemplate[ScanSpace, ScanLayout]):
    """Prefix scans of any dim."""

    name: str = "scan"

    def space(self, program: TensorProgram) -> ScanSpace:
        """The rows that every scan shares."""
        return ScanSpace.of(program)

    def check(self, program: TensorProgram, space: ScanSpace, target: Target) -> None:
        """Refuse what needs a scan at another place, or before it is complete."""
        _dry_kernel(program, space, 1).emit()

    def layouts(self, program: TensorProgram, space: ScanSpace, target: Target) -> Sequence[ScanLayout]:
        """The best layout, then one that reads rows again in each pass."""
        if space.rows.is_columns:
            return _column_layouts(program, space, target)
        facts = measure(_dry_kernel(program, space, 1))
        vector = widest_vector(space.rows, lambda width: _dry_row_kernel(program, space, width))
        layouts = row_layouts(space.rows, facts, vector, False, target)
        return [replace(layout, unroll=min(layout.unroll, MAX_UNROLL)) for layout in layouts]

    def schedule(self, cluster: Cluster, space: ScanSpace, layout: ScanLayout) -> Schedule:
        """The schedule that describes a layout."""
        if layout.blocks > GRID_X_LIMIT:
            raise PassError(f"{layout.blocks} blocks exceed the grid limit", hint="split the batch")
        own: tuple[tuple[str, int | str], ...]
        if isinstance(layout, ColumnLayout):
            mode, scheme = "resident" if layout.resident else "loop", "thread" if layout.lanes == 1 else "block"
            own = (("across", layout.across),)
        else:
            mode, scheme = layout.mode, scheme_in_block(layout.lanes)
            own = (("lanes", layout.lanes), ("rows_per_block", layout.rows_per_block))
        roots = [*space.scans, *space.after, *(node for level in space.rows.levels for node in level)]
        return Schedule(
            template=self.name,
            grid=(layout.blocks, 1, 1),
            block=(layout.threads, 1, 1),
            vector=layout.vector,
            parameters=tuple(sorted((*own, ("mode", mode), ("unroll", layout.unroll)))),
            schemes=schemes_of(cluster, [(node, scheme) for node in roots]),
        )

    def layout(self, program: TensorProgram, space: ScanSpace, schedule: Schedule, target: Target) -> ScanLayout:
        """The layout that a schedule describes."""
        rows, resident = space.rows, schedule.parameter("mode") == "resident"
        check_shared_work(schedule, False, (), 0)
        unroll = int(schedule.parameter("unroll", 1))
        if rows.is_columns:
            inner = rows.dims[-1][0]
            check_column_schedule(schedule, inner, rows.rows // inner, rows.cols, target)
            across = int(schedule.parameter("across"))
            lanes = schedule.block[0] // across
            return ColumnLayout(across, lanes, schedule.vector, resident, schedule.grid[0], unroll)
        check_row_schedule(schedule, rows.rows, rows.cols, target)
        lanes, rows_per_block = int(schedule.parameter("lanes")), int(schedule.parameter("rows_per_block"))
        return RowLayout(lanes, rows_per_block, schedule.vector, resident, schedule.grid[0], unroll)

    def body(self, kernel: OpenKernel, space: ScanSpace, layout: ScanLayout) -> None:
        """Emit the body."""
        program, evaluator, shared = kernel.program, kernel.evaluator, kernel.place.shared
        scans, after = space.scans, space.after
        if isinstance(layout, ColumnLayout):
            ColumnScanKernel(program, space.rows, layout, evaluator, shared, scans=scans, after=after).emit()
        else:
            RowScanKernel(program, space.rows, layout, evaluator, shared, scans=scans, after=after).emit()


def _dry_row_kernel(program: TensorProgram, space: ScanSpace, vector: int) -> RowScanKernel:
    layout = RowLayout(WARP, 1, vector, True, space.rows.rows)
    evaluator, scans, after = dry_evaluator(program), space.scans, space.after
    return RowScanKernel(program, space.rows, layout, evaluator, no_shared, one_chunk=True, scans=scans, after=after)


def _dry_column_kernel(program: TensorProgram, space: ScanSpace, vector: int) -> ColumnScanKernel:
    layout = ColumnLayout(1, WARP, vector, True, space.rows.rows // vector)
    evaluator, scans, after = dry_evaluator(program), space.scans, space.after
    return ColumnScanKernel(program, space.rows, layout, evaluator, no_shared, one_chunk=True, scans=scans, after=after)


def _dry_kernel(program: TensorProgram, space: ScanSpace, vector: int) -> RowScanKernel | ColumnScanKernel:
    make = _dry_column_kernel if space.rows.is_columns else _dry_row_kernel
    return make(program, space, vector)


def _column_vector(program: TensorProgram, space: ScanSpace) -> int:
    """The widest chunk that divides the innermost dim and breaks no contiguous access."""
    vector = MAX_COLUMN_VECTOR
    while vector > 1:
        if space.rows.dims[-1][0] % vector == 0:
            kernel = _dry_column_kernel(program, space, vector)
            kernel.emit()
            accesses = kernel.evaluator.accesses
            if vector <= MAX_ACCESS_BYTES // min(accesses.sizes, default=4) and not accesses.broken:
                return vector
        vector //= 2
    return 1


def _column_layouts(program: TensorProgram, space: ScanSpace, target: Target) -> list[ColumnLayout]:
    """A block takes few columns where they are few, and more threads share each of them."""
    rows = space.rows
    facts = measure(_dry_kernel(program, space, 1))
    vector = _column_vector(program, space)
    inner = rows.dims[-1][0]
    chunks, outer = inner // vector, rows.rows // inner
    across = min(WARP, power_of_two(chunks))
    while outer * -(-chunks // across) < target.sms and across * vector * 4 > SEGMENT_BYTES:
        across //= 2
    blocks = outer * -(-chunks // across)
    threads = COLUMN_THREADS if blocks >= target.sms else target.max_threads_per_block // 2
    lanes = max(WARP // across, min(threads // across, power_of_two(-(-rows.cols // PER_THREAD))), 1)
    per_thread = -(-rows.cols // lanes)
    live = max(1, facts.live) * vector
    resident = facts.passes > 1 and per_thread * live <= RESIDENT_VALUES[max(WARP, lanes * across)]
    unroll = min(unroll_of(per_thread), MAX_UNROLL)
    best = ColumnLayout(across, lanes, vector, resident, blocks, 1 if resident else unroll)
    return [best, replace(best, resident=False, unroll=unroll)] if resident else [best]
