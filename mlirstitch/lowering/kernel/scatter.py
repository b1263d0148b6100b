"""Template ``scatter``: a scatter with the element-wise ops around it, as one kernel (see ``scatter_kernel``).

A row of the destination belongs to a warp, or to several where it is wide, or where rows are few. What an index names
is one row: scatters whose every element has an index of its own along an inner dim are loop nests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.body import byte_size, memory_type
from mlirstitch.lowering.kernel.evaluate import MAX_ACCESS_BYTES
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel, schemes_of
from mlirstitch.lowering.kernel.reduction_facts import dry_evaluator, no_shared
from mlirstitch.lowering.kernel.scatter_kernel import ScatterKernel, ScatterLayout, ScatterSpace
from mlirstitch.lowering.kernel.schedule_checks import check_scatter_schedule
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

MAX_VECTOR = 4
WARPS = 4
RESIDENT_COLUMNS = 16
"""Columns a lane keeps running values of, twice where sums are blocked."""

MAX_PARTS = 16
MIN_STEPS = 4
"""Times 32 indices that a warp looks through at least before a row is shared."""

BUSY_WARPS = 8
"""Warps a multiprocessor should have before rows are left to single warps."""

SHARED_BYTES = 1 << 15
"""What the parts of a row may take in shared memory."""


@dataclass(frozen=True)
class ScatterTemplate(KernelTemplate[ScatterSpace, ScatterLayout]):
    """Updates combined into the rows that indices name."""

    name: str = "scatter"

    def space(self, program: TensorProgram) -> ScatterSpace:
        """The destination's rows, and the updates."""
        return ScatterSpace.of(program)

    def check(self, program: TensorProgram, space: ScatterSpace, target: Target) -> None:
        """Refuse what needs the result at another place, and what reads updates through the result."""
        _dry_kernel(program, space, 1).emit()

    def layouts(self, program: TensorProgram, space: ScatterSpace, target: Target) -> Sequence[ScatterLayout]:
        """The one layout with the widest accesses."""
        vector = _widest_vector(program, space)
        count = space.cols // vector
        chunks = min(-(-count // WARP), max(1, RESIDENT_COLUMNS // vector))
        tiles = -(-count // (chunks * WARP))
        units = space.rows * tiles
        size = byte_size(memory_type(space.node.element)) * chunks * vector * WARP
        parts, steps = 1, -(-space.count // WARP)
        while (
            (parts < MAX_PARTS and units * parts < BUSY_WARPS * target.sms)
            and steps >= 2 * parts * MIN_STEPS
            and 2 * parts * size <= SHARED_BYTES
        ):
            parts *= 2
        if parts > 1:
            return [ScatterLayout(parts, units, vector, chunks, tiles, parts)]
        warps = WARPS
        while warps > 1 and units < warps * target.sms:
            warps //= 2
        return [ScatterLayout(warps, -(-units // warps), vector, chunks, tiles)]

    def schedule(self, cluster: Cluster, space: ScatterSpace, layout: ScatterLayout) -> Schedule:
        """The schedule that describes a layout."""
        if layout.blocks > GRID_X_LIMIT:
            raise PassError(f"{layout.blocks} blocks exceed the grid limit", hint="split the destination")
        return Schedule(
            template=self.name,
            grid=(layout.blocks, 1, 1),
            block=(layout.threads, 1, 1),
            vector=layout.vector,
            parameters=(("chunks", layout.chunks), ("parts", layout.parts), ("tiles", layout.tiles)),
            schemes=schemes_of(cluster, [(space.node, "warp" if layout.parts == 1 else "block")]),
        )

    def layout(self, program: TensorProgram, space: ScatterSpace, schedule: Schedule, target: Target) -> ScatterLayout:
        """The layout that a schedule describes."""
        check_scatter_schedule(schedule, space.rows, space.cols, target)
        chunks, tiles = int(schedule.parameter("chunks")), int(schedule.parameter("tiles"))
        parts = int(schedule.parameter("parts", 1))
        return ScatterLayout(schedule.block[0] // WARP, schedule.grid[0], schedule.vector, chunks, tiles, parts)

    def body(self, kernel: OpenKernel, space: ScatterSpace, layout: ScatterLayout) -> None:
        """Emit the body."""
        ScatterKernel(kernel.program, space, layout, kernel.evaluator, kernel.place.shared).emit()


def _dry_kernel(program: TensorProgram, space: ScatterSpace, vector: int) -> ScatterKernel:
    tiles = -(-space.cols // (vector * WARP))
    layout = ScatterLayout(1, space.rows * tiles, vector, 1, tiles)
    return ScatterKernel(program, space, layout, dry_evaluator(program), no_shared)


def _widest_vector(program: TensorProgram, space: ScatterSpace) -> int:
    """The widest chunk that divides a row, keeps the lanes of a warp busy and breaks no contiguous access."""
    vector = MAX_VECTOR
    while vector > 1:
        if space.cols % vector == 0 and space.cols >= WARP * vector:
            kernel = _dry_kernel(program, space, vector)
            kernel.emit()
            accesses = kernel.evaluator.accesses
            if vector <= MAX_ACCESS_BYTES // min(accesses.sizes, default=4) and not accesses.broken:
                return vector
        vector //= 2
    return 1
