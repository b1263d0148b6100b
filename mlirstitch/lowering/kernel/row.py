"""Template ``row``: clusters with reductions over trailing dims, as one kernel (see ``row_kernel``).

The schedule follows from arithmetic on shapes and a dry run: how wide accesses may be, how many values live from one
pass to the next, and from that how many threads share a row. Short rows take a warp or a part of one, longer ones a
block; a row that does not fit into registers is staged in shared memory, or read again in each pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES
from mlirstitch.lowering.kernel.exchange import ClusterExchange, Exchange, GridExchange, slot_bytes
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.index_expr import Expr, stride_of, symbol
from mlirstitch.lowering.kernel.kernel_body import KernelBody
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
    reads_by_pass,
    running_types,
    scratch_of,
    unroll_of,
)
from mlirstitch.lowering.kernel.row_kernel import RowKernel, RowLayout
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.row_variants import row_variants
from mlirstitch.lowering.kernel.schedule_checks import check_exchange, check_row_schedule, check_shared_work
from mlirstitch.lowering.kernel.shared_row_kernel import SharedRowKernel
from mlirstitch.lowering.kernel.shared_rows import CLUSTER, GRID, exchange_of, shared_layouts, shared_variants
from mlirstitch.lowering.kernel.staging import Staged, Staging, fitting, staged_tensors
from mlirstitch.lowering.kernel.tensor_program import Argument, TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

MAX_VECTOR = 8
WARP_ROW = 1024
"""Columns up to which a warp takes a row."""

FEWEST_STAGING = 128
"""Threads of a block that stages a row, at least: fewer cannot keep a multiprocessor busy that holds one or two."""

FEW_CHUNKS = 4
"""Chunks per thread aimed at when a block takes a row."""

MANY_OF_FEW_REGISTERS = 24
"""Resident values from which on the largest blocks (64 registers a thread) take chunks of two columns: wider ones leave
too few registers for what a chunk needs at once."""

MAX_STRIDED_ROWS = 4096
"""Rows up to which a reduction over a dim that is not contiguous runs here; beyond, one thread per row is better."""

SPLIT_LANES = 256
"""Threads of a block that holds a part of a row."""

MIN_CHUNKS = 8
"""Chunks a thread takes at least before a row is split over more blocks."""

_WIDEST_PARTIAL = 16
"""Bytes of a running value with its index."""

STARVED = 8
"""A kernel that cannot split and fills less than one in so many multiprocessors is refused, if it has much to do."""

MUCH = 1 << 21
"""Elements from which on a starved kernel costs more than several that fill the chip."""


@dataclass(frozen=True)
class RowTemplate(KernelTemplate[RowSpace, RowLayout]):
    """Reductions over trailing dims."""

    name: str = "row"

    def space(self, program: TensorProgram) -> RowSpace:
        """The rows and columns that every reduction shares."""
        return RowSpace.of(program)

    def check(self, program: TensorProgram, space: RowSpace, target: Target) -> None:
        """Refuse rows that are columns of memory, and rows too few to fill the chip."""
        _measure(program, space)
        if _starves(program, space, space.rows, target):
            best = self.layouts(program, space, target)[0]
            blocks = space.rows if best.exchange == CLUSTER and best.mode == "loop" else best.blocks
            if _starves(program, space, blocks, target):
                raise PassError(
                    f"{space.rows} rows of {space.cols} elements, all needed at once, would keep {blocks} of "
                    f"{target.sms} multiprocessors busy"
                )

    def layouts(self, program: TensorProgram, space: RowSpace, target: Target) -> Sequence[RowLayout]:
        """The best layout, then the one that reads rows again in each pass."""
        facts = _measure(program, space)
        vector = widest_vector(space, lambda width: _dry_kernel(program, space, width))
        layouts = row_layouts(space, facts, vector, can_split(program, space), target)
        if layouts[0].mode == "loop" and facts.passes > 1:
            layouts = [*staged_layouts(_staged(program, space), space, layouts[0], target), *layouts]
        shared = shared_layouts(space, facts, vector, layouts[0], lambda: _staged(program, space), target)
        return [*shared, *layouts]

    def variants(self, program: TensorProgram, space: RowSpace, target: Target) -> Iterator[RowLayout]:
        """Other block sizes and widths, values kept in other places, rows shared by other numbers of blocks."""
        facts = _measure(program, space)
        widest = widest_vector(space, lambda width: _dry_kernel(program, space, width))
        best = row_layouts(space, facts, widest, can_split(program, space), target)[0]
        staged = _staged(program, space) if facts.passes > 1 else []
        shared = shared_variants(space, facts, widest, best, lambda: staged, target)
        return chain(shared, row_variants(best, space, facts, widest, staged, can_split(program, space), target))

    def schedule(self, cluster: Cluster, space: RowSpace, layout: RowLayout) -> Schedule:
        """The schedule that describes a layout."""
        scheme = layout.exchange or ("grid" if layout.splits > 1 else scheme_in_block(layout.lanes))
        through_memory = layout.splits > 1 and layout.exchange != CLUSTER
        return Schedule(
            template=self.name,
            grid=(layout.blocks, 1, 1),
            block=(layout.threads, 1, 1),
            vector=layout.vector,
            shared_bytes=layout.shared_bytes,
            parameters=(
                ("lanes", layout.lanes),
                ("mode", layout.mode),
                ("rows_per_block", layout.rows_per_block),
                ("unroll", layout.unroll),
                *((("splits", layout.splits),) if layout.splits > 1 else ()),
            ),
            schemes=schemes_of(cluster, [(node, scheme) for level in space.levels for node in level]),
            scratch=scratch_of(space, layout.splits) if through_memory else (),
            tickets=space.rows if through_memory else 0,
            thread_block_cluster=(layout.splits, 1, 1) if layout.exchange == CLUSTER else (1, 1, 1),
            cooperative=layout.exchange == GRID,
        )

    def layout(self, program: TensorProgram, space: RowSpace, schedule: Schedule, target: Target) -> RowLayout:
        """The layout that a schedule describes."""
        check_row_schedule(schedule, space.rows, space.cols, target)
        layout = _layout_of(schedule)
        if layout.exchange:
            check_exchange(schedule, space.rows, scratch_of(space, layout.splits))
            return layout
        check_shared_work(schedule, can_split(program, space), scratch_of(space, layout.splits), space.rows)
        return layout

    def body(self, kernel: OpenKernel, space: RowSpace, layout: RowLayout) -> None:
        """Emit the body."""
        program, shared = kernel.program, kernel.place.shared
        staging = staging_of(_staged(program, space), space, layout, kernel.place)
        partials = None
        if layout.splits > 1 and layout.exchange != CLUSTER:
            nodes = [node for level in space.levels for node in level]
            partials = Partials(kernel.first_workspace, partial_counts(nodes), shared)
        if not layout.exchange:
            RowKernel(program, space, layout, kernel.evaluator, shared, partials, staging=staging).emit()
            return
        kinds = [kind for level in space.levels for node in level for kind in running_types(node)]
        exchange: Exchange = ClusterExchange(layout.splits, shared, slot_bytes(kinds))
        if partials is not None:
            exchange = GridExchange(partials, layout.splits, space.rows, len(space.levels))
        SharedRowKernel(program, space, layout, kernel.evaluator, shared, staging=staging, exchange=exchange).emit()


def scheme_in_block(lanes: int) -> str:
    """How ``lanes`` threads of one block that share a row exchange values."""
    return "thread" if lanes == 1 else "warp" if lanes <= WARP else "block"


def _measure(program: TensorProgram, space: RowSpace) -> Facts:
    """Run the kernel dry with one column per access. Raises :class:`PassError` if it is no row kernel."""
    kernel = _dry_kernel(program, space, 1)
    facts = measure(kernel)
    check_access_order(program, space, facts.reads, kernel)
    return facts


def _staged(program: TensorProgram, space: RowSpace) -> list[Staged]:
    """What several passes of a loop schedule read, with offsets in terms of the column."""
    layout = RowLayout(WARP, 1, 1, False, space.rows)
    kernel = RowKernel(program, space, layout, dry_evaluator(program), no_shared, one_loop=True)
    return staged_tensors(reads_by_pass(kernel))


def _dry_kernel(program: TensorProgram, space: RowSpace, vector: int) -> RowKernel:
    layout = RowLayout(WARP, 1, vector, True, space.rows)
    return RowKernel(program, space, layout, dry_evaluator(program), no_shared, one_chunk=True)


def widest_vector(space: RowSpace, dry_kernel: Callable[[int], RowKernel]) -> int:
    """The widest chunk that divides the row, keeps most lanes busy and breaks no contiguous access.

    ``dry_kernel`` makes a kernel with chunks of a width.
    """
    vector = MAX_VECTOR
    while vector > 1:
        if space.cols % vector == 0 and (space.cols >= WARP * vector or space.cols // vector >= WARP):
            kernel = dry_kernel(vector)
            kernel.emit()
            accesses = kernel.evaluator.accesses
            widest = MAX_ACCESS_BYTES // min(accesses.sizes, default=4)
            if vector <= widest and not accesses.broken:
                return vector
        vector //= 2
    return 1


def staged_layouts(tensors: Sequence[Staged], space: RowSpace, layout: RowLayout, target: Target) -> list[RowLayout]:
    """The loop schedule ``layout`` with ``tensors`` in shared memory, best first.

    Those behind the first have fewer threads a block, and so more registers a thread. [] if nothing fits, or rows share
    a block.
    """
    if layout.rows_per_block > 1:
        return []
    static = sum(WARP * _WIDEST_PARTIAL * len(level) for level in space.levels)
    found: list[RowLayout] = []
    for lanes in (layout.lanes, target.max_threads_per_block):
        candidate = _stage(tensors, space, layout, lanes, target.shared_bytes_block - static)
        if candidate is None:
            continue
        found.insert(0, candidate)
        if 2 * (candidate.shared_bytes + static) <= target.shared_bytes_sm:
            break  # several blocks fit on a multiprocessor; if one alone does, it has all the threads
    lanes = layout.lanes // 2
    while found and lanes >= FEWEST_STAGING:
        candidate = _stage(tensors, space, layout, lanes, target.shared_bytes_block - static)
        found += [] if candidate is None else [candidate]
        lanes //= 2
    return list(dict.fromkeys(found))


def _stage(tensors: Sequence[Staged], space: RowSpace, layout: RowLayout, lanes: int, room: int) -> RowLayout | None:
    """``layout`` with blocks of ``lanes`` threads, and what fits into ``room`` bytes staged; None if nothing does."""
    candidate = replace(layout, lanes=lanes, unroll=unroll_of(space.cols // layout.vector // lanes))
    _, size = fitting(tensors, candidate.staged_columns(space.cols), room)
    return replace(candidate, shared_bytes=size) if size else None


def staging_of(tensors: Sequence[Staged], space: RowSpace, layout: RowLayout, body: KernelBody) -> Staging | None:
    """The shared memory of a staged schedule, None for others."""
    if not layout.shared_bytes:
        return None
    columns = layout.staged_columns(space.cols)
    taken, _ = fitting(tensors, columns, layout.shared_bytes)
    return Staging(taken, columns, symbol("chunk", max(2, space.cols)), body.dynamic_shared())


def check_access_order(
    program: TensorProgram, space: RowSpace, reads: Sequence[tuple[Argument, Expr]], kernel: RowKernel
) -> None:
    """Refuse a space whose columns are strided in every input: such rows are columns of memory.

    Where inputs are as large as the space, smaller ones do not count: the vector that a matrix is multiplied by.
    """
    size = space.rows * space.cols
    reads = [(node, offset) for node, offset in reads if node.elements >= size] or reads
    strides = [stride_of(offset, kernel.tail_symbol) for _, offset in reads]
    contiguous = [s for s in strides if s is None or s == 1]
    full = any(node.elements > space.rows for node in program.outputs)
    strided = bool(strides) and not contiguous and space.rows > 1
    if strided and (full or space.is_columns or space.rows > MAX_STRIDED_ROWS):
        raise PassError(f"the {space.cols} elements reduced for a result are not contiguous in any input")


def _starves(program: TensorProgram, space: RowSpace, blocks: int, target: Target) -> bool:
    """Whether ``blocks`` have so much to do that several kernels that fill the chip are faster than one that idles."""
    return blocks * STARVED <= target.sms and space.rows * space.cols >= MUCH and not can_split(program, space)


def row_layouts(space: RowSpace, facts: Facts, vector: int, splittable: bool, target: Target) -> list[RowLayout]:
    chunks = space.cols // vector
    if splittable and 2 * space.rows <= target.sms:
        splits = min(-(-2 * target.sms // space.rows), chunks // (SPLIT_LANES * MIN_CHUNKS))
        if splits > 1:
            unroll = unroll_of(-(-chunks // (SPLIT_LANES * splits)))
            layout = RowLayout(SPLIT_LANES, 1, vector, False, space.rows * splits, unroll, splits)
            return [layout, *row_layouts(space, facts, vector, False, target)]
    lanes = _lanes(space, chunks, vector, target)
    live = max(1, facts.live)
    resident = facts.passes > 1 or chunks <= SHORT * lanes
    while resident and -(-space.cols // lanes) * live > RESIDENT_VALUES[max(WARP, lanes)]:
        if lanes >= target.max_threads_per_block:
            resident = False
        lanes = min(target.max_threads_per_block, max(2 * lanes, 2 * WARP))
    if not resident and lanes > WARP:
        most = target.max_threads_per_block // (1 if space.rows < target.sms else 2)
        lanes = min(most, power_of_two(chunks))
    if resident and lanes == target.max_threads_per_block and -(-space.cols // lanes) * live > MANY_OF_FEW_REGISTERS:
        vector = min(vector, 2)
    chunks = space.cols // vector
    best = _place(space, vector, lanes, resident, chunks, target)
    again = _place(space, vector, lanes, False, chunks, target)
    return [best, again] if best.resident and chunks > SHORT * lanes else [best]


def _lanes(space: RowSpace, chunks: int, vector: int, target: Target) -> int:
    """Threads per row, before registers are looked at."""
    if chunks <= WARP and space.rows > 1:
        return power_of_two(chunks)
    if space.cols <= WARP_ROW and space.rows >= target.sms:
        return WARP
    if chunks <= WARP:
        return WARP
    few_rows = space.rows < 2 * target.sms
    wanted = chunks if few_rows else -(-chunks // FEW_CHUNKS)
    largest = target.max_threads_per_block if few_rows else target.max_threads_per_block // 2
    return min(largest, max(WARP, power_of_two(wanted)))


def _place(space: RowSpace, vector: int, lanes: int, resident: bool, chunks: int, target: Target) -> RowLayout:
    unroll = 1
    if not resident:
        unroll = unroll_of(chunks // lanes)
    if lanes > WARP:
        return RowLayout(lanes, 1, vector, resident, space.rows, unroll)
    rows = max(1, 128 // lanes)
    while rows * lanes > WARP and space.rows < rows * target.sms:
        rows //= 2
    return RowLayout(lanes, rows, vector, resident, -(-space.rows // rows), unroll)


def _layout_of(schedule: Schedule) -> RowLayout:
    return RowLayout(
        int(schedule.parameter("lanes")),
        int(schedule.parameter("rows_per_block")),
        schedule.vector,
        schedule.parameter("mode") == "resident",
        schedule.grid[0],
        int(schedule.parameter("unroll", 1)),
        int(schedule.parameter("splits", 1)),
        schedule.shared_bytes if schedule.parameter("mode") == "staged" else 0,
        exchange_of(schedule),
    )
