"""What a chip can launch. Checked before native code sees the kernel, so that a refusal has a name and numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mlirstitch.errors import PassError
from mlirstitch.target import GRID_X_LIMIT, GRID_YZ_LIMIT, MAX_KERNEL_ARGUMENT_BYTES, Target

_BLOCK_LIMITS = (1024, 1024, 64)
_POINTER_BYTES = 8


@dataclass(frozen=True)
class Launch:
    """Numbers of one launch.

    Attributes:
        kernel: name, for messages.
        grid, block: blocks and threads along x, y, z.
        arguments: number of pointer arguments.
        dynamic_shared, static_shared: shared memory of a block, bytes.
        source: the user's source line, for messages.
        cluster: blocks of a thread-block cluster along x, y, z.
        cooperative: whether all blocks must run at the same time.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    arguments: int
    dynamic_shared: int
    static_shared: int
    source: str = ""
    cluster: tuple[int, int, int] = (1, 1, 1)
    cooperative: bool = False


def check_launch(launch: Launch, target: Target) -> None:
    """Raise :class:`PassError` naming the kernel, the number and the limit if ``target`` cannot run ``launch``."""
    for axis, size, limit in zip("xyz", launch.grid, (GRID_X_LIMIT, GRID_YZ_LIMIT, GRID_YZ_LIMIT), strict=True):
        _within(launch, f"grid size along {axis}", size, limit)
    for axis, size, limit in zip("xyz", launch.block, _BLOCK_LIMITS, strict=True):
        _within(launch, f"block size along {axis}", size, limit)
    _within(launch, "threads per block", math.prod(launch.block), target.max_threads_per_block)
    _within(launch, "bytes of arguments", launch.arguments * _POINTER_BYTES, MAX_KERNEL_ARGUMENT_BYTES)
    _within(launch, "bytes of static shared memory", launch.static_shared, target.shared_bytes_static)
    shared = launch.static_shared + launch.dynamic_shared
    _within(launch, "bytes of shared memory per block", shared, target.shared_bytes_block)
    _within(launch, "blocks of a thread-block cluster", math.prod(launch.cluster), target.cluster_blocks)
    for axis, size, part in zip("xyz", launch.grid, launch.cluster, strict=True):
        if size % part:
            raise PassError(
                f"kernel {launch.kernel}: grid size along {axis} is {size}, not a multiple of the {part} blocks of a "
                "thread-block cluster",
                source=launch.source,
                hint="correct grid or thread_block_cluster of stitch.schedule",
            )
    if launch.cooperative:
        _within(launch, "blocks that wait for each other", math.prod(launch.grid), resident_blocks(target))


def resident_blocks(target: Target) -> int:
    """Blocks of any kernel that surely run at the same time: one a multiprocessor.

    A kernel declares its block size (``.maxntid``), so the assembler gives it no more registers than one block finds on
    a multiprocessor; shared memory of a block is checked by itself.
    """
    return target.sms


def _within(launch: Launch, what: str, value: int, limit: int) -> None:
    if not 0 < value <= limit and not (value == 0 and "bytes" in what):
        raise PassError(
            f"kernel {launch.kernel}: {what} is {value}, the limit is {limit}",
            source=launch.source,
            hint="cut the cluster into smaller ones or give it another schedule",
        )
