"""What all chunks of a launch share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.counters import Tally
from mlirstitch.runtime.emulator.reference.allocations import GlobalMemory
from mlirstitch.runtime.emulator.reference.emit import Program
from mlirstitch.runtime.emulator.reference.sanitizer import Sanitizer


class OutOfBudget(LaunchError):
    """The launch issued more instructions than its budget."""


Extent3 = tuple[int, int, int]
BlockFunction = Callable[[Any, list[Any], Any], Any]
"""A basic block as a Python function of the machine, the registers and the mask of active threads."""


@dataclass(frozen=True)
class Launch:
    """What all chunks of a launch share.

    ``budget`` is the instructions a chunk may issue; ``random`` draws the order of warps, None for the fixed one;
    ``cluster`` is the blocks of a cluster along x, y, z.
    """

    program: Program
    functions: Sequence[BlockFunction]
    memory: GlobalMemory
    parameters: bytes
    symbols: dict[str, int]
    grid: Extent3
    block: Extent3
    cluster: Extent3
    shared_bytes: int
    dynamic_shared_bytes: int
    checks: bool
    budget: int
    cooperative: bool
    tally: Tally | None
    executed: list[int]
    sanitizer: Sanitizer | None = None
    random: np.random.Generator | None = None

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster."""
        return self.cluster[0] * self.cluster[1] * self.cluster[2]
