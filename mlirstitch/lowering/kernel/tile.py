"""Template ``tile``: transposes beside element-wise work, through tiles in shared memory (see ``tile_kernel``).

It is asked before ``elementwise``, which computes the same clusters in one pass over the elements and reads or writes
some tensors with a stride. What decides is the number of 32-byte sectors that warps touch: this template applies where
a pass over the elements would touch ``WORTH`` times as many as tiles do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.flat_kernel import refuse_reduction
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.kernel_template import KernelTemplate, OpenKernel, schemes_of
from mlirstitch.lowering.kernel.reduction_facts import dry_evaluator, no_shared, power_of_two
from mlirstitch.lowering.kernel.schedule_checks import check_tile_schedule
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.lowering.kernel.tile_kernel import LINE, TileKernel, TileLayout
from mlirstitch.lowering.kernel.tile_space import AXES, TileSpace, sectors_of_pass, sectors_of_tiles
from mlirstitch.passes.stitching.template import Cluster, Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

WORTH = 1.5
"""How many times the sectors of tiles a pass over the elements has to touch: a tile costs a barrier, and each staged
element a store to and a load from shared memory."""

THREADS = 256
EDGES = {1: 128, 2: 64, 4: 64, 8: 32}
"""Edge of a tile by the bytes of the narrowest staged element: at least a line of shared memory, about 16 KB in all."""

STRETCH = 4
"""How much longer a tile may be along one axis where the tensor is short along the other."""

TASK_BYTES = 192
"""What a thread may load for one task: 48 registers. With more, ``ptxas`` spills to keep occupancy up."""

BLOCKS_PER_SM = 2
"""Blocks a multiprocessor should get before tiles are made larger."""


@dataclass(frozen=True)
class TileTemplate(KernelTemplate[TileSpace, TileLayout]):
    """Clusters without reductions in which tensors lie in two directions."""

    name: str = "tile"

    def space(self, program: TensorProgram) -> TileSpace:
        """The two axes, and what crosses between them."""
        return TileSpace.of(program)

    def check(self, program: TensorProgram, space: TileSpace, target: Target) -> None:
        """Refuse what a pass over the elements reads and writes nearly as well, and what does not fit."""
        flat, tiled = sectors_of_pass(program, space), sectors_of_tiles(space)
        if flat < WORTH * tiled:
            raise PassError(f"a pass over the elements touches {flat / tiled:.1f} times the sectors that tiles touch")
        _best(space, target)
        # One task for every path through the code.
        layout = TileLayout((1, 1), (1, 1), WARP)
        TileKernel(program, space, layout, dry_evaluator(program), no_shared).emit()

    def layouts(self, program: TensorProgram, space: TileSpace, target: Target) -> Sequence[TileLayout]:
        """The best layout, then the one with scalar accesses."""
        best = _best(space, target)
        scalar = TileLayout(best.tile, (1, 1), THREADS)
        return [best] if best.vector == (1, 1) else [best, scalar]

    def variants(self, program: TensorProgram, space: TileSpace, target: Target) -> Iterator[TileLayout]:
        """Other tiles and numbers of threads, at most 36."""
        best = _best(space, target)
        for across in (best.tile[0], best.tile[0] // 2, best.tile[0] * 2):
            for down in (best.tile[1], best.tile[1] // 2, best.tile[1] * 2):
                for threads in (best.threads, 128, 256, 512):
                    vector = best.vector
                    if across % vector[0] == 0 and down % vector[1] == 0 and across and down:
                        yield TileLayout((across, down), vector, threads)

    def schedule(self, cluster: Cluster, space: TileSpace, layout: TileLayout) -> Schedule:
        """The schedule that describes a layout."""
        return Schedule(
            template=self.name,
            grid=(layout.blocks(space), 1, 1),
            block=(layout.threads, 1, 1),
            vector=layout.vector[0],
            parameters=(("across", layout.tile[0]), ("down", layout.tile[1]), ("vector_down", layout.vector[1])),
            schemes=schemes_of(cluster, [(item.point.node, "block") for item in space.staged]),
        )

    def layout(self, program: TensorProgram, space: TileSpace, schedule: Schedule, target: Target) -> TileLayout:
        """The layout that a schedule describes."""
        extents = space.extent(0), space.extent(1)
        check_tile_schedule(schedule, extents, space.batches, (space.widest(0), space.widest(1)), target)
        tile = int(schedule.parameter("across")), int(schedule.parameter("down"))
        layout = TileLayout(tile, (schedule.vector, int(schedule.parameter("vector_down"))), schedule.block[0])
        if layout.shared_bytes(space) > target.shared_bytes_static:
            raise PassError(
                f"stitch.schedule: tiles of {tile[0]} x {tile[1]} take {layout.shared_bytes(space)} bytes of shared "
                f"memory, more than {target.shared_bytes_static}",
                hint="choose smaller tiles",
            )
        return layout

    def body(self, kernel: OpenKernel, space: TileSpace, layout: TileLayout) -> None:
        """Emit the body."""
        kernel.evaluator.reduce = refuse_reduction
        TileKernel(kernel.program, space, layout, kernel.evaluator, kernel.place.shared).emit()


def _best(space: TileSpace, target: Target) -> TileLayout:
    """The widest accesses, in tiles as large as shared memory and the number of blocks suggest."""
    narrowest = min(item.element_bytes for item in space.staged)
    edge, shortest = EDGES[narrowest], max(WARP, LINE // narrowest)
    extents = space.extent(0), space.extent(1)
    vector = _vectors(space)
    tile = [min(edge, extent) for extent in extents]
    for axis in AXES:
        stretched = edge * min(STRETCH, edge // power_of_two(tile[1 - axis]))
        tile[axis] = min(extents[axis], max(tile[axis], stretched))
    layout = _layout((tile[0], tile[1]), vector)
    while max(tile) > shortest and not (_fits(space, layout, target) and _fills(space, layout, target)):
        axis = 0 if tile[0] > tile[1] else 1
        tile[axis] = max(shortest, tile[axis] // 2)
        layout = _layout((tile[0], tile[1]), vector)
    while not _fits(space, layout, target) and max(tile[axis] // vector[axis] for axis in AXES) > 1:
        axis = max(AXES, key=lambda axis: tile[axis] // vector[axis])
        tile[axis] = tile[axis] // vector[axis] // 2 * vector[axis]
        layout = _layout((tile[0], tile[1]), vector)
    if not _fits(space, layout, target):
        raise PassError(f"{len(space.staged)} values that cross tiles exceed {target.shared_bytes_static} bytes")
    if layout.blocks(space) > GRID_X_LIMIT:
        raise PassError(f"{layout.blocks(space)} blocks exceed the grid limit", hint="split the batch")
    return layout


def _vectors(space: TileSpace) -> tuple[int, int]:
    """The widest vectors of a task whose loaded values fit into registers together."""
    vector = [space.widest(0), space.widest(1)]
    loads = space.accesses[len(space.sides) :]
    needed = sum(access.size for access in loads)
    while vector[0] * vector[1] * needed > TASK_BYTES and max(vector) > 1:
        axis = 0 if vector[0] > vector[1] else 1
        vector[axis] //= 2
    return vector[0], vector[1]


def _layout(tile: tuple[int, int], vector: tuple[int, int]) -> TileLayout:
    tasks = (tile[0] // vector[0]) * (tile[1] // vector[1])
    return TileLayout(tile, vector, min(THREADS, max(WARP, power_of_two(tasks))))


def _fits(space: TileSpace, layout: TileLayout, target: Target) -> bool:
    return layout.shared_bytes(space) <= target.shared_bytes_static


def _fills(space: TileSpace, layout: TileLayout, target: Target) -> bool:
    return layout.blocks(space) >= BLOCKS_PER_SM * target.sms
