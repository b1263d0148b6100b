"""Geometry of the threads that execute together: masks, warps, and naming a thread in a finding."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.reference.emit import Site

Array: TypeAlias = NDArray[Any]
Mask: TypeAlias = NDArray[np.bool_] | None

WARP = 32


class Chunk:
    """Thread blocks of ``threads`` threads each; row n of a value belongs to block number ``numbers[n]`` of the grid.

    Arrays of values have shape [blocks | 1, threads | 1]; a mask None means all threads.
    """

    def __init__(self, kernel: str, grid: tuple[int, int, int], block: tuple[int, int, int], numbers: Array) -> None:
        self.kernel = kernel
        self.grid = grid
        self.block = block
        self.numbers = numbers
        self.blocks = int(numbers.size)
        self.threads = block[0] * block[1] * block[2]
        self.warps = -(-self.threads // WARP)
        self.lanes = self.blocks * self.threads
        self.shape = (self.blocks, self.threads)

    def full(self, value: Array) -> Array:
        """The value for every thread, [blocks, threads]."""
        return np.broadcast_to(value, self.shape)

    def count_lanes(self, mask: Mask) -> int:
        """Active threads."""
        if mask is None:
            return self.lanes
        return int(np.count_nonzero(mask)) * (self.lanes // mask.size)

    def active_warps(self, mask: Array) -> Array:
        """Whether each warp has an active thread, [blocks | 1, warps]."""
        if mask.shape[1] == 1:
            return np.broadcast_to(mask, (mask.shape[0], self.warps))
        return np.asarray(self.by_warp(mask, False).any(axis=2))

    def count_warps(self, mask: Mask) -> int:
        """Warps with an active thread."""
        if mask is None:
            return self.blocks * self.warps
        rows = mask.shape[0]
        return int(np.count_nonzero(self.active_warps(mask))) * (self.blocks // rows)

    def by_warp(self, value: Array, fill: Any) -> Array:
        """[rows, threads] as [rows, warps, 32], threads that do not exist filled up."""
        rows = value.shape[0]
        if self.threads % WARP:
            padded = np.full((rows, self.warps * WARP), fill, value.dtype)
            padded[:, : self.threads] = value
            value = padded
        return value.reshape(rows, self.warps, WARP)

    def describe(self, row: int, thread: int) -> str:
        """``thread (1, 0, 0) of block (3, 0, 0)``."""
        return f"thread {self.describe_thread(thread)} of {self.describe_block(row)}"

    def describe_thread(self, thread: int) -> str:
        """``(1, 0, 0)``."""
        return _split(thread, self.block)

    def describe_block(self, row: int) -> str:
        """``block (3, 0, 0)``."""
        return self.describe_number(int(self.numbers[row]))

    def describe_number(self, number: int) -> str:
        """The same by number in the grid."""
        return f"block {_split(number, self.grid)}"

    def finding(self, site: Site, text: str) -> LaunchError:
        """An error found at an instruction: kernel, PTX line, mnemonic, and the source line if the PTX names one."""
        i = site.instruction
        return LaunchError(f"kernel {self.kernel!r}, PTX line {i.line} ({i.mnemonic}): {text}", source=i.location)


def _split(number: int, extent: tuple[int, int, int]) -> str:
    x, y, _ = extent
    return f"({number % x}, {number // x % y}, {number // (x * y)})"


def narrow_mask(mask: Array, shape: tuple[int, ...]) -> Array:
    """For values of ``shape`` (axes of 1 are shared): whether any thread that shares the value is active."""
    if shape[0] == 1 and mask.shape[0] > 1:
        mask = np.asarray(mask.any(axis=0, keepdims=True))
    if shape[1] == 1 and mask.shape[1] > 1:
        mask = np.asarray(mask.any(axis=1, keepdims=True))
    return np.broadcast_to(mask, shape)


def merge(mask: Mask, new: Array, old: Array | None) -> Array:
    """The register after a masked write."""
    return new if old is None or mask is None else np.where(mask, new, old)


def both(mask: Mask, guard: Array) -> Array:
    """Threads that are active and whose guard holds."""
    return guard if mask is None else mask & guard
