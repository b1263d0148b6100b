"""Whether a schedule covers its cluster. Schedules are text that a person may edit; a wrong one must not compile.

A kernel of a schedule that leaves elements out, or that cuts a row where it does not divide, would return wrong numbers
without a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

from mlirstitch.errors import PassError
from mlirstitch.lowering.kernel.fold import WARP
from mlirstitch.passes.stitching.template import Schedule
from mlirstitch.target import GRID_X_LIMIT, Target

WIDEST_VECTOR = 8
MOST_CHUNKS_UNROLLED = 16
MOST_PARTS = 64
"""Running values of blocks that are folded at once: all of them are in registers."""

MOST_TILE = 1024
MOST_TASKS = 64
"""Parts of a tile that one thread may take: they are all unrolled."""

_STAGING = ("row", "row_column")
"""Templates that can keep rows in shared memory."""

MOST_RESIDENT_ELEMENTS = 256
"""Elements that one thread may keep from pass to pass: beyond, a kernel is all unrolled code."""


_FOLLOWS_FROM_LAYOUT = (
    *("grid", "block", "vector", "shared_bytes", "scratch", "tickets"),
    *("thread_block_cluster", "cooperative", "parts"),
)


def check_same_schedule(given: Schedule, written: Schedule) -> None:
    """Refuse a schedule with a field that means nothing to its template.

    ``written`` describes the layout that was read from ``given``: what it says otherwise would be ignored. Schemes may
    be left out, and are in the parts of a packed kernel.

    Raises:
        PassError: a field is another.
    """
    names = (*_FOLLOWS_FROM_LAYOUT, "schemes") if given.schemes else _FOLLOWS_FROM_LAYOUT
    for name in names:
        found, wanted = getattr(given, name), getattr(written, name)
        if found != wanted:
            _refuse(name, found, f"{wanted}, which follows from the rest")


def check_flat_schedule(schedule: Schedule, elements: int, target: Target, widest: int = WIDEST_VECTOR) -> None:
    """Refuse a schedule that does not compute each of ``elements`` with chunks of ``vector``, ``unroll`` a thread.

    ``widest`` is the largest vector that the template can emit.

    Raises:
        PassError: a number is out of range, or blocks x threads x unroll x vector covers fewer than ``elements``.
    """
    check_shared_work(schedule, False, (), 0)
    numbers = _parameters(schedule, {"unroll": 1})
    blocks, threads = _along_x(schedule, target)
    vector = _vector(schedule, widest)
    unroll = _unroll(numbers)
    chunks, rest = elements // vector, elements % vector
    if blocks * threads * unroll < chunks or blocks * threads < rest:
        covered = blocks * threads * unroll * vector
        _refuse("grid x", blocks, f"enough blocks for {elements} elements; these compute {covered}")


def check_row_schedule(schedule: Schedule, rows: int, cols: int, target: Target) -> None:
    """Refuse a schedule that does not give every row of ``rows`` x ``cols`` its threads, and every thread whole chunks.

    Raises:
        PassError: a parameter is missing, unknown or out of range, or does not fit the others.
    """
    defaults = {"lanes": None, "rows_per_block": None, "unroll": 1, "splits": 1}
    numbers = _parameters(schedule, defaults, names=("mode",))
    blocks, threads = _along_x(schedule, target)
    lanes, rows_per_block, splits = numbers["lanes"], numbers["rows_per_block"], numbers["splits"]
    _power_of_two("lanes", lanes, target.max_threads_per_block)
    if rows_per_block < 1 or (rows_per_block != 1 and (lanes > WARP or splits > 1)):
        reason = "1, because a row takes more than a warp" if lanes > WARP else "1, because blocks share a row"
        _refuse("rows_per_block", rows_per_block, "at least 1" if rows_per_block < 1 else reason)
    if threads != lanes * rows_per_block:
        _refuse("block x", threads, f"lanes x rows_per_block = {lanes * rows_per_block}")
    _whole_warps(lanes, threads)
    _blocks(blocks, -(-rows // rows_per_block), splits, f"{rows} rows, {rows_per_block} a block")
    if cols % _vector(schedule, WIDEST_VECTOR):
        _refuse("vector", schedule.vector, f"a divisor of the {cols} columns")
    _mode(schedule, cols, lanes, splits)
    _unroll(numbers)


def check_column_schedule(schedule: Schedule, inner: int, outer: int, reduced: int, target: Target) -> None:
    """Refuse a schedule that does not give each of ``outer`` x ``inner`` results its threads.

    ``inner`` results are neighbours in memory; each is folded from ``reduced`` elements.

    Raises:
        PassError: a parameter is missing, unknown or out of range, or does not fit the others.
    """
    numbers = _parameters(schedule, {"across": None, "unroll": 1, "splits": 1}, names=("mode",))
    blocks, threads = _along_x(schedule, target)
    across, splits = numbers["across"], numbers["splits"]
    _power_of_two("across", across, WARP)
    _power_of_two("block x", threads, target.max_threads_per_block)
    if threads < WARP:
        _refuse("block x", threads, f"at least {WARP}")
    vector = _vector(schedule, WIDEST_VECTOR)
    if inner % vector:
        _refuse("vector", vector, f"a divisor of the innermost dim, {inner}")
    groups = outer * -(-inner // (vector * across))
    _blocks(blocks, groups, splits, f"{outer} x {inner} results, {vector * across} a block")
    _mode(schedule, reduced, threads // across, splits)
    _unroll(numbers)


def check_row_column_schedule(schedule: Schedule, rows: int, cols: int, columns: bool, target: Target) -> None:
    """Refuse a schedule that does not give every row of ``rows`` x ``cols`` to one block.

    ``columns``: columns have running values, so that chunks must be unrolled.

    Raises:
        PassError: a parameter is missing, unknown or out of range, or does not fit the others.
    """
    defaults = {"group": 1, "lanes": None, "rows_per_block": None, "unroll": 1}
    numbers = _parameters(schedule, defaults, names=("mode",))
    blocks, threads = _along_x(schedule, target)
    lanes, rows_per_block, group = numbers["lanes"], numbers["rows_per_block"], numbers["group"]
    _power_of_two("lanes", lanes, target.max_threads_per_block)
    if rows_per_block < 1 or (rows_per_block != 1 and lanes > WARP):
        _refuse("rows_per_block", rows_per_block, "at least 1; 1 where a row takes more than a warp")
    if threads != lanes * rows_per_block:
        _refuse("block x", threads, f"lanes x rows_per_block = {lanes * rows_per_block}")
    _power_of_two("block x", threads, target.max_threads_per_block)
    _whole_warps(lanes, threads)
    steps = -(-rows // rows_per_block)
    if not 1 <= blocks <= steps:
        _refuse("grid x", blocks, f"1 to {steps} for {rows} rows, {rows_per_block} at a time")
    if group < 1 or blocks % group or max(group, blocks // group if group > 1 else 1) > MOST_PARTS:
        _refuse("group", group, f"a divisor of the {blocks} blocks that leaves at most {MOST_PARTS} groups")
    if group == 1 and blocks > MOST_PARTS:
        _refuse("group", group, f"more than 1, because {blocks} blocks are folded")
    if cols % _vector(schedule, WIDEST_VECTOR):
        _refuse("vector", schedule.vector, f"a divisor of the {cols} columns")
    if columns and schedule.parameter("mode") != "resident":
        _refuse("mode", schedule.parameter("mode"), "resident, because columns have running values")
    _mode(schedule, cols, lanes, 1)
    _unroll(numbers)


def check_tile_schedule(
    schedule: Schedule, extents: tuple[int, int], batches: int, widest: tuple[int, int], target: Target
) -> None:
    """Refuse a schedule whose tiles do not cover ``batches`` planes of ``extents``, along the two axes.

    ``widest`` are the largest vectors that every access along an axis can take.

    Raises:
        PassError: a parameter is missing, unknown or out of range, or does not fit the others.
    """
    check_shared_work(schedule, False, (), 0)
    numbers = _parameters(schedule, {"across": None, "down": None, "vector_down": None})
    blocks, threads = _along_x(schedule, target)
    if threads < WARP or threads % WARP:
        _refuse("block x", threads, f"a multiple of {WARP}")
    wanted = batches
    vectors = {"vector": schedule.vector, "vector_down": numbers["vector_down"]}
    names = ("across", "down")
    for (what, vector), name, extent, most in zip(vectors.items(), names, extents, widest, strict=True):
        if not 1 <= vector <= most or most % vector:
            _refuse(what, vector, f"a divisor of {most}")
        tile = numbers[name]
        if not 1 <= tile <= MOST_TILE or tile % vector:
            _refuse(name, tile, f"a multiple of {what} = {vector}, at most {MOST_TILE}")
        wanted *= -(-extent // tile)
    tasks = (numbers["across"] // schedule.vector) * (numbers["down"] // numbers["vector_down"])
    if tasks > threads * MOST_TASKS:
        _refuse("block x", threads, f"at least {-(-tasks // MOST_TASKS)} for {tasks} tasks of a tile")
    if blocks != wanted:
        _refuse("grid x", blocks, f"{wanted}, one for every tile")


def check_scatter_schedule(schedule: Schedule, rows: int, cols: int, target: Target) -> None:
    """Refuse a schedule that does not give every stretch of each of ``rows`` rows of ``cols`` columns to one warp.

    Raises:
        PassError: a parameter is missing, unknown or out of range, or does not fit the others.
    """
    check_workspace(schedule, (), 0)
    numbers = _parameters(schedule, {"chunks": None, "parts": 1, "tiles": None})
    blocks, threads = _along_x(schedule, target)
    chunks, tiles = numbers["chunks"], numbers["tiles"]
    if threads < WARP or threads % WARP:
        _refuse("block x", threads, f"a multiple of {WARP}")
    vector = _vector(schedule, WIDEST_VECTOR)
    if cols % vector:
        _refuse("vector", vector, f"a divisor of the {cols} columns")
    if not 1 <= chunks * vector <= MOST_RESIDENT_ELEMENTS:
        _refuse("chunks", chunks, f"1 to {MOST_RESIDENT_ELEMENTS // vector}")
    wanted = -(-cols // (vector * chunks * WARP))
    if tiles != wanted:
        _refuse("tiles", tiles, f"{wanted} for {cols} columns, {vector * chunks * WARP} a warp")
    units, parts = rows * tiles, numbers["parts"]
    if parts != 1:
        if parts != threads // WARP:
            _refuse("parts", parts, f"1, or all {threads // WARP} warps of a block")
        _blocks(blocks, units, 1, f"{rows} rows, {tiles} blocks each")
        return
    _blocks(blocks, -(-units // (threads // WARP)), 1, f"{rows} rows, {tiles} warps each, {threads // WARP} a block")


def check_row_tile_schedule(schedule: Schedule, rows: int, cols: int, widest: tuple[int, int], target: Target) -> None:
    """Refuse a schedule whose slabs do not cover ``rows`` x ``cols`` evenly.

    ``widest`` are the largest vectors that accesses along the columns and along the rows can take.

    Raises:
        PassError: a parameter is missing, unknown or out of range, or does not fit the others.
    """
    check_shared_work(schedule, False, (), 0)
    defaults = {"lanes": None, "rows_per_block": None, "slab": None, "vector_down": None}
    numbers = _parameters(schedule, defaults)
    blocks, threads = _along_x(schedule, target)
    lanes, count, slab = numbers["lanes"], numbers["rows_per_block"], numbers["slab"]
    _power_of_two("lanes", lanes, WARP)
    if count < 1 or rows % count:
        _refuse("rows_per_block", count, f"a divisor of the {rows} rows")
    if threads != lanes * count or threads % WARP:
        _refuse("block x", threads, f"lanes x rows_per_block = {lanes * count}, a multiple of {WARP}")
    if blocks != rows // count:
        _refuse("grid x", blocks, f"{rows // count} for {rows} rows, {count} a block")
    vectors = {"vector": schedule.vector, "vector_down": numbers["vector_down"]}
    for (what, vector), most in zip(vectors.items(), widest, strict=True):
        if not 1 <= vector <= most or most % vector:
            _refuse(what, vector, f"a divisor of {most}")
    if count % numbers["vector_down"]:
        _refuse("vector_down", numbers["vector_down"], f"a divisor of rows_per_block = {count}")
    if not 1 <= slab <= MOST_CHUNKS_UNROLLED or cols % (slab * lanes * schedule.vector):
        chunks = f"{lanes} lanes with vectors of {schedule.vector}"
        _refuse("slab", slab, f"1 to {MOST_CHUNKS_UNROLLED} chunks of {chunks} that divide {cols} columns")


def check_shared_work(schedule: Schedule, splittable: bool, scratch: tuple[tuple[str, int], ...], tickets: int) -> None:
    """Refuse a split that the cluster does not allow, or whose buffers are not ``scratch`` and ``tickets``."""
    if schedule.parameter("splits", 1) == 1:
        scratch, tickets = (), 0
    elif not splittable:
        _refuse("splits", schedule.parameter("splits"), "1: what every element needs depends on the reductions")
    check_workspace(schedule, scratch, tickets)


def check_exchange(schedule: Schedule, rows: int, scratch: tuple[tuple[str, int], ...]) -> None:
    """Refuse a schedule whose blocks cannot tell each other their parts of ``rows`` rows.

    In thread-block clusters they need no buffers, in the grid ``scratch`` and a ticket a row.

    Raises:
        PassError: the clusters are not the blocks of a row, the buffers are others, or a row has less than a block.
    """
    lanes, splits = int(schedule.parameter("lanes")), int(schedule.parameter("splits", 1))
    if lanes <= WARP:
        _refuse("lanes", lanes, f"more than {WARP}, because blocks share a row")
    if schedule.cooperative:
        if schedule.cluster_blocks > 1 or splits < 2:
            _refuse("cooperative", "set", "left out: blocks of the grid share no rows")
        check_workspace(schedule, scratch, rows, exchange=True)
        return
    if schedule.thread_block_cluster != (splits, 1, 1) or splits & (splits - 1) or splits > WARP:
        wanted = f"{splits}, 1, 1 (the blocks of a row, a power of two)"
        _refuse("thread_block_cluster", ", ".join(map(str, schedule.thread_block_cluster)), wanted)
    check_workspace(schedule, (), 0, exchange=True)


def check_workspace(
    schedule: Schedule, scratch: tuple[tuple[str, int], ...], tickets: int, exchange: bool = False
) -> None:
    """Refuse a schedule whose buffers are not ``scratch`` and ``tickets``.

    ``exchange``: its blocks may be clusters, or wait for each other.
    """
    if not exchange and schedule.cluster_blocks != 1:
        _refuse("thread_block_cluster", ", ".join(map(str, schedule.thread_block_cluster)), "1, 1, 1")
    if not exchange and schedule.cooperative:
        _refuse("cooperative", "set", "left out: no block waits for another")
    if schedule.scratch != scratch:
        _refuse("scratch", list(schedule.scratch), f"{list(scratch)}")
    if schedule.tickets != tickets:
        _refuse("tickets", schedule.tickets, f"{tickets}")


def _blocks(blocks: int, groups: int, splits: int, shape: str) -> None:
    if splits < 1:
        _refuse("splits", splits, "at least 1")
    if blocks != groups * splits:
        shared = f", {splits} blocks each" if splits > 1 else ""
        _refuse("grid x", blocks, f"{groups * splits} for {shape}{shared}")


def _whole_warps(lanes: int, threads: int) -> None:
    """Threads that share a row exchange values by shuffles, in which all lanes of a warp take part."""
    if lanes > 1 and threads % WARP:
        _refuse("block x", threads, f"a multiple of {WARP}: {lanes} threads share a row and shuffle in whole warps")


def _mode(schedule: Schedule, elements: int, threads: int, splits: int) -> None:
    """``elements`` are folded by ``threads`` of each of ``splits`` blocks; resident ones are all unrolled."""
    mode = schedule.parameter("mode")
    alone = splits == 1 or schedule.cooperative or schedule.cluster_blocks > 1  # every block keeps its part
    if mode == "staged" and schedule.template in _STAGING and schedule.shared_bytes > 0 and alone:
        together = schedule.parameter("rows_per_block", 1)
        if together != 1:
            _refuse("rows_per_block", together, "1, because a block has shared memory for one row")
        return  # what does not fit into the shared memory it asks for is read again
    if mode not in ("resident", "loop"):
        staged = ", or staged with shared_bytes and no splits" if schedule.template in _STAGING else ""
        _refuse("mode", mode, f"resident or loop{staged}")
    if mode == "resident" and elements > threads * splits * MOST_RESIDENT_ELEMENTS:
        _refuse("mode", mode, f"loop: {threads} threads cannot keep {elements} elements in registers")


def _power_of_two(what: str, value: int, most: int) -> None:
    if not 1 <= value <= most or value & (value - 1):
        _refuse(what, value, f"a power of two from 1 to {most}")


def _along_x(schedule: Schedule, target: Target) -> tuple[int, int]:
    """Blocks and threads; these templates use one dimension."""
    for field, sizes in (("grid", schedule.grid), ("block", schedule.block)):
        if sizes[1:] != (1, 1):
            _refuse(f"{field} y, z", f"{sizes[1]}, {sizes[2]}", "1, 1")
    if schedule.grid[0] > GRID_X_LIMIT:
        _refuse("grid x", schedule.grid[0], f"at most {GRID_X_LIMIT}")
    if not 1 <= schedule.block[0] <= target.max_threads_per_block:
        most = target.max_threads_per_block
        _refuse("block x", schedule.block[0], f"at most {most}" if schedule.block[0] else "at least 1")
    return schedule.grid[0], schedule.block[0]


def _vector(schedule: Schedule, widest: int) -> int:
    legal = [width for width in (1, 2, 4, WIDEST_VECTOR) if width <= widest]
    if schedule.vector not in legal:
        _refuse("vector", schedule.vector, " or ".join(str(width) for width in legal))
    return schedule.vector


def _unroll(numbers: Mapping[str, int]) -> int:
    if not 1 <= numbers["unroll"] <= MOST_CHUNKS_UNROLLED:
        _refuse("unroll", numbers["unroll"], f"1 to {MOST_CHUNKS_UNROLLED}")
    return numbers["unroll"]


def _parameters(schedule: Schedule, defaults: Mapping[str, int | None], names: tuple[str, ...] = ()) -> dict[str, int]:
    """The integer parameters; those without a default must be there, and no others but ``names``, which are text."""
    given = dict(schedule.parameters)
    for name in given:
        if name not in defaults and name not in names:
            known = ", ".join((*defaults, *names))
            raise PassError(f"stitch.schedule: there is no parameter {name}", hint=f"parameters: {known}")
    found: dict[str, int] = {}
    for name, default in defaults.items():
        value = given.get(name, default)
        if not isinstance(value, int):
            _refuse(name, "missing" if value is None else repr(value), "an integer")
        found[name] = value
    return found


def _refuse(what: str, value: object, wanted: str) -> NoReturn:
    raise PassError(
        f"stitch.schedule: {what} is {value}, not {wanted}",
        hint="correct the schedule; mlirstitch compile --to stitched shows the one that the compiler chooses",
    )
