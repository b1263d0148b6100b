"""The iteration space that the reductions of a cluster share: rows, which are kept, and columns, which are reduced.

Rows and columns may be several dims of memory each, and may interleave: a softmax over the last dim has dims (row,
column), one over the first dim (column, row), statistics over batch and image of ``[N, C, H, W]`` have (column, row,
column).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.combiner import NotParallel, combiner_of
from mlirstitch.lowering.kernel.index_expr import Expr, delinearize, linearize
from mlirstitch.lowering.kernel.linalg_body import LinalgOp
from mlirstitch.lowering.kernel.tensor_program import Computed, Node, TensorProgram, name_of

Dims = tuple[tuple[int, bool], ...]
"""(extent, whether it is reduced) in the order of memory; neighbours of one sort are one dim, extents of 1 left out."""


@dataclass(frozen=True)
class RowSpace:
    """``rows`` x ``cols``, and the reductions of the cluster by level (1, 2, ...), one value per folding.

    Attributes:
        rows, cols: how many results, and over how many elements each.
        dims: how rows and columns lie in a tensor of full size.
        levels: the reductions by dependence.
    """

    rows: int
    cols: int
    dims: Dims
    levels: tuple[tuple[Computed, ...], ...]

    @staticmethod
    def of(program: TensorProgram) -> RowSpace:
        """Derive the space from the reductions. Raises :class:`PassError` if they do not share one."""
        reductions = reductions_of(program)
        if not reductions:
            raise PassError("nothing is reduced")
        shape = row_shape(reductions[0])
        dims: Dims | None = None
        for node in reductions:
            own = row_shape(node)
            if own != shape:
                raise refusal(
                    op_of(node),
                    f"reduces {own[0]} rows of {own[1]}, another reduction {shape[0]} rows of {shape[1]}",
                    "they become separate kernels",
                )
            found = dims_of(node.linalg)
            if dims is not None and found is not None and _ends_reduced(dims) != _ends_reduced(found):
                raise refusal(
                    op_of(node), "reduces across the rows of another reduction", "they become separate kernels"
                )
            dims = dims or found
        if 0 in shape:
            raise refusal(op_of(reductions[0]), "reduces an empty space")
        return RowSpace(*shape, dims or _plain(*shape), by_level(reductions))

    @property
    def is_columns(self) -> bool:
        """Whether neighbours in memory belong to different results: the last dim is kept."""
        return not _ends_reduced(self.dims)

    def output_offset(self, node: Node, row: Expr, col: Expr) -> Expr:
        """Where (row, col), or the row alone, lies in an output. Raises :class:`PassError` for any other size."""
        if node.elements == self.rows * self.cols:
            return full_offset(self.dims, row, col)
        if node.elements == self.rows:
            return row
        expected = f"neither {self.rows} nor {self.rows} x {self.cols}"
        raise PassError(f"output {name_of(node)} has {node.elements} elements, {expected}")


def full_offset(dims: Dims, row: Expr, col: Expr) -> Expr:
    """The position of (row, col) in a tensor whose dims are ``dims``."""
    rows = iter(delinearize(row, [extent for extent, reduced in dims if not reduced]))
    cols = iter(delinearize(col, [extent for extent, reduced in dims if reduced]))
    return linearize([next(cols) if reduced else next(rows) for _, reduced in dims], [extent for extent, _ in dims])


def reductions_of(program: TensorProgram) -> list[Computed]:
    """All reductions of a cluster. Raises :class:`PassError` for a scan."""
    found = [node for node in program.nodes.values() if isinstance(node, Computed) and node.is_reduction]
    for node in found:
        if node.is_scan:
            raise refusal(op_of(node), "is a scan")
    return found


def by_level(reductions: Sequence[Computed]) -> tuple[tuple[Computed, ...], ...]:
    """Reductions by dependence, one value per folding. Raises :class:`PassError` for one that has no parallel form."""
    levels: dict[int, list[Computed]] = {}
    covered: set[tuple[int, int]] = set()
    # Larger groups first: the maximum that an argmax keeps is not folded a second time.
    for node, results in sorted(_groups(reductions), key=lambda item: -len(item[1])):
        keys = {(id(node.linalg), result) for result in results}
        if not keys <= covered:
            covered |= keys
            levels.setdefault(node.level, []).append(node)
    for members in levels.values():
        members.sort(key=lambda node: node.uid)
    return tuple(tuple(levels[level]) for level in sorted(levels))


def _groups(reductions: Sequence[Computed]) -> list[tuple[Computed, tuple[int, ...]]]:
    """Each reduction with the results that are folded together with it."""
    found: list[tuple[Computed, tuple[int, ...]]] = []
    for node in reductions:
        try:
            found.append((node, combiner_of(node.linalg, node.result).results))
        except NotParallel as reason:
            raise refusal(op_of(node), f"cannot be folded in parallel: {reason}") from None
    return found


def row_shape(node: Computed) -> tuple[int, int]:
    """How many results a reduction has, and of how many elements each. Raises :class:`PassError` for a contraction."""
    linalg = node.linalg
    if linalg.is_contraction_like:
        raise refusal(linalg.op, "reads its inputs many times (contraction, convolution or pooling)")
    return math.prod(linalg.parallel_extents), math.prod(linalg.reduction_extents)


def dims_of(linalg: LinalgOp) -> Dims | None:
    """How the loops of a reduction lie in its first input of full size.

    None if it has no such input, or only rows or only columns of more than one element.
    """
    wide = {dim for dim, extent in enumerate(linalg.extents) if extent != 1}
    for maps in linalg.maps[: len(linalg.inputs)]:
        order = [mapped.dim for mapped in maps if mapped.dim in wide]
        if set(order) == wide:
            dims: list[tuple[int, bool]] = []
            for dim in order:
                extent, reduced = linalg.extents[dim], linalg.reduced[dim]
                if dims and dims[-1][1] == reduced:
                    dims[-1] = (dims[-1][0] * extent, reduced)
                else:
                    dims.append((extent, reduced))
            return tuple(dims) if len(dims) > 1 else None
    return None


def _plain(rows: int, cols: int) -> Dims:
    return ((rows, False), (cols, True))


def _ends_reduced(dims: Dims) -> bool:
    return dims[-1][1]


def op_of(node: Node) -> ir.Operation:
    """The op of a value that is no argument."""
    if node.op is None:
        raise TypeError("an argument has no op")
    return node.op
