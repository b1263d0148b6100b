"""Counted facts of a launch, defined in ``docs/counters.md``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class LaunchCounters:
    """What one launch did; exact, and the same on every machine.

    Attributes:
        threads: threads launched.
        warps: warps launched.
        instructions: warp instructions by class (``integer``, ``float``, ``special``, ``convert``, ``move``,
            ``shuffle``, ``barrier``, ``fence``, ``control``, ``atomic``, and ``load_`` and ``store_`` of ``global``,
            ``shared``, ``local``), sorted by class.
        load_requests, store_requests: warp instructions that read or wrote global memory, atomics apart.
        atomic_requests: warp instructions that updated global memory atomically.
        bytes_loaded, bytes_stored: active threads times width, global memory; an atomic counts as both.
        sectors_loaded, sectors_stored: distinct 32-byte sectors of each request, added up; an atomic counts as stored.
        shared_requests: warp instructions on shared memory.
        shared_wavefronts: passes these needed.
        shared_conflicts: wavefronts beyond the least possible for their width.
        barriers: block barriers, counted once for each warp.
        divergent_branches: branches that split a warp, counted once for each warp.
        argument_bytes_loaded, argument_bytes_stored: the bytes above by position in ``args``; 0 for scalars.
    """

    threads: int
    warps: int
    instructions: Mapping[str, int]
    load_requests: int
    store_requests: int
    atomic_requests: int
    bytes_loaded: int
    bytes_stored: int
    sectors_loaded: int
    sectors_stored: int
    shared_requests: int
    shared_wavefronts: int
    shared_conflicts: int
    barriers: int
    divergent_branches: int
    argument_bytes_loaded: tuple[int, ...]
    argument_bytes_stored: tuple[int, ...]

    @property
    def warp_instructions(self) -> int:
        """Warp instructions of all classes."""
        return sum(self.instructions.values())

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        plain = asdict(self)
        plain["instructions"] = dict(self.instructions)
        plain["warp_instructions"] = self.warp_instructions
        return plain


@dataclass
class Tally:
    """The counters while they grow."""

    load_requests: int = 0
    store_requests: int = 0
    atomic_requests: int = 0
    bytes_loaded: int = 0
    bytes_stored: int = 0
    sectors_loaded: int = 0
    sectors_stored: int = 0
    shared_requests: int = 0
    shared_wavefronts: int = 0
    shared_conflicts: int = 0
    barriers: int = 0
    divergent_branches: int = 0
