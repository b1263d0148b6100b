"""What a row of the benchmark must keep: at most the launches and bytes of the plan by stages, XLA and Inductor, and
memory-bound kernels that move little more than their arguments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from mlirstitch.driver.bench.peers import PEERS, Figures

if TYPE_CHECKING:
    from mlirstitch.driver.bench.rows import Row

ROUNDING = 0.5
"""Recorded megabytes are whole numbers."""

MEMORY_BOUND_FACTOR = 1.1
"""Memory-bound kernels may load and store so many times the bytes of their arguments."""

MOST_DECIMALS = 3


@dataclass(frozen=True)
class Bound:
    """One bound, and the row's own figure.

    Attributes:
        against: whose figure it is: "reference", "XLA", "Inductor" or "arguments".
        what: "launches", "memory-bound launches", "MB" or "times".
        ours: what was measured.
        theirs: what must not be exceeded.
        strict: whether ``ours`` must be less.
    """

    against: str
    what: str
    ours: float
    theirs: float
    strict: bool = False

    @property
    def holds(self) -> bool:
        """Whether the row keeps it."""
        if self.strict:
            return self.ours < self.theirs - ROUNDING
        return self.ours <= self.theirs + (ROUNDING if self.what == "MB" else 0)

    def __str__(self) -> str:
        if self.against == "arguments":
            return f"memory-bound kernels move {self.ours:.2f} times their arguments"
        return f"{self.ours:.0f} {self.what}, {self.against} {self.theirs:.0f}"

    def to_json(self) -> dict[str, Any]:
        """The fields, and ``holds``."""
        return {**asdict(self), "ours": round(self.ours, MOST_DECIMALS), "holds": self.holds}


def bounds(row: Row) -> list[Bound]:
    """The bounds of a row whose workload has recorded figures (see ``peers.comparable``).

    A model must move fewer bytes than XLA and Inductor; a function without contractions no more than the plan by
    stages, and than those of the two whose bytes are known.
    """
    peers = PEERS[row["workload"]]
    launches, moved = row["launches"], row["bytes"]
    memory_bound = launches["memory_bound"] + launches["copies"]
    total, megabytes = memory_bound + launches["compute_bound"], moved["arguments"] / 1e6
    times = moved["memory_bound_traffic"] / moved["memory_bound"] if moved["memory_bound"] else 1.0
    return [
        Bound("reference", "launches", total, peers.reference.launches),
        Bound("reference", "memory-bound launches", memory_bound, peers.reference.memory_bound),
        *_bytes("reference", megabytes, peers.reference, strict=False),
        Bound("XLA", "launches", total, peers.xla.launches),
        *_bytes("XLA", megabytes, peers.xla, strict=peers.reference.is_model),
        Bound("Inductor", "launches", total, peers.inductor.launches),
        *_bytes("Inductor", megabytes, peers.inductor, strict=peers.reference.is_model),
        Bound("arguments", "times", times, MEMORY_BOUND_FACTOR),
    ]


def _bytes(against: str, megabytes: float, theirs: Figures, *, strict: bool) -> Iterator[Bound]:
    if theirs.megabytes is not None:
        yield Bound(against, "MB", megabytes, theirs.megabytes, strict)


def shortfalls(row: Row) -> list[str]:
    """The bounds that a row does not keep, in words; [] if it keeps all."""
    return [str(bound) for bound in bounds(row) if not bound.holds]
