"""Named linalg ops become ``linalg.generic``, except those that later stages know by name."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import math as math_ops

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import is_named_compute
from mlirstitch.passes.structured import (
    PARALLEL,
    REDUCTION,
    Structured,
    block_ops,
    build_constant,
    build_empty,
    build_fill,
    build_generic,
    clone_into_body,
    element_type,
    functions,
    shape_of,
    structured,
)


@register_pass
@dataclass(frozen=True)
class GeneralizeNamedOps(Pass):
    """Rewrite transpose, broadcast, map, reduce, copy, named element-wise ops and softmax as ``linalg.generic``.

    Contractions, convolutions, poolings and ``linalg.fill`` stay. ``linalg.softmax`` becomes maximum, exponential of
    the difference, sum and division, in f32 for f16 and bf16 input with one rounding at the end. ``tensor.splat`` of a
    scalar becomes a fill.
    """

    NAME = "normalize-named-ops"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in block_ops(function):
                _generalize(child)


def _generalize(op: ir.Operation) -> None:
    if op.name == "linalg.softmax":
        _replace(op, _softmax(op))
    elif op.name == "tensor.splat":
        with ir.InsertionPoint(op):
            _replace(op, build_fill(op.operands[0], shape_of(op.result), op.location))
    elif op.name.startswith("linalg.") and op.name not in ("linalg.generic", "linalg.fill"):
        view = structured(op)
        if view is None:
            raise refusal(op, "this op has no element-wise body", "lower it to linalg.generic before compiling")
        if not is_named_compute(op):
            _to_generic(view)


def _replace(op: ir.Operation, value: ir.Value) -> None:
    op.result.replace_all_uses_with(value)
    op.erase()


def _to_generic(view: Structured) -> None:
    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        mapping: dict[ir.Value, ir.Value] = dict(
            zip(view.body.arguments, arguments, strict=False)
        )  # linalg.map may lack the inits' arguments
        clone_into_body(view.body_ops, mapping, ir.InsertionPoint.current)
        return [mapping.get(value, value) for value in view.yielded]

    with ir.InsertionPoint(view.op):
        new = build_generic(view.inputs, view.inits, view.maps, view.iterators, body, view.op.location)
    for old, result in zip(view.op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    view.op.erase()


def _softmax(op: ir.Operation) -> ir.Value:
    """exp(x - max) / sum along the op's dim; returns the new value. Rows of -inf give NaN, as in eager PyTorch."""
    source, location, context = op.operands[0], op.location, op.context
    shape, narrow = shape_of(source), element_type(source)
    dim = ir.IntegerAttr(op.attributes["dimension"]).value
    wide = ir.F64Type.get(context) if isinstance(narrow, ir.F64Type) else ir.F32Type.get(context)
    rank = len(shape)
    whole = ir.AffineMap.get_identity(rank, context)
    row = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(i, context) for i in range(rank) if i != dim], context)
    row_shape = [extent for i, extent in enumerate(shape) if i != dim]
    kinds = [REDUCTION if i == dim else PARALLEL for i in range(rank)]
    parallel = [PARALLEL] * rank

    def widen(value: ir.Value) -> ir.Value:
        return value if value.type == wide else arith.extf(wide, value)

    def fold(value: ir.Value, start: float, combine: type) -> ir.Value:
        scalar = build_constant(ir.FloatAttr.get(wide, start), wide, location)
        init = build_fill(scalar, row_shape, location)
        return build_generic(
            [value], [init], [whole, row], kinds, lambda a: [combine(widen(a[0]), a[1]).result], location
        ).result

    with ir.InsertionPoint(op), location:
        maxima = fold(source, -math.inf, arith.MaximumFOp)
        powers = build_generic(
            [source, maxima],
            [build_empty(shape, wide, location)],
            [whole, row, whole],
            parallel,
            lambda a: [math_ops.exp(arith.subf(widen(a[0]), a[1]))],
            location,
        ).result
        sums = fold(powers, 0.0, arith.AddFOp)

        def divide(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
            quotient = arith.divf(arguments[0], arguments[1])
            return [quotient if wide == narrow else arith.truncf(narrow, quotient)]

        init = build_empty(shape, narrow, location)
        return build_generic([powers, sums], [init], [whole, row, whole], parallel, divide, location).result
