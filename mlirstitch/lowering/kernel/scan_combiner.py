"""What a scan combines, and how two stretches of a row are joined.

The loops of a scan take one element at a time; threads join stretches, which is the same only if the combination is
associative. Recognised are the operations of which that is known (floating-point addition and multiplication up to
rounding): a single addition, multiplication, minimum, maximum, and, or; and the logarithm of a sum of exponentials::

    max(a, b) + log1p(exp(d)),    d = a = b ? 0 : min(a, b) - max(a, b)
"""

from __future__ import annotations

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.lowering.kernel.combiner import Combiner
from mlirstitch.lowering.kernel.linalg_body import Body, BodyOp, LinalgOp
from mlirstitch.passes.scan import TOTAL
from mlirstitch.passes.structured import constant_of

_MERGES = frozenset(
    f"arith.{name}"
    for name in (
        *("addf", "mulf", "maximumf", "minimumf", "maxnumf", "minnumf"),
        *("addi", "muli", "andi", "ori", "xori", "maxsi", "maxui", "minsi", "minui"),
    )
)
_ORDERED_EQUAL = 1


def scan_combiner(linalg: LinalgOp) -> Combiner:
    """The combiner of a scan's running total. Raises :class:`PassError` if it is not known to be associative."""
    body = linalg.body
    running = len(linalg.inputs) + TOTAL
    last = _producer(body, body.yields[TOTAL])
    if last is not None and last.name in _MERGES and running in last.operands:
        element = _other(last, running)
        if element is not None and not _reads(body, element, running):
            return Combiner(linalg, (TOTAL,), (element,), last.name, None)
    if last is not None and last.name == "arith.addf":
        element = _log_of_sum(body, last, running)
        if element is not None and not _reads(body, element, running):
            return Combiner(linalg, (TOTAL,), (element,), "", None)
    raise refusal(
        linalg.op,
        "is a scan whose combination is not known to be associative",
        "scan with an addition, multiplication, minimum, maximum or the logarithm of a sum of exponentials",
    )


def _log_of_sum(body: Body, last: BodyOp, running: int) -> int | None:
    """The slot combined with ``running`` by ``last`` as the module's documentation says, or None."""
    for larger, logarithm in (last.operands, last.operands[::-1]):
        maximum, log = _producer(body, larger), _producer(body, logarithm)
        if maximum is None or maximum.name != "arith.maximumf" or running not in maximum.operands:
            continue
        element = _other(maximum, running)
        if element is None or log is None or log.name != "math.log1p":
            continue
        power = _producer(body, log.operands[0])
        select = None if power is None or power.name != "math.exp" else _producer(body, power.operands[0])
        if select is not None and select.name == "arith.select" and _is_distance(body, select, maximum):
            return element
    return None


def _is_distance(body: Body, select: BodyOp, maximum: BodyOp) -> bool:
    """Whether ``select`` is 0 where the operands of ``maximum`` are equal, else the smaller less the larger."""
    compare, difference = _producer(body, select.operands[0]), _producer(body, select.operands[2])
    if compare is None or difference is None or difference.name != "arith.subf":
        return False
    minimum = _producer(body, difference.operands[0])
    pair = set(maximum.operands)
    return (
        (minimum is not None and minimum.name == "arith.minimumf" and set(minimum.operands) == pair)
        and difference.operands[1] == maximum.result
        and compare.name == "arith.cmpf"
        and set(compare.operands) == pair
        and ir.IntegerAttr(compare.attributes["predicate"]).value == _ORDERED_EQUAL
        and _is_zero(body, select.operands[1])
    )


def _is_zero(body: Body, slot: int) -> bool:
    """Whether a slot is the constant 0, written in the body or outside."""
    producer = _producer(body, slot)
    value = None if producer is None or producer.name != "arith.constant" else producer.attributes["value"]
    for captured, outside in body.captures:
        if captured == slot:
            value = constant_of(outside)
    return isinstance(value, ir.FloatAttr) and value.value == 0.0


def _producer(body: Body, slot: int) -> BodyOp | None:
    return next((op for op in body.ops if op.result == slot), None)


def _other(op: BodyOp, slot: int) -> int | None:
    """The operand of a binary op that is not ``slot``."""
    others = [operand for operand in op.operands if operand != slot]
    return others[0] if len(others) == 1 else None


def _reads(body: Body, slot: int, running: int) -> bool:
    """Whether ``slot`` depends on the running total."""
    _, slots = body.needed([slot], frozenset())
    return running in slots
