"""Template ``column``: reductions over leading or middle dims, whose results are neighbours in memory.

See ``column_kernel``. Where such columns are too few to fill the chip they are split over blocks, if nothing of full
size depends on the reductions; columns that are needed again are kept in registers, or read again in each pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.column_kernel import ColumnKernel, ColumnLayout
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.index_expr import stride_of
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel, schemes_of
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
    unroll_of,
)
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.schedule_checks import check_column_schedule, check_shared_work
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.lowering.kernel.variants import nearest_first, powers_of_two
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

MAX_VECTOR = 8
THREADS = 256
SEGMENT_BYTES = 128
"""Bytes side by side that a block reads at least: a cache line."""

MIN_PER_THREAD = 8
"""Elements a thread folds at least before a column is split over more blocks."""

MOST_SPLITS = 64
"""Blocks that share a column at most, among the variants."""

STARVED = 4
"""A kernel that cannot split and fills less than one in so many multiprocessors is refused, if it has much to do."""

MUCH = 1 << 20
"""Elements from which on a starved kernel costs more than several that fill the chip."""


@dataclass(frozen=True)
class ColumnTemplate(KernelTemplate[RowSpace, ColumnLayout]):
    """Reductions over leading and middle dims. Rows of the space are columns of memory."""

    name: str = "column"

    def space(self, program: TensorProgram) -> RowSpace:
        """The results and the elements they are folded from."""
        space = RowSpace.of(program)
        if not space.is_columns:
            raise PassError("the elements reduced for a result are neighbours in memory")
        return space

    def check(self, program: TensorProgram, space: RowSpace, target: Target) -> None:
        """Refuse results that are no neighbours in memory, and columns too few to fill the chip."""
        layout = _best_layout(program, space, _measure(program, space), target)
        if layout.splits == 1 and layout.blocks * STARVED < target.sms and space.rows * space.cols >= MUCH:
            raise PassError(
                f"{space.rows} results over {space.cols} elements each, all needed at once, would keep "
                f"{layout.blocks} of {target.sms} multiprocessors busy"
            )

    def layouts(self, program: TensorProgram, space: RowSpace, target: Target) -> Sequence[ColumnLayout]:
        """The best layout, then one without splitting or values kept."""
        best = _best_layout(program, space, _measure(program, space), target)
        per_thread = -(-space.cols // best.lanes)
        groups = best.blocks // best.splits
        plain = ColumnLayout(best.across, best.lanes, best.vector, False, groups, unroll_of(per_thread))
        return [best] if best == plain or per_thread <= SHORT else [best, plain]

    def variants(self, program: TensorProgram, space: RowSpace, target: Target) -> Iterator[ColumnLayout]:
        """Other tiles, block sizes and numbers of splits; values kept, or read again."""
        facts = _measure(program, space)
        best = _best_layout(program, space, facts, target)
        inner = space.dims[-1][0]
        widest = _widest_vector(program, space)
        found: list[ColumnLayout] = []
        for vector in [width for width in powers_of_two(1, widest) if inner % width == 0]:
            chunks = inner // vector
            for across in powers_of_two(1, min(WARP, power_of_two(chunks))):
                groups = space.rows // inner * -(-chunks // across)
                for lanes in powers_of_two(max(1, WARP // across), target.max_threads_per_block // across):
                    if lanes <= max(power_of_two(space.cols), WARP // across):
                        tile = ColumnLayout(across, lanes, vector, False, groups)
                        found += _with_modes(space, facts, tile, can_split(program, space), target)
        found = [layout for layout in found if layout.blocks <= GRID_X_LIMIT]
        yield from nearest_first(best, found, _place)

    def schedule(self, cluster: Cluster, space: RowSpace, layout: ColumnLayout) -> Schedule:
        """The schedule that describes a layout."""
        if layout.blocks > GRID_X_LIMIT:
            raise PassError(f"{layout.blocks} blocks exceed the grid limit", hint="split the batch")
        scheme = "grid" if layout.splits > 1 else "thread" if layout.lanes == 1 else "block"
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
            schemes=schemes_of(cluster, [(node, scheme) for level in space.levels for node in level]),
            scratch=scratch_of(space, layout.splits) if layout.splits > 1 else (),
            tickets=layout.blocks // layout.splits if layout.splits > 1 else 0,
        )

    def layout(self, program: TensorProgram, space: RowSpace, schedule: Schedule, target: Target) -> ColumnLayout:
        """The layout that a schedule describes."""
        inner = space.dims[-1][0]
        check_column_schedule(schedule, inner, space.rows // inner, space.cols, target)
        layout = _layout_of(schedule)
        groups = layout.blocks // layout.splits
        check_shared_work(schedule, can_split(program, space), scratch_of(space, layout.splits), groups)
        return layout

    def body(self, kernel: OpenKernel, space: RowSpace, layout: ColumnLayout) -> None:
        """Emit the body."""
        shared = kernel.place.shared
        partials = None
        if layout.splits > 1:
            partials = Partials(kernel.first_workspace, partial_counts(space.levels[0]), shared)
        ColumnKernel(kernel.program, space, layout, kernel.evaluator, shared, partials).emit()


def _with_modes(
    space: RowSpace, facts: Facts, tile: ColumnLayout, splittable: bool, target: Target
) -> Iterator[ColumnLayout]:
    """The ways in which ``tile`` can go through its columns."""
    per_thread = -(-space.cols // tile.lanes)
    kept = per_thread * max(1, facts.live) * tile.vector
    if kept <= RESIDENT_VALUES[max(WARP, tile.threads)]:
        yield replace(tile, resident=True)
    if space.cols >= 2 * tile.lanes:
        yield replace(tile, unroll=unroll_of(per_thread))
    if splittable and tile.blocks < target.sms:
        for splits in powers_of_two(2, min(MOST_SPLITS, space.cols // (tile.lanes * 2))):
            unroll = unroll_of(-(-space.cols // (tile.lanes * splits)))
            yield replace(tile, blocks=tile.blocks * splits, unroll=unroll, splits=splits)


def _place(layout: ColumnLayout) -> tuple[float, ...]:
    """Coordinates of a layout among its variants."""
    return (
        *(log2(layout.across), log2(layout.lanes), 2 * log2(layout.vector)),
        *(2 * layout.resident, log2(layout.splits)),
    )


def _measure(program: TensorProgram, space: RowSpace) -> Facts:
    """Run the kernel dry with one result per access. Raises :class:`PassError` if it is no column kernel."""
    kernel = _dry_kernel(program, space, 1)
    facts = measure(kernel)
    name = kernel.chunk_symbol
    strides = [stride_of(offset, name) for _, offset in facts.reads if name in offset.symbols]
    if 1 not in strides:
        raise PassError(f"neighbours among the {space.rows} results are not neighbours in any input")
    return facts


def _widest_vector(program: TensorProgram, space: RowSpace) -> int:
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


def _best_layout(program: TensorProgram, space: RowSpace, facts: Facts, target: Target) -> ColumnLayout:
    """The layout with the widest accesses that keeps what several passes need, or else with the widest."""
    vector = widest = _widest_vector(program, space)
    while True:
        layout = _layout_with(program, space, facts, vector, target)
        if layout.resident or facts.passes == 1:
            return layout
        if vector == 1:
            return _layout_with(program, space, facts, widest, target)
        vector //= 2


def _layout_with(program: TensorProgram, space: RowSpace, facts: Facts, vector: int, target: Target) -> ColumnLayout:
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
