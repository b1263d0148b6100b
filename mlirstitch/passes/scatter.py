"""Scatters as ``linalg.generic``: how one is recognised.

A scatter combines each row of updates with the row of the destination that its index names. Seen from the destination
it is a reduction over the updates that counts those whose index is the row's own position::

    linalg.generic {indexing_maps = [(d, c, n) -> (n), (d, c, n) -> (n, c), (d, c, n) -> (d, c)],
                    iterator_types = ["parallel", "parallel", "reduction"]}
        ins(%indices, %updates) outs(%destination) {
      ^bb0(%index, %update, %running):
        %row = arith.index_cast (linalg.index 0)
        %hit = arith.cmpi eq, %index, %row
        %term = arith.select %hit, %update, %neutral     // -0.0 for a sum
        %next = arith.addf %running, %term
        linalg.yield %next
    }

This is what the op means, so that every template that computes reductions computes it; the template ``scatter`` reads
only the updates that count. An index outside the destination names no row: its update counts nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.structured import PARALLEL, REDUCTION, Structured, defining_op

_INDEX_CASTS = frozenset(("arith.index_cast", "arith.index_castui", "arith.trunci", "arith.extsi", "arith.extui"))
_COMBINERS = frozenset(
    f"arith.{name}"
    for name in (
        *("addf", "mulf", "maximumf", "minimumf", "addi", "muli", "maxsi", "minsi", "maxui", "minui"),
        *("andi", "ori"),
    )
)
_EQUAL = 0


@dataclass(frozen=True)
class ScatterForm:
    """A scatter along loop ``dim`` of the destination; ``select`` is the op of the body that picks the updates."""

    dim: int
    select: ir.Operation


def scatter_form(view: Structured) -> ScatterForm | None:
    """What scatter an op is, or None."""
    reduced = [dim for dim, kind in enumerate(view.iterators) if kind == REDUCTION]
    if len(reduced) != 1 or len(view.inits) != 1:
        return None
    combiner = defining_op(view.yielded[0])
    if combiner is None or combiner.name not in _COMBINERS or view.running[0] not in combiner.operands:
        return None
    select = next((defining_op(value) for value in combiner.operands if value != view.running[0]), None)
    if select is None or select.name != "arith.select":
        return None
    compare = defining_op(select.operands[0])
    if compare is None or compare.name != "arith.cmpi":
        return None
    if ir.IntegerAttr(compare.attributes["predicate"]).value != _EQUAL:
        return None
    for position, index in (tuple(compare.operands), tuple(compare.operands)[::-1]):
        dim = _position(position)
        if dim is not None and view.iterators[dim] == PARALLEL and _without(view, (index, select.operands[1]), dim):
            return ScatterForm(dim, select)
    return None


def _position(value: ir.Value) -> int | None:
    """The loop dim whose index a value is."""
    op = defining_op(value)
    while op is not None and op.name in _INDEX_CASTS:
        op = defining_op(op.operands[0])
    return ir.IntegerAttr(op.attributes["dim"]).value if op is not None and op.name == "linalg.index" else None


def _without(view: Structured, values: tuple[ir.Value, ...], dim: int) -> bool:
    """Whether values of the body do not depend on loop ``dim``, and some depends on an operand."""
    seen: set[ir.Value] = set()
    waiting = list(values)
    reads = False
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        op = defining_op(value)
        if op is None:
            number = ir.BlockArgument(value).arg_number
            if any(_mentions(expr, dim) for expr in view.maps[number].results):
                return False
            reads = True
        elif op.block == view.body:
            if op.name == "linalg.index" and ir.IntegerAttr(op.attributes["dim"]).value == dim:
                return False
            waiting.extend(operand for operand in op.operands if not isinstance(operand.type, ir.ShapedType))
    return reads


def _mentions(expr: ir.AffineExpr, dim: int) -> bool:
    if isinstance(expr, ir.AffineDimExpr):
        return expr.position == dim
    return isinstance(expr, ir.AffineBinaryExpr) and (_mentions(expr.lhs, dim) or _mentions(expr.rhs, dim))
