"""The active threads of one access, each with its place in block, warp and grid."""

from __future__ import annotations

import numpy as np

from mlirstitch.runtime.emulator.reference.chunk import WARP, Array, Chunk, Mask

SEVERAL = 32
"""Lane number that stands for more than one lane of the warp."""


class Lanes:
    """Active threads in order of block and thread.

    Attributes (one entry a thread): ``rows`` of the chunk and ``threads`` of the block, ``warp`` number in the grid,
    ``lane`` in the warp, ``address`` accessed (bytes).
    """

    def __init__(self, chunk: Chunk, addresses: Array, mask: Mask) -> None:
        if mask is None:
            numbers = np.arange(chunk.lanes)
            self.rows, self.threads = numbers // chunk.threads, numbers % chunk.threads
        else:
            self.rows, self.threads = np.nonzero(chunk.full(mask))
        self.warp = chunk.numbers[self.rows] * chunk.warps + self.threads // WARP
        self.lane = self.threads % WARP
        self.address = chunk.full(addresses)[self.rows, self.threads]

    def part(self, chosen: Array) -> Lanes:
        """Some of the threads, by their number among these."""
        if chosen.size == self.rows.size:
            return self
        part = object.__new__(Lanes)
        part.rows, part.threads, part.warp = self.rows[chosen], self.threads[chosen], self.warp[chosen]
        part.lane, part.address = self.lane[chosen], self.address[chosen]
        return part


def describe_lane(chunk: Chunk, warp: int, lane: int) -> str:
    """A thread by warp of the grid and lane."""
    block, own = divmod(warp, chunk.warps)
    if lane == SEVERAL:
        return f"warp {own} of {chunk.describe_number(block)}"
    return f"thread {chunk.describe_thread(own * WARP + lane)} of {chunk.describe_number(block)}"
