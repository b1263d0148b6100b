"""Template ``column``: reductions over leading or middle dims, whose results are neighbours in memory.

See ``column_kernel``. Where such columns are too few to fill the chip they are split over blocks, if nothing of full
size depends on the reductions; columns that are needed again are kept in registers, or read again in each pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from mlir import ir

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.analysis import build_program, check_program
from mlirstitch.lowering.kernel.column_kernel import ColumnKernel, ColumnLayout
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.index_expr import stride_of
from mlirstitch.lowering.kernel.kernel_body import Site, emit_whole
from mlirstitch.lowering.kernel.partials import Partials
from mlirstitch.lowering.kernel.reduction_facts import (
    RESIDENT_VALUES,
    SHORT,
    Facts,
    can_split,
    dry_evaluator,
    measure,
    no_shared,
    partial_counts,
    power_of_two,
    scratch_of,
    unreachable,
    unroll_of,
)
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.schedule_checks import check_column_schedule, check_shared_work
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

MAX_VECTOR = 8
THREADS = 256
SEGMENT_BYTES = 128
"""Bytes side by side that a block reads at least: a cache line."""

MIN_PER_THREAD = 8
"""Elements a thread folds at least before a column is split over more blocks."""

STARVED = 4
"""A kernel that cannot split and fills less than one in so many multiprocessors is refused, if it has much to do."""

MUCH = 1 << 20
"""Elements from which on a starved kernel costs more than several that fill the chip."""


@dataclass(frozen=True)
class ColumnTemplate:
    """Reductions over leading and middle dims."""

    name: str = "column"

    def applies(self, cluster: Cluster, target: Target) -> str | None:
        """None if every reduction and output of the cluster fits one space of columns, else why not."""
        try:
            program = build_program(cluster)
            check_program(program)
            space, facts = self._facts(program)
            layout = self._layout(program, space, facts, target)
            _check_filled(space, layout, target)
        except PassError as error:
            return error.message
        return None

    def schedules(self, cluster: Cluster, target: Target) -> Sequence[Schedule]:
        """The best schedule, then one without splitting or values kept. Raises PassError if none applies."""
        program = build_program(cluster)
        space, facts = self._facts(program)
        best = self._layout(program, space, facts, target)
        per_thread = -(-space.cols // best.lanes)
        groups = best.blocks // best.splits
        plain = ColumnLayout(best.across, best.lanes, best.vector, False, groups, unroll_of(per_thread))
        layouts = [best] if best == plain or per_thread <= SHORT else [best, plain]
        return [self._schedule(cluster, space, layout) for layout in layouts]

    def emit(self, cluster: Cluster, schedule: Schedule, name: str, target: Target) -> ir.Operation:
        """Create the kernel. Raises :class:`PassError` for what :meth:`applies` refuses, or a wrong schedule."""
        return emit_whole(self, cluster, schedule, name, target)

    def emit_body(self, cluster: Cluster, schedule: Schedule, site: Site, target: Target) -> Sequence[Fraction]:
        """See :class:`BodyTemplate`."""
        program = build_program(cluster)
        space = RowSpace.of(program)
        if not space.is_columns:
            raise PassError("the elements reduced for a result are neighbours in memory")
        inner = space.dims[-1][0]
        check_column_schedule(schedule, inner, space.rows // inner, space.cols, target)
        layout = _layout_of(schedule)
        groups = layout.blocks // layout.splits
        check_shared_work(schedule, can_split(program, space), scratch_of(space, layout.splits), groups)
        body = site.open(program, schedule)
        evaluator = body.evaluator(program, unreachable)
        first = len(program.arguments) + len(program.outputs)
        partials = Partials(first, partial_counts(space.levels[0]), body.shared) if layout.splits > 1 else None
        ColumnKernel(program, space, layout, evaluator, body.shared, partials).emit()
        return evaluator.accesses.bytes

    def _facts(self, program: TensorProgram) -> tuple[RowSpace, Facts]:
        """Run the kernel dry with one result per access. Raises :class:`PassError` if it is no column kernel."""
        space = RowSpace.of(program)
        if not space.is_columns:
            raise PassError("the elements reduced for a result are neighbours in memory")
        kernel = _dry_kernel(program, space, 1)
        facts = measure(kernel)
        name = kernel.chunk_symbol
        strides = [stride_of(offset, name) for _, offset in facts.reads if name in offset.symbols]
        if 1 not in strides:
            raise PassError(f"neighbours among the {space.rows} results are not neighbours in any input")
        return space, facts

    def _vector(self, program: TensorProgram, space: RowSpace) -> int:
        """The widest chunk that divides the innermost dim and breaks no contiguous access."""
        vector = MAX_VECTOR
        while vector > 1:
            if space.dims[-1][0] % vector == 0:
                kernel = _dry_kernel(program, space, vector)
                kernel.emit()
                accesses = kernel.evaluator.accesses
                widest = MAX_ACCESS_BYTES // min(accesses.sizes, default=4)
                if vector <= widest and not accesses.broken:
                    return vector
            vector //= 2
        return 1

    def _layout(self, program: TensorProgram, space: RowSpace, facts: Facts, target: Target) -> ColumnLayout:
        """The layout with the widest accesses that keeps what several passes need, or else with the widest."""
        vector = widest = self._vector(program, space)
        while True:
            layout = self._layout_with(program, space, facts, vector, target)
            if layout.resident or facts.passes == 1:
                return layout
            if vector == 1:
                return self._layout_with(program, space, facts, widest, target)
            vector //= 2

    def _layout_with(
        self, program: TensorProgram, space: RowSpace, facts: Facts, vector: int, target: Target
    ) -> ColumnLayout:
        chunks = space.dims[-1][0] // vector
        outer = space.rows // space.dims[-1][0]
        across = min(WARP, power_of_two(chunks))
        splits = can_split(program, space)
        size = 4  # of an element; what a segment takes for narrower ones is at least half a line
        while not splits and outer * -(-chunks // across) < target.sms and across * vector * size > SEGMENT_BYTES:
            across //= 2
        groups = outer * -(-chunks // across)
        lanes = max(1, min(THREADS // across, power_of_two(-(-space.cols // 4))))
        while lanes * across < WARP:
            lanes *= 2
        if splits:
            count = min(-(-2 * target.sms // groups), space.cols // (lanes * MIN_PER_THREAD))
            if count > 1:
                per_thread = -(-space.cols // (lanes * count))
                return ColumnLayout(across, lanes, vector, False, groups * count, unroll_of(per_thread), count)
        return _whole(space, facts, ColumnLayout(across, lanes, vector, False, groups), target)

    def _schedule(self, cluster: Cluster, space: RowSpace, layout: ColumnLayout) -> Schedule:
        if layout.blocks > GRID_X_LIMIT:
            raise PassError(f"{layout.blocks} blocks exceed the grid limit", hint="split the batch")
        scheme = "grid" if layout.splits > 1 else "thread" if layout.lanes == 1 else "block"
        positions = {op: i for i, op in enumerate(cluster.ops)}
        roots = [node.op for level in space.levels for node in level]
        schemes = sorted({positions[op] for op in roots if op is not None and op in positions})
        return Schedule(
            template=self.name,
            grid=(layout.blocks, 1, 1),
            block=(layout.threads, 1, 1),
            vector=layout.vector,
            parameters=(
                ("across", layout.across),
                ("mode", "resident" if layout.resident else "loop"),
                ("splits", layout.splits),
                ("unroll", layout.unroll),
            ),
            schemes=tuple((position, scheme) for position in schemes),
            scratch=scratch_of(space, layout.splits) if layout.splits > 1 else (),
            tickets=layout.blocks // layout.splits if layout.splits > 1 else 0,
        )


def _whole(space: RowSpace, facts: Facts, layout: ColumnLayout, target: Target) -> ColumnLayout:
    """A layout in which a block owns whole columns: resident if registers suffice, with more threads if need be."""
    live = max(1, facts.live) * layout.vector
    lanes = layout.lanes
    most = target.max_threads_per_block // layout.across
    if layout.blocks < target.sms:
        lanes = min(most, max(lanes, power_of_two(-(-space.cols // 4))))
    resident = facts.passes > 1 or space.cols <= SHORT * lanes
    wanted = lanes
    while resident and -(-space.cols // wanted) * live > RESIDENT_VALUES[max(WARP, wanted * layout.across)]:
        if wanted >= most:
            resident = False
        else:
            wanted *= 2
    lanes = wanted if resident or facts.passes > 1 else lanes
    unroll = 1 if resident else unroll_of(-(-space.cols // lanes))
    return ColumnLayout(layout.across, lanes, layout.vector, resident, layout.blocks, unroll)


def _check_filled(space: RowSpace, layout: ColumnLayout, target: Target) -> None:
    if layout.splits == 1 and layout.blocks * STARVED < target.sms and space.rows * space.cols >= MUCH:
        raise PassError(
            f"{space.rows} results over {space.cols} elements each, all needed at once, would keep "
            f"{layout.blocks} of {target.sms} multiprocessors busy"
        )


def _dry_kernel(program: TensorProgram, space: RowSpace, vector: int) -> ColumnKernel:
    layout = ColumnLayout(1, WARP, vector, True, space.rows // vector)
    return ColumnKernel(program, space, layout, dry_evaluator(program), no_shared, one_chunk=True)


def _layout_of(schedule: Schedule) -> ColumnLayout:
    across = int(schedule.parameter("across"))
    return ColumnLayout(
        across,
        schedule.block[0] // across,
        schedule.vector,
        schedule.parameter("mode") == "resident",
        schedule.grid[0],
        int(schedule.parameter("unroll", 1)),
        int(schedule.parameter("splits", 1)),
    )
