"""The iteration space of a cluster that reduces rows, and values of all rows down the columns."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.analysis import sources
from mlirstitch.lowering.kernel.row_space import Dims, RowSpace, by_level, dims_of, op_of, reductions_of, row_shape
from mlirstitch.lowering.kernel.tensor_program import Computed, Node, TensorProgram, name_of

MAX_HEAD = 1 << 14
"""Elements of a total that every block computes for itself before its first row."""

SECTOR_ELEMENTS = 8
"""Distance of the parts of a total in memory, elements: blocks that write at the same time do not share a sector."""


@dataclass(frozen=True)
class RowColumnSpace(RowSpace):
    """A row space with reductions over the rows.

    Attributes:
        heads: totals of few elements that rows depend on (the number of valid labels before a loss), one value per
            folding, operands first; every block computes them for itself.
        downs: one value per folding over the rows: one result per column, or one in all (a total of per-row values).
        row_outputs: numbers of the outputs that a row decides.
        down_outputs: numbers of the outputs that depend on reductions over the rows.
    """

    heads: tuple[Computed, ...]
    downs: tuple[Computed, ...]
    row_outputs: tuple[int, ...]
    down_outputs: tuple[int, ...]

    @staticmethod
    def of(program: TensorProgram) -> RowColumnSpace:
        """Derive the space from the reductions. Raises :class:`PassError` if they do not form one."""
        reductions = reductions_of(program)
        rows, cols = _main_shape(reductions)
        heads = _heads(program, reductions, rows, cols)
        reductions = [node for node in reductions if node not in heads]
        downs = [node for node in reductions if _is_down(node, rows, cols)]
        if not downs:
            raise PassError("nothing is reduced over the rows")
        after = _depending(program, downs)
        early = [node for node in reductions if node not in downs and node.uid in after]
        if early:
            raise refusal(
                op_of(early[0]), "reduces rows that depend on a reduction over all rows", "they become separate kernels"
            )
        for node in downs:
            if any(source.uid in after for source in sources(node)):
                raise refusal(op_of(node), "depends on another reduction over the rows", "they become separate kernels")
        outputs = range(len(program.outputs))
        space = RowColumnSpace(
            rows,
            cols,
            ((rows, False), (cols, True)),
            by_level([node for node in reductions if node not in downs]),
            tuple(node for level in by_level(heads) for node in level),
            tuple(node for level in by_level(downs) for node in level),
            tuple(number for number in outputs if program.outputs[number].uid not in after),
            tuple(number for number in outputs if program.outputs[number].uid in after),
        )
        space.check_outputs(program)
        return space

    def check_outputs(self, program: TensorProgram) -> None:
        """Raise :class:`PassError` for an output of the wrong size."""
        sizes = {self.columns_of(node) for node in self.downs}
        for number in self.down_outputs:
            node = program.outputs[number]
            if node.elements not in sizes:
                raise PassError(
                    f"output {name_of(node)} has {node.elements} elements and depends on a reduction over the rows "
                    f"with {' or '.join(str(size) for size in sorted(sizes))}"
                )

    def columns_of(self, node: Computed) -> int:
        """Results of a reduction over the rows."""
        return row_shape(node)[0]

    def part_size(self, node: Computed) -> int:
        """Elements of memory that one part of a reduction over the rows takes."""
        columns = self.columns_of(node)
        return SECTOR_ELEMENTS if columns == 1 else columns

    def is_head(self, node: Computed) -> bool:
        """Whether a value is a total that every block computes for itself."""
        return any(node.linalg is head.linalg for head in self.heads)

    def is_down(self, node: Computed) -> bool:
        """Whether a value comes from a reduction over the rows."""
        return any(node.linalg is down.linalg for down in self.downs)


def _main_shape(reductions: list[Computed]) -> tuple[int, int]:
    """Rows and columns: those of the reduction of neighbours in memory that has the most elements."""
    shapes = [row_shape(node) for node in reductions if _is_row(dims_of(node.linalg)) and row_shape(node)[0] > 1]
    if not shapes:
        raise PassError("no rows are reduced")
    rows, cols = max(shapes, key=math.prod)
    if rows * cols == 0 or cols == 1:
        raise PassError("the rows are empty")
    return rows, cols


def _is_row(dims: Dims | None) -> bool:
    return dims is not None and len(dims) == 2 and dims[-1][1]


def _heads(program: TensorProgram, reductions: list[Computed], rows: int, cols: int) -> list[Computed]:
    """Totals of few elements that depend on no rows, but rows depend on them."""
    found: list[Computed] = []
    depends = _depending(program, [node for node in reductions if row_shape(node)[0] > 1])
    early = {node.uid for node in reductions if row_shape(node) == (rows, cols)}
    early |= {node.uid for node in program.outputs if node.elements in (rows, rows * cols) and node.elements > 1}
    for node in reductions:
        small = row_shape(node)[0] == 1 and 0 < row_shape(node)[1] <= MAX_HEAD
        if small and node.uid not in depends and _depending(program, [node]) & early:
            found.append(node)
    return found


def _is_down(node: Computed, rows: int, cols: int) -> bool:
    """Whether a reduction runs over the rows, or else over the columns. Raises :class:`PassError` if neither."""
    shape, dims = row_shape(node), dims_of(node.linalg)
    if shape == (rows, cols) and (dims is None or dims == ((rows, False), (cols, True))):
        return False
    if shape == (cols, rows) and dims == ((rows, True), (cols, False)):
        return True
    if shape == (1, rows):
        return True
    raise refusal(
        op_of(node),
        f"makes {shape[0]} results of {shape[1]} elements each, another reduction {rows} of {cols}",
        "they become separate kernels",
    )


def _depending(program: TensorProgram, downs: list[Computed]) -> set[int]:
    """Uids of the values that depend on one of ``downs``, themselves included."""
    found = {node.uid for node in downs}
    nodes: list[Node] = sorted(program.nodes.values(), key=lambda node: node.uid)
    for node in nodes:
        if any(source.uid in found for source in sources(node)):
            found.add(node.uid)
    return found
