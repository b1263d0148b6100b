"""How the parts of a reduction become one, read off its body."""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from mlirstitch.passes.partitioning.graph import REDUCTION
from mlirstitch.passes.structured import Structured, defining_op, splat_scalar

_COMBINERS = {
    "arith.addf": "add",
    "arith.addi": "add",
    "arith.mulf": "mul",
    "arith.muli": "mul",
    "arith.maximumf": "max",
    "arith.maxnumf": "max",
    "arith.maxsi": "max",
    "arith.minimumf": "min",
    "arith.minnumf": "min",
    "arith.minsi": "min",
    "arith.andi": "and",
    "arith.ori": "or",
}
"""Ops that combine a running value with an element. Unsigned minima and maxima are left out: nothing after the op would
tell them from signed ones."""
_GREATER = {"arith.cmpf": (2, 9), "arith.cmpi": (4,)}  # ogt, ugt; sgt
_LESS = {"arith.cmpf": (4, 11), "arith.cmpi": (2,)}  # olt, ult; slt
_INDEX_CASTS = frozenset(("arith.index_cast", "arith.trunci", "arith.extsi"))


def combiner_of(view: Structured) -> str:
    """The combiner of all results of a reduction, one of ``graph.COMBINERS``.

    "" if there is none of a known sort, or if the results have different ones.
    """
    first, *others = (_chain(view, number) for number in range(len(view.inits)))
    return first if first and all(other == first for other in others) else _arg_combiner(view)


def is_neutral(init: ir.Value, combiner: str) -> bool:
    """Whether combining with every element of ``init`` once more changes nothing: parts may all start from it."""
    if combiner not in ("add", "mul"):
        return True  # a part that starts from it gives no more than the whole does
    attribute = splat_scalar(init)
    if not isinstance(attribute, ir.FloatAttr | ir.IntegerAttr):
        return False
    return attribute.value == (0 if combiner == "add" else 1)


def _chain(view: Structured, number: int) -> str:
    """The combiner of one result where the body yields ``running * t1 * t2 ...``, else ""."""
    running = view.running[number]
    carried = _carrying(view, running)
    value, combiner, steps = view.yielded[number], "", 0
    while value != running:
        op = defining_op(value)
        found, value = _link(op, carried) if op is not None and op.block == view.body else ("", value)
        if not found or combiner not in ("", found):
            return ""
        combiner = found
        steps += 1
    # more scalars that depend on the running value than the links: something else reads it
    return combiner if len(carried) == steps + 1 else ""


def _link(op: ir.Operation, carried: set[ir.Value]) -> tuple[str, ir.Value]:
    """One link of a chain: its combiner, and the operand that carries the running value; "" if it is none."""
    operands = tuple(op.operands)
    combiner = _COMBINERS.get(op.name, "")
    if op.name == "math.fma":
        places, combiner = [2], "add"
    elif op.name in ("arith.subf", "arith.subi"):
        places, combiner = [0], "add"
    else:
        places = [place for place, operand in enumerate(operands) if operand in carried]
    if len(places) != 1 or operands[places[0]] not in carried:
        return "", operands[0]
    others = [operand for place, operand in enumerate(operands) if place != places[0]]
    return ("", operands[0]) if carried & set(others) else (combiner, operands[places[0]])


def _carrying(view: Structured, running: ir.Value) -> set[ir.Value]:
    """The scalars of the body that depend on a running value, itself included."""
    carried = {running}
    for op in view.body_ops:
        if any(operand in carried for operand in op.operands):
            carried.update(op.results)
    return carried


def _arg_combiner(view: Structured) -> str:
    """``argmax`` or ``argmin``, else "".

    The first result keeps the best element, the second its place along the one reduced dim, and an equal element that
    comes later changes neither.
    """
    reduced = [loop for loop, kind in enumerate(view.iterators) if kind == REDUCTION]
    if len(view.inits) != 2 or len(reduced) != 1:
        return ""
    best, place = view.yielded
    pick = defining_op(place)
    if pick is None or pick.name != "arith.select" or pick.operands[2] != view.running[1]:
        return ""
    if _loop_index(pick.operands[1]) != reduced[0]:
        return ""
    compare = defining_op(pick.operands[0])
    for name, greater, lesser in (("argmax", _GREATER, _LESS), ("argmin", _LESS, _GREATER)):
        element = _compared(compare, view.running[0], greater, lesser)
        if element is not None and _keeps_best(best, element, view.running[0], pick.operands[0], name):
            return name
    return ""


def _compared(
    compare: ir.Operation | None,
    running: ir.Value,
    greater: dict[str, Sequence[int]],
    lesser: dict[str, Sequence[int]],
) -> ir.Value | None:
    """The element that a strict comparison finds better than the running value."""
    if compare is None or compare.name not in greater:
        return None
    predicate = ir.IntegerAttr(compare.attributes["predicate"]).value
    left, right = compare.operands
    if right == running and predicate in greater[compare.name]:
        return left
    if left == running and predicate in lesser[compare.name]:
        return right
    return None


def _keeps_best(best: ir.Value, element: ir.Value, running: ir.Value, condition: ir.Value, name: str) -> bool:
    op = defining_op(best)
    if op is None:
        return False
    if op.name == "arith.select":
        return tuple(op.operands) == (condition, element, running)
    return _COMBINERS.get(op.name) == name[3:] and set(op.operands) == {element, running}


def _loop_index(value: ir.Value) -> int | None:
    op = defining_op(value)
    while op is not None and op.name in _INDEX_CASTS:
        op = defining_op(op.operands[0])
    return ir.IntegerAttr(op.attributes["dim"]).value if op is not None and op.name == "linalg.index" else None
