"""Template ``row_column``: rows reduced, and values of all rows reduced down the columns, as one kernel.

See ``row_column_kernel``. Running values of columns live in registers for the whole kernel, so columns must be few
enough; totals over the rows need no room and go with any schedule of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.body import byte_size, memory_type
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel, schemes_of
from mlirstitch.lowering.kernel.partials import Partials
from mlirstitch.lowering.kernel.reduction_facts import (
    Facts,
    dry_evaluator,
    measure,
    no_shared,
    partial_counts,
    power_of_two,
    reads_by_pass,
    running_types,
)
from mlirstitch.lowering.kernel.row import (
    check_access_order,
    row_layouts,
    scheme_in_block,
    staged_layouts,
    staging_of,
    widest_vector,
)
from mlirstitch.lowering.kernel.row_column_kernel import RowColumnKernel, RowColumnLayout
from mlirstitch.lowering.kernel.row_column_space import RowColumnSpace
from mlirstitch.lowering.kernel.row_kernel import RowLayout
from mlirstitch.lowering.kernel.row_variants import row_variants
from mlirstitch.lowering.kernel.schedule_checks import check_row_column_schedule, check_workspace
from mlirstitch.lowering.kernel.staging import Staged, staged_tensors
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

THREADS = 256
REGISTER_VALUES = {32: 96, 64: 96, 128: 96, 256: 96, 512: 48, 1024: 20}
"""Values a thread may keep, from pass to pass and from row to row, by threads of the block."""

SHARED_BYTES = 40 * 1024
"""Shared memory in which the rows under way together are folded."""

PARTS = 16
"""Running values of so many blocks are folded at once, and so many groups: more would not fit into registers."""

TOTAL_PARTS = 64
"""The same where only totals are folded."""


@dataclass(frozen=True)
class RowColumnTemplate(KernelTemplate[RowColumnSpace, RowColumnLayout]):
    """Rows reduced, and reductions over the rows."""

    name: str = "row_column"

    def space(self, program: TensorProgram) -> RowColumnSpace:
        """Rows, columns, and what is reduced which way."""
        return RowColumnSpace.of(program)

    def check(self, program: TensorProgram, space: RowColumnSpace, target: Target) -> None:
        """Refuse columns whose running values do not fit."""
        self.layouts(program, space, target)

    def layouts(self, program: TensorProgram, space: RowColumnSpace, target: Target) -> Sequence[RowColumnLayout]:
        """The best layout; where rows are kept in shared memory, then those with more registers a thread."""
        facts = _measure(program, space)
        vector = widest_vector(space, lambda width: _dry_kernel(program, space, width))
        if _has_columns(space):
            return [_with_columns(space, facts, vector, target)]
        layout = row_layouts(space, facts, vector, False, target)[0]
        found = [layout]
        if layout.mode == "loop" and facts.passes > 1:
            found = [*staged_layouts(_staged(program, space), space, layout, target), layout]
        return [_in_turns(space, *_blocks_of(space, layout, target), TOTAL_PARTS) for layout in found]

    def variants(self, program: TensorProgram, space: RowColumnSpace, target: Target) -> Iterator[RowColumnLayout]:
        """Other block sizes and widths, more or fewer blocks; values kept in other places where columns allow it."""
        facts = _measure(program, space)
        best = self.layouts(program, space, target)[0]
        widest = widest_vector(space, lambda width: _dry_kernel(program, space, width))
        columns = _has_columns(space)
        staged = _staged(program, space) if facts.passes > 1 else []
        values = max(1, facts.live) + sum(len(running_types(node)) for node in space.downs) if columns else 0
        for layout in row_variants(best, space, facts, widest, staged, False, target):
            per_thread = layout.vector * -(-space.cols // (layout.vector * layout.lanes))
            if columns and (not layout.resident or per_thread * values > REGISTER_VALUES[max(WARP, layout.threads)]):
                continue
            for blocks in (best.blocks, 2 * target.sms, target.sms):
                yield _in_turns(space, layout, blocks, PARTS if columns else TOTAL_PARTS)

    def schedule(self, cluster: Cluster, space: RowColumnSpace, layout: RowColumnLayout) -> Schedule:
        """The schedule that describes a layout."""
        inner = scheme_in_block(layout.lanes)
        roots = [(node, inner) for level in space.levels for node in level]
        scratch, tickets = _workspace(space, layout)
        return Schedule(
            template=self.name,
            grid=(layout.blocks, 1, 1),
            block=(layout.threads, 1, 1),
            vector=layout.vector,
            shared_bytes=layout.shared_bytes,
            parameters=(
                ("group", layout.group),
                ("lanes", layout.lanes),
                ("mode", layout.mode),
                ("rows_per_block", layout.rows_per_block),
                ("unroll", layout.unroll),
            ),
            schemes=schemes_of(cluster, [*roots, *((node, "grid") for node in space.downs)]),
            scratch=scratch,
            tickets=tickets,
        )

    def layout(
        self, program: TensorProgram, space: RowColumnSpace, schedule: Schedule, target: Target
    ) -> RowColumnLayout:
        """The layout that a schedule describes."""
        check_row_column_schedule(schedule, space.rows, space.cols, _has_columns(space), target)
        layout = _layout_of(schedule)
        check_workspace(schedule, *_workspace(space, layout))
        return layout

    def body(self, kernel: OpenKernel, space: RowColumnSpace, layout: RowColumnLayout) -> None:
        """Emit the body."""
        program, shared = kernel.program, kernel.place.shared
        staging = staging_of(_staged(program, space), space, layout, kernel.place)
        partials = Partials(kernel.first_workspace, partial_counts(space.downs), shared)
        RowColumnKernel(program, space, layout, kernel.evaluator, shared, partials, staging=staging).emit()


def _measure(program: TensorProgram, space: RowColumnSpace) -> Facts:
    """Run the kernel dry with one column per access."""
    kernel = _dry_kernel(program, space, 1)
    facts = measure(kernel)
    check_access_order(program, space, facts.reads, kernel)
    return facts


def _has_columns(space: RowColumnSpace) -> bool:
    """Whether columns have running values, not just totals."""
    return any(space.columns_of(node) != 1 for node in space.downs)


def _staged(program: TensorProgram, space: RowColumnSpace) -> list[Staged]:
    """What several passes of a loop schedule read; nothing is staged where columns have running values."""
    if _has_columns(space):
        return []
    layout = RowColumnLayout(WARP, 1, 1, False, space.rows)
    kernel = RowColumnKernel(program, space, layout, dry_evaluator(program), no_shared, one_loop=True)
    return staged_tensors(reads_by_pass(kernel))


def _workspace(space: RowColumnSpace, layout: RowColumnLayout) -> tuple[tuple[tuple[str, int], ...], int]:
    """Scratch for the running values of every block and group, and the number of tickets."""
    parts = layout.blocks + (layout.groups if layout.group > 1 else 0)
    scratch = tuple(
        (str(memory_type(kind)), parts * space.part_size(node)) for node in space.downs for kind in running_types(node)
    )
    return scratch, layout.groups + 1 if layout.group > 1 else 1


def _with_columns(space: RowColumnSpace, facts: Facts, vector: int, target: Target) -> RowColumnLayout:
    """Rows in registers, as few threads a row as their registers allow."""
    columns = [node for node in space.downs if space.columns_of(node) != 1]
    values = max(1, facts.live) + sum(len(running_types(node)) for node in columns)
    chunks = space.cols // vector
    lanes = min(WARP, power_of_two(chunks))
    while vector * -(-chunks // lanes) * values > REGISTER_VALUES[max(WARP, lanes)]:
        if lanes >= target.max_threads_per_block:
            raise PassError(f"{values} values for each of {space.cols} columns do not fit into registers")
        lanes = max(2 * lanes, 2 * WARP)
    rows = 1
    if lanes <= WARP:
        size = max(sum(byte_size(kind) for kind in running_types(node)) for node in columns)
        rows = THREADS // lanes
        while rows * lanes > WARP and (rows * space.cols * size > SHARED_BYTES or rows * target.sms > space.rows):
            rows //= 2
    layout = RowLayout(lanes, rows, vector, True, 1)
    return _in_turns(space, layout, target.sms * max(1, 2 * THREADS // layout.threads), PARTS)


def _blocks_of(space: RowColumnSpace, layout: RowLayout, target: Target) -> tuple[RowLayout, int]:
    """The layout with as many rows a block as keep it busy, and how many such blocks run at once."""
    if layout.lanes <= WARP and not layout.shared_bytes:
        rows = max(layout.rows_per_block, min(THREADS // layout.lanes, power_of_two(space.rows // target.sms)))
        layout = replace(layout, rows_per_block=rows)
    per_sm = 1 if 2 * layout.shared_bytes > target.shared_bytes_sm else target.max_threads_per_sm // layout.threads
    return layout, max(1, per_sm) * target.sms


def _in_turns(space: RowColumnSpace, layout: RowLayout, most: int, parts: int) -> RowColumnLayout:
    """As many blocks as are busy at once, at most ``most``, in groups: at most ``parts`` of at most ``parts``."""
    blocks = min(most, parts * parts, -(-space.rows // layout.rows_per_block))
    group = 1
    while blocks > parts:
        divisors = [size for size in range(2, parts + 1) if blocks % size == 0 and blocks // size <= parts]
        if divisors:
            group = max(divisors)
            break
        blocks -= 1
    kept = {field.name: getattr(layout, field.name) for field in fields(RowLayout)}
    return RowColumnLayout(**{**kept, "blocks": blocks, "group": group})


def _dry_kernel(program: TensorProgram, space: RowColumnSpace, vector: int) -> RowColumnKernel:
    layout = RowColumnLayout(WARP, 1, vector, True, space.rows)
    return RowColumnKernel(program, space, layout, dry_evaluator(program), no_shared, one_chunk=True)


def _layout_of(schedule: Schedule) -> RowColumnLayout:
    return RowColumnLayout(
        int(schedule.parameter("lanes")),
        int(schedule.parameter("rows_per_block")),
        schedule.vector,
        schedule.parameter("mode") == "resident",
        schedule.grid[0],
        int(schedule.parameter("unroll", 1)),
        1,
        schedule.shared_bytes if schedule.parameter("mode") == "staged" else 0,
        group=int(schedule.parameter("group", 1)),
    )
