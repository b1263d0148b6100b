"""What LLVM makes of loops: how far it unrolls them, and which index arithmetic is left in them.

Addresses that change by the same amount in every iteration become pointers that are advanced, or constant offsets
where the loop is unrolled; values that do not change are computed before the loop.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.lowering.kernel.redundancy import constant_of, is_pure

WHOLE = 300
PARTLY = 75
"""LLVM's thresholds for NVPTX: instructions of a loop unrolled whole, and of one unrolled by some factor."""

LATCH = 2
"""Instructions at the end of a loop, which unrolling does not repeat."""


@dataclass(frozen=True)
class Unrolling:
    """``copies`` of the body for each time the loop comes around; ``whole``: it never does."""

    copies: int
    whole: bool


def unrolling(size: float, trips: int | None, has_loop: bool) -> Unrolling:
    """How far LLVM unrolls a loop whose body has ``size`` instructions.

    ``trips`` are its iterations; None, if that is no constant: LLVM leaves such loops as they are. ``has_loop``: it is
    not an innermost one, and unrolled whole or not at all.
    """
    if trips is None:
        return Unrolling(1, False)
    if trips * size + LATCH <= WHOLE:
        return Unrolling(max(1, trips), True)
    copies = 1 if has_loop else min(trips, int((PARTLY - LATCH) // max(1.0, size)))
    while copies > 1 and trips % copies:
        copies -= 1
    return Unrolling(max(1, copies), False)


@dataclass(eq=False)
class Advance:
    """By how much values of the body of a loop change from one iteration to the next.

    Attributes:
        copies: of the body, as unrolled.
        changes: of values defined in the body; None if it differs. What is defined outside does not change.
    """

    unrolling: Unrolling
    changes: dict[ir.Value, int | None] = field(default_factory=dict)

    def enter(self, loop: ir.Operation) -> None:
        """Take note of the arguments of the loop's body."""
        counter, *carried = loop.regions[0].blocks[0].arguments
        self.changes[counter] = constant_of(loop.operands[2])
        self.changes.update(dict.fromkeys(carried))

    def of(self, value: ir.Value) -> int | None:
        """The change of a value."""
        return self.changes.get(value, 0)

    def note(self, op: ir.Operation) -> None:
        """Work out the results of an op of the body."""
        found = _change(op, self) if is_pure(op) else None
        self.changes.update(dict.fromkeys(op.results, found))

    def is_fixed(self, op: ir.Operation) -> bool:
        """The op computes the same in every iteration."""
        return is_pure(op) and all(self.of(result) == 0 for result in op.results)

    def is_advanced(self, op: ir.Operation) -> bool:
        """The op computes an index that changes by the same amount in every iteration."""
        return is_pure(op) and len(op.results) == 1 and bool(self.of(op.results[0]))


def _change(op: ir.Operation, advance: Advance) -> int | None:
    changes = [advance.of(operand) for operand in op.operands]
    if all(change == 0 for change in changes):
        return 0
    if len(changes) != 2 or None in changes:
        return changes[0] if op.name == "arith.index_cast" else None
    first, second = (change or 0 for change in changes)
    if op.name == "arith.addi":
        return first + second
    if op.name == "arith.subi":
        return first - second
    if op.name == "arith.muli":
        factor = constant_of(op.operands[0 if first == 0 else 1])
        return None if factor is None else (first or second) * factor
    return None
