"""Template ``row_tile``: row reductions over inputs some of which are transposed (see ``row_tile_kernel``).

It is asked before ``row``, which reads such inputs with a stride; the rule is that of template ``tile``. It takes only
what divides: rows and columns that tiles cover exactly. Anything else is a ``row`` kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel, schemes_of
from mlirstitch.lowering.kernel.reduction_facts import RESIDENT_VALUES, dry_evaluator, measure, no_shared
from mlirstitch.lowering.kernel.row import scheme_in_block
from mlirstitch.lowering.kernel.row_kernel import RowKernel, RowLayout
from mlirstitch.lowering.kernel.row_tile_kernel import RowTileKernel, RowTiles
from mlirstitch.lowering.kernel.schedule_checks import MOST_CHUNKS_UNROLLED, check_row_tile_schedule
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.lowering.kernel.tile import WORTH
from mlirstitch.lowering.kernel.tile_kernel import LINE, MOST_AT_ONCE, TileKernel, TileLayout
from mlirstitch.lowering.kernel.tile_space import SECTOR, sectors_along, sectors_of_tiles
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import Target

SLAB_BYTES = 20 << 10
"""Shared memory of a block that goes through its rows slab by slab: several blocks fit on a multiprocessor."""

ROWS = (32, 16, 8)
"""Rows of a block."""

THREADS_PER_SM = 1024
"""Threads of a multiprocessor beyond which more do not help."""


@dataclass(frozen=True)
class RowTileLayout:
    """The rows' layout (``unroll`` chunks of a thread are a slab), and elements of a task along the rows."""

    rows: RowLayout
    down: int

    def tile(self) -> TileLayout:
        """A slab as a tile."""
        width = self.rows.lanes * self.rows.unroll * self.rows.vector
        return TileLayout((width, self.rows.rows_per_block), (self.rows.vector, self.down), self.rows.threads)


