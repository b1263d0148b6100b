"""Products move into the one op that adds to them, so that a fused multiply-add can be formed there."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import math as math_ops

from mlirstitch.dialects import stitch
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import (
    Structured,
    block_ops,
    build_generic,
    clone_into_body,
    defining_op,
    functions,
    shape_of,
    structured,
    users,
)


@dataclass(frozen=True)
class _Product:
    """An element-wise product, and where its one user reads it.

    Attributes:
        view: the op that multiplies.
        position: operand of the user.
        addition: the op of the user's body that adds to it.
    """

    view: Structured
    position: int
    addition: ir.Operation


@register_pass
@dataclass(frozen=True)
class SinkProducts(Pass):
    """Compute an element-wise product of f32 or f64 in the body of its only user, if that adds to it.

    ``normalize-form-fma`` sees one body at a time, while importers write one op a ``linalg.generic``: ``x * w + b``
    of a layer norm and the sum of squares of a variance come as two. Element-wise users then hold ``mulf`` and
    ``addf``; a sum gets ``math.fma`` on its running value.

    The product must be as large as the space of its user, and be read once; for a sum its factors must be as large
    too, so that no contraction comes into being. As for any fused multiply-add (docs/numerics.md), nothing is done
    where the other operand is a product as well. With ``stitch.numerics = "strict"`` the pass does nothing.
    """

    NAME = "normalize-sink-products"

    def run(self, op: ir.Operation) -> None:
        if stitch.NUMERICS.get(op) == "strict":
            return
        for function in functions(op):
            for child in block_ops(function):
                view = structured(child) if child.name == "linalg.generic" else None
                product = _product_of(view) if view is not None else None
                if view is not None and product is not None:
                    _sink(view, product)


def _product_of(view: Structured) -> _Product | None:
    """The first product that may be computed in the body of ``view``."""
    for addition in view.body_ops:
        operands = list(addition.operands)
        if (
            addition.name not in ("arith.addf", "arith.subf")
            or sum(_multiplies(view, value) for value in operands) != 1
        ):
            continue
        for value in operands:
            product = _read_product(view, value)
            if product is None:
                continue
            position = ir.BlockArgument(value).arg_number
            if view.is_parallel or _is_sum_of(view, addition, position, product):
                return _Product(product, position, addition)
    return None


def _multiplies(view: Structured, value: ir.Value) -> bool:
    """``value`` is a product, whether it may be sunk or not."""
    op = defining_op(value)
    if op is not None:
        return op.name == "arith.mulf"
    producer = defining_op(view.operands[ir.BlockArgument(value).arg_number])
    source = structured(producer) if producer is not None else None
    if source is None or not source.is_parallel:
        return False
    yielded = [defining_op(scalar) for scalar in source.yielded]
    return any(op is not None and op.name == "arith.mulf" for op in yielded)


def _read_product(view: Structured, value: ir.Value) -> Structured | None:
    """The op whose product the body argument ``value`` of ``view`` is, if nobody else reads that."""
    if defining_op(value) is not None or ir.BlockArgument(value).owner != view.body:
        return None
    position = ir.BlockArgument(value).arg_number
    if position >= len(view.inputs):
        return None
    producer = defining_op(view.inputs[position])
    source = structured(producer) if producer is not None and producer.name == "linalg.generic" else None
    if source is None or not _is_product(source) or len(users(source.op.result)) != 1 or len(users(value)) != 1:
        return None
    full = math.prod(shape_of(source.op.result)) == math.prod(view.loop_sizes())
    return source if full and view.maps[position].is_permutation else None


def _is_product(view: Structured) -> bool:
    """``view`` is one multiplication of f32 or f64 per element, of inputs and constants."""
    if not view.is_parallel or len(view.op.results) != 1 or len(view.body_ops) != 1:
        return False
    (product,) = view.body_ops
    if product.name != "arith.mulf" or not isinstance(product.result.type, ir.F32Type | ir.F64Type):
        return False
    if view.yielded[0] != product.result or not view.maps[-1].is_permutation:
        return False
    return not any(argument in view.running for argument in product.operands)


def _is_sum_of(view: Structured, addition: ir.Operation, position: int, product: Structured) -> bool:
    """``view`` does nothing but sum up the product, whose factors are as large as it is."""
    if len(view.body_ops) != 1 or addition.name != "arith.addf" or len(view.inits) != 1:
        return False
    argument = view.body.arguments[position]
    other = next(value for value in addition.operands if value != argument)
    factors = product.maps[: len(product.inputs)]
    full = bool(factors) and all(affine_map.is_permutation for affine_map in factors)
    return full and other in view.running and view.yielded[0] == addition.result


def _sink(view: Structured, product: _Product) -> None:
    """Replace ``view`` by an op that multiplies itself, and erase the product."""
    op, source = view.op, product.view
    kept = [i for i in range(len(view.inputs)) if i != product.position]
    inputs = [*(view.inputs[i] for i in kept), *source.inputs]
    maps = [*(view.maps[i] for i in kept), *_factor_maps(view, product), *view.maps[len(view.inputs) :]]
    location = ir.Location.fused([source.op.location, op.location], context=op.context)

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        factors = arguments[len(kept) : len(kept) + len(source.inputs)]
        running = arguments[len(inputs) :]
        mapping: dict[ir.Value, ir.Value] = dict(zip(source.body.arguments, factors, strict=False))
        mapping.update(zip((view.body.arguments[i] for i in kept), arguments, strict=False))
        mapping.update(zip(view.running, running, strict=True))
        point = ir.InsertionPoint(arguments[0].owner)
        (multiplication,) = source.body_ops
        if not view.is_parallel:
            left, right = (mapping.get(value, value) for value in multiplication.operands)
            with product.addition.location:
                return [math_ops.fma(left, right, running[0])]
        clone_into_body([multiplication], mapping, point)
        mapping[view.body.arguments[product.position]] = mapping[multiplication.result]
        clone_into_body(list(view.body_ops), mapping, point)
        return [mapping.get(value, value) for value in view.yielded]

    with ir.InsertionPoint(op), op.location:
        new = build_generic(inputs, view.inits, maps, view.iterators, body, location)
    for old, result in zip(op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    op.erase()
    source.op.erase()


def _factor_maps(view: Structured, product: _Product) -> list[ir.AffineMap]:
    """Where the factors are read, in terms of the loops of ``view``."""
    source, context = product.view, view.op.context
    read = view.maps[product.position]
    # Every loop of the product is a dim of its result, which the user reads by its own loops.
    element = [ir.AffineDimExpr(expr).position for expr in source.maps[-1].results]
    loops = [read.results[element.index(dim)] for dim in range(source.maps[-1].n_dims)]
    inner = ir.AffineMap.get(read.n_dims, 0, loops, context)
    return [
        ir.AffineMap.get(read.n_dims, 0, [expr.compose(inner) for expr in factor.results], context)
        for factor in source.maps[: len(source.inputs)]
    ]
