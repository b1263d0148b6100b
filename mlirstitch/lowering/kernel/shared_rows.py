"""Layouts of rows that several blocks share and all need again: in a thread-block cluster, or in the whole grid.

A row whose passes read more than one block can keep is shared by so many blocks that their registers, or else their
shared memory, hold it. So is a row where there are too few rows to give every multiprocessor one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.lowering.kernel.reduction_facts import (
    RESIDENT_VALUES,
    Facts,
    power_of_two,
    unroll_of,
)
from mlirstitch.lowering.kernel.row_kernel import RowLayout
from mlirstitch.lowering.kernel.row_space import RowSpace
from mlirstitch.lowering.kernel.staging import Staged, fitting
from mlirstitch.passes.stitching.template import Schedule
from mlirstitch.target import Target

CLUSTER, GRID = "cluster", "grid"

LIGHT_VALUES = 16
"""Values a thread may keep so that two blocks of 1,024 threads fit on a multiprocessor (32 registers a thread)."""

SHARED_PART = 4096
"""Columns of the part of a row from which on it is worth waiting for other blocks."""

FEW_ROWS = 2
"""Rows leave the chip idle where one a block fills less than one in so many multiprocessors."""

_WIDEST_PARTIAL = 16
"""Bytes of a running value with its index."""


def shared_layouts(
    space: RowSpace,
    facts: Facts,
    vector: int,
    best: RowLayout,
    staged: Callable[[], Sequence[Staged]],
    target: Target,
) -> list[RowLayout]:
    """Layouts that are better than ``best``, where one block takes a row; best first.

    ``vector`` is the widest chunk, ``staged`` what can be kept in shared memory.
    """
    if facts.passes < 2 or best.splits > 1 or best.lanes <= WARP:
        return []
    few = FEW_ROWS * space.rows <= target.sms
    found: list[RowLayout] = []
    if target.grid_composition and target.cluster_blocks * space.rows * FEW_ROWS <= target.sms:
        blocks = min(target.sms // space.rows, space.cols // SHARED_PART)
        found = _fitting(space, facts, vector, blocks, GRID, staged, target)
        found = found or _loop(space, vector, blocks, GRID, target)
    if target.cluster_blocks > 1:
        most = min(target.cluster_blocks, target.sms // space.rows, space.cols // SHARED_PART)
        spread = _floor_power_of_two(most) if few else 1
        clusters = _fitting(space, facts, vector, spread, CLUSTER, staged, target)
        if not best.resident and not _holds_everything(best, space, staged(), target):
            clusters += _smallest_cluster(space, facts, vector, staged, target)
        clusters.sort(key=lambda layout: not layout.resident)
        found += clusters or _loop(space, vector, spread, CLUSTER, target)
    return list(dict.fromkeys(found))


def shared_variants(
    space: RowSpace,
    facts: Facts,
    vector: int,
    best: RowLayout,
    staged: Callable[[], Sequence[Staged]],
    target: Target,
) -> Iterator[RowLayout]:
    """Clusters of every size that keep their row, whether they are better than ``best`` or not."""
    if facts.passes < 2 or best.splits > 1 or best.lanes <= WARP:
        return
    for power in range(1, target.cluster_blocks.bit_length()):
        if space.cols >= SHARED_PART << power:
            yield from _fitting(space, facts, vector, 1 << power, CLUSTER, staged, target)


def _loop(space: RowSpace, vector: int, blocks: int, exchange: str, target: Target) -> list[RowLayout]:
    """Rows shared by ``blocks`` blocks each and read again in every pass; none for fewer than two."""
    if blocks < 2:
        return []
    lanes = target.max_threads_per_block
    unroll = unroll_of(space.cols // vector // (lanes * blocks))
    return [RowLayout(lanes, 1, vector, False, space.rows * blocks, unroll, blocks, exchange=exchange)]


def _smallest_cluster(
    space: RowSpace, facts: Facts, vector: int, staged: Callable[[], Sequence[Staged]], target: Target
) -> list[RowLayout]:
    """The fewest blocks that keep a row in few registers, else in many, else in shared memory."""
    live, lanes = max(1, facts.live), target.max_threads_per_block
    sizes = [2**power for power in range(1, target.cluster_blocks.bit_length())]
    for most in (LIGHT_VALUES, RESIDENT_VALUES[lanes]):
        for size in sizes:
            if _values(space, vector, lanes * size) * live <= most:
                return _fitting(space, facts, vector, size, CLUSTER, staged, target)
    for size in sizes:
        found = _staged_layout(space, vector, size, CLUSTER, staged(), target)
        if found is not None:
            return [found]
    return []


def _fitting(
    space: RowSpace,
    facts: Facts,
    vector: int,
    blocks: int,
    exchange: str,
    staged: Callable[[], Sequence[Staged]],
    target: Target,
) -> list[RowLayout]:
    """The layout of rows shared by ``blocks`` blocks each that keeps what is needed again; none if nothing does."""
    if blocks < 2:
        return []
    chunks = space.cols // vector
    lanes = min(target.max_threads_per_block, max(2 * WARP, power_of_two(-(-chunks // blocks))))
    live = max(1, facts.live)
    while lanes <= target.max_threads_per_block:
        if _values(space, vector, lanes * blocks) * live <= RESIDENT_VALUES[lanes]:
            return [RowLayout(lanes, 1, vector, True, space.rows * blocks, 1, blocks, exchange=exchange)]
        lanes *= 2
    found = _staged_layout(space, vector, blocks, exchange, staged(), target)
    return [] if found is None else [found]


def _values(space: RowSpace, vector: int, threads: int) -> int:
    """Columns of a row that one of ``threads`` threads has."""
    return -(-space.cols // (vector * threads)) * vector


def _staged_layout(
    space: RowSpace, vector: int, blocks: int, exchange: str, tensors: Sequence[Staged], target: Target
) -> RowLayout | None:
    """Blocks that stage all ``tensors`` in shared memory; None if there are none, or they do not fit."""
    lanes = target.max_threads_per_block
    unroll = unroll_of(space.cols // vector // (lanes * blocks))
    layout = RowLayout(lanes, 1, vector, False, space.rows * blocks, unroll, blocks, exchange=exchange)
    size = _bytes_of_all(layout, space, tensors, target)
    return replace(layout, shared_bytes=size) if size else None


def _bytes_of_all(layout: RowLayout, space: RowSpace, tensors: Sequence[Staged], target: Target) -> int:
    """Shared memory in which a block of ``layout`` stages all ``tensors``, 0 if it has too little."""
    columns = layout.staged_columns(space.cols)
    static = sum(2 * WARP * _WIDEST_PARTIAL * len(level) for level in space.levels)
    taken, size = fitting(tensors, columns, target.shared_bytes_block - static)
    return size if len(taken) == len(tensors) else 0


def _holds_everything(layout: RowLayout, space: RowSpace, tensors: Sequence[Staged], target: Target) -> bool:
    """Whether one block stages all that its passes read again."""
    return bool(layout.shared_bytes) and _bytes_of_all(layout, space, tensors, target) > 0


def _floor_power_of_two(value: int) -> int:
    return 1 << (value.bit_length() - 1) if value > 0 else 0


def exchange_of(schedule: Schedule) -> str:
    """:attr:`RowLayout.exchange` of a schedule."""
    if schedule.cooperative:
        return GRID
    return CLUSTER if schedule.cluster_blocks > 1 else ""