@dataclass(frozen=True)
class RowTileTemplate(KernelTemplate[RowTiles, RowTileLayout]):
    """Reductions over trailing dims that read transposed inputs."""

    name: str = "row_tile"

    def space(self, program: TensorProgram) -> RowTiles:
        """Rows and columns, and what crosses between them."""
        return RowTiles.of(program)

    def check(self, program: TensorProgram, space: RowTiles, target: Target) -> None:
        """Refuse rows that a ``row`` kernel reads nearly as well, and what tiles do not cover."""
        tiles = space.tiles
        if not tiles.staged or all(access.axis != 0 for access in tiles.accesses):
            raise PassError("no input is contiguous across the rows of another one")
        strided, tiled = sectors_along(tiles, 0), sectors_of_tiles(tiles)
        if strided < WORTH * tiled:
            raise PassError(f"reading along the rows touches {strided / tiled:.1f} times the sectors that tiles touch")
        if not self._layouts(space, 1, target):
            raise PassError(f"tiles do not cover {space.rows.rows} rows of {space.rows.cols} elements evenly")
        measure(_dry_rows(program, space))

    def layouts(self, program: TensorProgram, space: RowTiles, target: Target) -> Sequence[RowTileLayout]:
        """The best layout. Raises PassError if there is none."""
        live = max(1, measure(_dry_rows(program, space)).live)
        return self._layouts(space, live, target)[:1]

    def variants(self, program: TensorProgram, space: RowTiles, target: Target) -> Iterator[RowTileLayout]:
        """Other numbers of rows, and narrower slabs."""
        live = max(1, measure(_dry_rows(program, space)).live)
        yield from self._layouts(space, live, target)

    def schedule(self, cluster: Cluster, space: RowTiles, layout: RowTileLayout) -> Schedule:
        """The schedule that describes a layout."""
        rows = layout.rows
        roots = [(node, scheme_in_block(rows.lanes)) for level in space.rows.levels for node in level]
        roots += [(item.point.node, "block") for item in space.tiles.staged]
        return Schedule(
            template=self.name,
            grid=(rows.blocks, 1, 1),
            block=(rows.threads, 1, 1),
            vector=rows.vector,
            parameters=(
                ("lanes", rows.lanes),
                ("rows_per_block", rows.rows_per_block),
                ("slab", rows.unroll),
                ("vector_down", layout.down),
            ),
            schemes=schemes_of(cluster, roots),
        )

    def layout(self, program: TensorProgram, space: RowTiles, schedule: Schedule, target: Target) -> RowTileLayout:
        """The layout that a schedule describes."""
        widest = space.tiles.widest(0), space.tiles.widest(1)
        check_row_tile_schedule(schedule, space.rows.rows, space.rows.cols, widest, target)
        numbers = {name: int(value) for name, value in schedule.parameters}
        rows = RowLayout(
            numbers["lanes"], numbers["rows_per_block"], schedule.vector, True, schedule.grid[0], numbers["slab"]
        )
        layout = RowTileLayout(rows, numbers["vector_down"])
        size = layout.tile().shared_bytes(space.tiles)
        if size > target.shared_bytes_static:
            raise PassError(
                f"stitch.schedule: a slab takes {size} bytes of shared memory, more than {target.shared_bytes_static}",
                hint="choose a smaller slab",
            )
        return layout

    def body(self, kernel: OpenKernel, space: RowTiles, layout: RowTileLayout) -> None:
        """Emit the body."""
        shared, evaluator = kernel.place.shared, kernel.evaluator
        crossing = TileKernel(kernel.program, space.tiles, layout.tile(), evaluator, shared)
        rows = layout.rows
        RowTileKernel(kernel.program, space.rows, rows, evaluator, shared, row_tiles=space, crossing=crossing).emit()

    def _layouts(self, space: RowTiles, live: int, target: Target) -> list[RowTileLayout]:
        """Layouts that cover the space evenly, best first; ``live`` values of a column are kept between passes."""
        tiles, rows, cols = space.tiles, space.rows.rows, space.rows.cols
        vector, widest = tiles.widest(0), tiles.widest(1)
        narrowest = min(item.element_bytes for item in tiles.staged)
        least = LINE // min(LINE // 8, vector * narrowest)  # threads that read a line of shared memory together
        found: list[RowTileLayout] = []
        for lanes in (lanes for lanes in (8, 16, 32) if lanes >= least and cols % (lanes * vector) == 0):
            for count in (count for count in ROWS if rows % count == 0 and count * narrowest >= SECTOR):
                chunks, down = cols // (lanes * vector), widest if count % widest == 0 else 1
                for slab in (slab for slab in range(1, min(chunks, MOST_CHUNKS_UNROLLED) + 1) if chunks % slab == 0):
                    place = RowLayout(lanes, count, vector, True, rows // count, slab)
                    layout = RowTileLayout(place, down)
                    whole, size = slab == chunks, layout.tile().shared_bytes(tiles)
                    fits = size <= (target.shared_bytes_static if whole else SLAB_BYTES)
                    most = RESIDENT_VALUES[max(64, place.threads)] if whole else MOST_AT_ONCE
                    if fits and (slab == 1 or slab * vector * (live if whole else 1) <= most):
                        found.append(layout)
        return sorted(found, key=lambda layout: _rank(layout.rows, cols, target))


def _rank(layout: RowLayout, cols: int, target: Target) -> tuple[int, ...]:
    """Smaller is better: threads that fill the chip, blocks that spread over it, rows read once, long loads."""
    threads = min(layout.blocks * layout.threads, target.sms * THREADS_PER_SM)
    spread = min(10 * layout.blocks, 9 * target.sms)
    whole = layout.unroll * layout.lanes * layout.vector == cols
    return -threads, -spread, not whole, layout.lanes, -layout.rows_per_block, -layout.unroll


def _dry_rows(program: TensorProgram, space: RowTiles) -> RowKernel:
    layout = RowLayout(WARP, 1, 1, True, space.rows.rows)
    return RowKernel(program, space.rows, layout, dry_evaluator(program), no_shared, one_chunk=True)
