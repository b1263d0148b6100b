"""The layouts of rows worth trying: threads a row, rows a block, access width, how values get from pass to pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log2

from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.reduction_facts import RESIDENT_VALUES, Facts, power_of_two, unroll_of
from mlirstitch.lowering.kernel.row_kernel import RowLayout
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.staging import Staged, fitting
from mlirstitch.lowering.kernel.variants import nearest_first, powers_of_two
from mlirstitch.target import GRID_X_LIMIT, Target

MOST_TOGETHER = 512
"""Threads of a block that holds several rows, at most."""

MOST_SPLITS = 64
"""Blocks that share a row, at most."""

SPLIT_CHUNKS = 2
"""Chunks that a thread of a split row has at least."""


def row_variants(
    best: RowLayout,
    space: RowSpace,
    facts: Facts,
    widest: int,
    staged: Sequence[Staged],
    splittable: bool,
    target: Target,
) -> Iterator[RowLayout]:
    """Layouts other than ``best``, those near it first.

    ``widest`` is the widest vector that breaks no access, ``staged`` what may be kept in shared memory.
    """
    found: list[RowLayout] = []
    for vector in [width for width in powers_of_two(1, widest) if space.cols % width == 0]:
        chunks = space.cols // vector
        for lanes in powers_of_two(1, min(target.max_threads_per_block, power_of_two(chunks))):
            for rows in _rows_per_block(space, lanes):
                place = RowLayout(lanes, rows, vector, False, -(-space.rows // rows))
                found += _with_modes(place, space, facts, staged, target)
            if splittable and lanes > WARP:
                found += _split(RowLayout(lanes, 1, vector, False, space.rows), space, target)
    yield from nearest_first(best, [layout for layout in found if layout.blocks <= GRID_X_LIMIT], _place)


def _rows_per_block(space: RowSpace, lanes: int) -> Iterator[int]:
    """Rows of a block: one if it takes more than a warp, else so many that the block consists of whole warps."""
    if lanes > WARP:
        yield 1
        return
    for rows in powers_of_two(WARP // lanes, MOST_TOGETHER // lanes):
        if rows * lanes == WARP or rows <= space.rows:
            yield rows


def _with_modes(
    place: RowLayout, space: RowSpace, facts: Facts, staged: Sequence[Staged], target: Target
) -> Iterator[RowLayout]:
    """Values kept in registers, in shared memory, or read again: where there is a difference."""
    per_thread = -(-space.cols // place.lanes)
    chunks = space.cols // place.vector // place.lanes
    if per_thread * max(1, facts.live) <= RESIDENT_VALUES[max(WARP, place.threads)]:
        yield replace(place, resident=True)
    if chunks < 2:
        return  # a loop of one iteration is none
    loop = replace(place, unroll=unroll_of(chunks))
    yield loop
    if facts.passes > 1 and place.rows_per_block == 1:
        _, size = fitting(staged, loop.staged_columns(space.cols), target.shared_bytes_block // 2)
        if size:
            yield replace(loop, shared_bytes=size)


def _split(place: RowLayout, space: RowSpace, target: Target) -> Iterator[RowLayout]:
    """Several blocks share a row, while there are not more than a few for every multiprocessor."""
    chunks = space.cols // place.vector
    for splits in powers_of_two(2, min(MOST_SPLITS, chunks // (place.lanes * SPLIT_CHUNKS))):
        if space.rows * splits <= 8 * target.sms:
            unroll = unroll_of(-(-chunks // (place.lanes * splits)))
            yield replace(place, blocks=space.rows * splits, unroll=unroll, splits=splits)


def _place(layout: RowLayout) -> tuple[float, ...]:
    """Coordinates of a layout among its variants."""
    mode = ("resident", "staged", "loop").index(layout.mode)
    return (
        *(log2(layout.lanes), log2(layout.rows_per_block) / 2, 2 * log2(layout.vector)),
        *(2 * mode, log2(layout.splits)),
    )
