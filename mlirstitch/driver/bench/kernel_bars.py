"""What a generated kernel is compared with: the bars to hold, and what other compilers make of the same programs.

The bars were measured by the hand-driven prototypes of the code generator (LLVM 22.1.8, ptxas for sm_90, fused
multiply-adds formed). Statements count from ``.entry`` to the end, ``.reg`` lines included.
"""

from __future__ import annotations

from dataclasses import dataclass

REGISTER_SLACK = 2
"""Registers above the bar that are no loss: ptxas allocates in steps, and its choice varies by that much."""


@dataclass(frozen=True)
class Bar:
    """Figures that a kernel must not exceed; None where none was set. Shared memory in bytes, static and dynamic."""

    registers: int
    shared_bytes: int | None
    shuffles: int | None
    barriers: int
    statements: int | None


@dataclass(frozen=True)
class Allowance:
    """What a kernel may take above its bar, because it does more than the prototype that the bar comes from."""

    shuffles: int
    statements: int
    reason: str


def corrected_mean(elements: int) -> Allowance:
    """Allowance of a norm whose thread holds ``elements`` of a row.

    The prototypes subtract the rounded mean. The numerics contract (rows of 1e6 plus small) folds ``x - mean`` beside
    its square and subtracts what the mean was off: two statements an element, one shuffle that exchanges the two
    totals, and eight statements a row.
    """
    return Allowance(1, 2 * elements + 8, "the mean is corrected, which the bar's kernel leaves out")


@dataclass(frozen=True)
class Peer:
    """What another compiler makes of the program: registers and PTX instructions of its kernel, for sm_90.

    ``kernels``: how many it needs. With more than one, no figures of a single kernel are compared.
    """

    compiler: str
    kernels: int
    registers: int | None = None
    statements: int | None = None

    @property
    def text(self) -> str:
        """In a word: "XLA 138 / 3543" (registers / instructions) or "IREE 2 kernels"."""
        if self.registers is None:
            return f"{self.compiler} {self.kernels} kernels"
        return f"{self.compiler} {self.registers} / {self.statements}"


PEERS_SOURCE = "the same imported modules, compiled untuned by openxla/xla, iree-org/iree (O3) and PyTorch Inductor"

LAYER_NORM_PEERS = (Peer("XLA", 1, 138, 3543), Peer("IREE", 2), Peer("Inductor", 1, 64, 379))
SOFTMAX_PEERS = (Peer("XLA", 1, 32, 391), Peer("IREE", 1, 28, 283), Peer("Inductor", 1, 64, 702))
