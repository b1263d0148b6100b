"""How a reduction's body folds in parallel: what it folds, with which neutral element, in which order.

A body is written for one thread: ``acc' = f(acc, element)``. To fold partial results of many threads it has to be split
into the part that computes the element and a combiner of two accumulators. Two forms are recognised:

- one binary op (``addf``, ``maximumf`` ...) or a fused multiply-add whose addend is the accumulator;
- a *selection*: compares, selects, minima and maxima that keep one of the two sides, in one or several results
  (argmax with its value). Combining a selection with a copy of itself changes nothing, so idle lanes may start from
  the initial value. Ties are decided by the smaller index: of two sides the one with the smaller index component is
  taken as the accumulator.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.lowering.kernel.linalg_body import BodyOp, LinalgOp

_SELECTING = frozenset(
    f"arith.{name}"
    for name in (
        *("cmpf", "cmpi", "select", "maximumf", "minimumf", "maxnumf", "minnumf", "maxsi", "maxui", "minsi", "minui"),
        *("andi", "ori", "xori", "constant"),
    )
)
_MERGES = frozenset(
    f"arith.{name}"
    for name in (
        *("addf", "mulf", "maximumf", "minimumf", "maxnumf", "minnumf"),
        *("addi", "muli", "andi", "ori", "xori", "maxsi", "maxui", "minsi", "minui"),
    )
)
_INDEX_CASTS = frozenset(("arith.index_cast", "arith.index_castui", "arith.trunci", "arith.extsi", "arith.extui"))


@dataclass(frozen=True)
class Combiner:
    """Folding of some results of one reduction that belong together.

    Attributes:
        results: result numbers, ascending.
        elements: body slots of what one iteration contributes. One per result, or two for a multiply-add (the factors).
        merge: op that combines two accumulators, or "" for a selection.
        order: position in ``results`` of the index component that decides ties, or None.
    """

    linalg: LinalgOp
    results: tuple[int, ...]
    elements: tuple[int, ...]
    merge: str
    order: int | None

    @property
    def is_multiply_add(self) -> bool:
        """Whether a step is ``fma(x, y, acc)``."""
        return bool(self.merge) and len(self.elements) == 2

    def accumulators(self) -> tuple[int, ...]:
        """Body slots of the running values."""
        return tuple(len(self.linalg.inputs) + result for result in self.results)

    def yields(self) -> tuple[int, ...]:
        """Body slots of the new running values."""
        return tuple(self.linalg.body.yields[result] for result in self.results)


class NotParallel(Exception):
    """The body cannot be folded in parallel; the message says why."""


def combiner_of(linalg: LinalgOp, result: int) -> Combiner:
    """The combiner that yields ``result``, with the other results it needs. Raises :class:`NotParallel`."""
    body = linalg.body
    first = len(linalg.inputs)
    running = set(range(first, first + len(linalg.inits)))
    dependent = _dependent(body.ops, running)
    group = results_together(linalg, result)
    if len(group) == 1:
        single = _single(linalg, result, dependent)
        if single is not None:
            return single
    return _selection(linalg, group, dependent)


def _dependent(ops: Sequence[BodyOp], running: set[int]) -> set[int]:
    found = set(running)
    for op in ops:
        if any(slot in found for slot in op.operands):
            found.add(op.result)
    return found


def results_together(linalg: LinalgOp, result: int) -> tuple[int, ...]:
    """The results whose running values ``result`` depends on, itself included, ascending."""
    first = len(linalg.inputs)
    group = {result}
    while True:
        _, slots = linalg.body.needed([linalg.body.yields[r] for r in sorted(group)], frozenset())
        more = {slot - first for slot in slots if first <= slot < first + len(linalg.inits)} | group
        if more == group:
            return tuple(sorted(group))
        group = more


def _single(linalg: LinalgOp, result: int, dependent: set[int]) -> Combiner | None:
    running = len(linalg.inputs) + result
    last = linalg.body.yields[result]
    op = next((op for op in linalg.body.ops if op.result == last), None)
    if op is None or running not in op.operands:
        return None
    others = [slot for slot in op.operands if slot != running]
    if any(slot in dependent for slot in others):
        return None
    if op.name in _MERGES and len(others) == 1:
        return Combiner(linalg, (result,), tuple(others), op.name, None)
    if op.name == "math.fma" and len(others) == 2 and op.operands[2] == running:
        return Combiner(linalg, (result,), tuple(others), "arith.addf", None)
    return None


def _selection(linalg: LinalgOp, group: tuple[int, ...], dependent: set[int]) -> Combiner:
    body = linalg.body
    first = len(linalg.inputs)
    running = {first + result: result for result in group}
    yields = [body.yields[result] for result in group]
    ops, _ = body.needed(yields, frozenset())
    folding = [op for op in ops if op.result in dependent]
    for op in folding:
        if op.name not in _SELECTING:
            raise NotParallel(f"its body combines running values by {op.name}")
    elements: dict[int, int] = {}
    for op in folding:
        sides = op.operands[1:] if op.name == "arith.select" else op.operands
        for slot, other in (sides, sides[::-1]) if len(sides) == 2 else ():
            if slot in running and other not in dependent and elements.setdefault(running[slot], other) != other:
                raise NotParallel("a running value is compared with two different values")
    if set(elements) != set(group):
        raise NotParallel("a running value is not paired with a value of the iteration")
    known = frozenset(elements.values()) | frozenset(running)
    outside = {slot for slot, _ in body.captures}
    rest, slots = body.needed(yields, known)
    if any(slot not in known and slot not in outside and slot < body.arguments for slot in slots):
        raise NotParallel("its body uses more values of an iteration than it keeps")
    if any(op.name not in _SELECTING for op in rest):
        raise NotParallel("its body does more than select")
    paired = tuple(elements[result] for result in group)
    order = next((i for i, slot in enumerate(paired) if _is_position(linalg, slot)), None)
    if len(group) > 1 and order is None:
        raise NotParallel("none of its results is the index that decides ties")
    return Combiner(linalg, group, paired, "", order)


def _is_position(linalg: LinalgOp, slot: int) -> bool:
    """Whether a slot is the index along the only reduced dim of more than one element."""
    producers = {op.result: op for op in linalg.body.ops}
    while slot in producers and producers[slot].name in _INDEX_CASTS:
        slot = producers[slot].operands[0]
    op = producers.get(slot)
    wide = [d for d, reduced in enumerate(linalg.reduced) if reduced and linalg.extents[d] != 1]
    return op is not None and op.name == "linalg.index" and wide in ([op.dim], [])


def neutral_element(merge: str, kind: ir.Type) -> float | int:
    """The value that ``merge`` leaves unchanged."""
    name = merge.removeprefix("arith.")
    if name in ("addf", "addi", "ori", "xori", "maxui"):
        return 0
    if name in ("mulf", "muli"):
        return 1
    if name in ("maximumf", "maxnumf"):
        return -math.inf
    if name in ("minimumf", "minnumf"):
        return math.inf
    if name in ("andi", "minui"):
        return -1
    bits = ir.IntegerType(kind).width
    return -(1 << (bits - 1)) if name == "maxsi" else (1 << (bits - 1)) - 1
