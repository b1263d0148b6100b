"""The body of a ``row_tile`` kernel: row reductions some of whose inputs are contiguous across the rows.

A block owns some rows, shared by 8 to 32 threads each, and goes through them in *slabs* of columns. What lies across
the rows is loaded along the rows, a slab at a time, and crosses in shared memory as in a ``tile`` kernel; then threads
visit their chunks of the slab as in any ``row`` kernel. Where one slab holds the whole row it is loaded once for all
passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.builder import Value
from mlirstitch.lowering.kernel.combiner import combiner_of
from mlirstitch.lowering.kernel.digits import Digits, Placement, load_offsets
from mlirstitch.lowering.kernel.index_expr import Expr, constant, delinearize, floordiv, linearize, symbol
from mlirstitch.lowering.kernel.reach import Point, Reach
from mlirstitch.lowering.kernel.reduction_kernel import Thread, Visit
from mlirstitch.lowering.kernel.row_kernel import RowKernel
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.tensor_program import TensorProgram
from mlirstitch.lowering.kernel.tile_kernel import Part, TileKernel
from mlirstitch.lowering.kernel.tile_space import (
    BOTH,
    Access,
    TileSpace,
    bytes_of,
    lies_along,
    permutes,
    staged_values,
    varies,
)


@dataclass(frozen=True, eq=False)
class RowTiles:
    """The rows and columns of reductions as the two axes of tiles: axis 0 are the columns, axis 1 the rows.

    Attributes:
        rows: the space of the reductions.
        tiles: the axes, and what crosses.
        roots: what is computed for every element, in terms of the digits.
    """

    rows: RowSpace
    tiles: TileSpace
    roots: tuple[Point, ...]

    @staticmethod
    def of(program: TensorProgram) -> RowTiles:
        """Derive the space. Raises :class:`PassError` if the reductions share none, or nothing is transposed."""
        if not permutes(program):
            raise PassError("nothing is transposed")
        rows = RowSpace.of(program)
        linalg = rows.levels[0][0].linalg
        parallel, reduced = linalg.parallel_extents, linalg.reduction_extents

        def points(digits: Digits) -> list[Point]:
            row, col = digits.place[: len(parallel)], digits.place[len(parallel) :]
            return points_at(program, rows, linearize(row, parallel), linearize(col, reduced))

        digits = Digits.of((*parallel, *reduced), "i").cut(lambda finer: load_offsets(Reach(points(finer))))
        roots = points(digits)
        reach = Reach(roots)
        of_rows = frozenset().union(*(index.symbols for index in digits.place[: len(parallel)]))
        axes = (
            tuple(name for name in digits.symbols if name not in of_rows),
            tuple(name for name in digits.symbols if name in of_rows),
        )
        offsets = [(linearize(indices, node.shape), bytes_of(node)) for node, indices in reach.loads()]
        full = [root for root in roots if any(root.node is node for node in program.outputs)]
        offsets += [(linearize(root.indices, root.node.shape), bytes_of(root.node)) for root in full]
        accesses = (
            ()
            if not all(axes)
            else tuple(
                Access(offset, size, lies_along(offset, axes))
                for offset, size in offsets
                if varies(offset, axes) == BOTH
            )
        )
        staged = staged_values(reach, axes, [(root, 0) for root in roots]) if accesses else ()
        tiles = TileSpace(Placement(digits.symbols, (), reach), axes, (), accesses, (), staged)
        return RowTiles(rows, tiles, tuple(roots))


def points_at(program: TensorProgram, space: RowSpace, row: Expr, col: Expr) -> list[Point]:
    """What reductions fold and full outputs hold at (row, col), in a fixed order, as a row kernel asks for it."""
    found: list[Point] = []
    for node in (node for level in space.levels for node in level):
        linalg = node.linalg
        parallel, reduced = (delinearize(row, linalg.parallel_extents), delinearize(col, linalg.reduction_extents))
        loop = linalg.loop_indices(parallel, reduced)
        _, slots = linalg.body.needed(combiner_of(linalg, node.result).elements, frozenset())
        read = sorted(slot for slot in slots if slot < len(linalg.inputs))
        found += [Point(node.operands[slot], linalg.operand_indices(slot, loop)) for slot in read]
    for node in program.outputs:
        if node.elements == space.rows * space.cols and space.cols > 1:
            found.append(Point(node, delinearize(space.output_offset(node, row, col), node.shape)))
    return found


@dataclass(eq=False, kw_only=True)
class RowTileKernel(RowKernel):
    """A row kernel whose threads exchange what lies across the rows through ``crossing``.

    ``layout.unroll`` is the number of chunks that a thread has in a slab.
    """

    row_tiles: RowTiles
    crossing: TileKernel

    def __post_init__(self) -> None:
        super().__post_init__()
        self._filled = False

    def place_threads(self) -> Thread:
        thread = super().place_threads()
        self.crossing.open()
        return thread

    def _for_each_chunk(self, initial: Sequence[Value], visit: Visit) -> list[Value]:
        builder, per_slab = self.builder, self.layout.unroll * self.layout.lanes
        slabs = self.chunks // per_slab
        if slabs == 1:
            if not self._filled:
                self._fill(constant(0), 1)
            self._filled = True
            return self._visit_slab(constant(0), list(initial), visit)
        name = symbol("slab", slabs)

        def body(_: Value, carried: list[Value]) -> Sequence[Value]:
            builder.barrier()  # nobody reads the slab before any more
            self._fill(name.expr, slabs)
            return self._visit_slab(name.expr, carried, visit)

        zero, count, one = (builder.index_constant(value) for value in (0, slabs, 1))
        return builder.loop(name, (zero, count, one), slabs, initial, body)

    def _fill(self, slab: Expr, slabs: int) -> None:
        tasks = self.layout.blocks * slabs * self.crossing.layout.tasks
        block = symbol("row_block", self.layout.blocks)
        self.builder.declare(block, self.builder.block_id())
        self.crossing.fill(1, Part((slab, block.expr), True, tasks))
        self.builder.barrier()

    def _visit_slab(self, slab: Expr, carried: list[Value], visit: Visit) -> list[Value]:
        lanes = self.layout.lanes
        across = floordiv(self.crossing.thread.expr, lanes)
        for part in range(self.layout.unroll):
            in_slab = self._in_row.expr + part * lanes
            chunk = slab * (self.layout.unroll * lanes) + in_slab
            here = points_at(self.program, self.space, self.row, self.column(chunk))
            for place, point in zip(self.row_tiles.roots, here, strict=True):
                self.crossing.read_staged(place, point, 0, in_slab, across)
            carried = self._visit(chunk, None, carried, visit)
        return carried
