"""Contractions that memory bounds become sums of products, which share kernels as any other reduction does."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import math as math_ops

from mlirstitch.dialects import stitch
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import is_contraction
from mlirstitch.passes.structured import (
    PARALLEL,
    REDUCTION,
    Structured,
    block_ops,
    build_empty,
    build_generic,
    clone_into_body,
    defining_op,
    element_type,
    functions,
    shape_of,
    structured,
)
from mlirstitch.target import Target


@register_pass
@dataclass(frozen=True)
class MemoryBoundProducts(Pass):
    """Rewrite products of a matrix and a vector, dot products and outer products as ``linalg.generic``.

    A named contraction is rewritten if each element of its largest operand takes part in one multiplication only:
    matvec, vecmat, dot, their batched forms, and a matmul or batch_matmul of one row or one column (a recurrent step,
    the attention of one query). The time of such an op is that of reading this operand, if the chip multiplies and
    adds faster than its memory delivers, which the target's rates tell; otherwise the op stays.

    f32 and f64 sums hold ``math.fma``, as the loop nest of a contraction does; with ``stitch.numerics = "strict"``
    product and sum round each for itself. A contraction over a dim of one element, an outer product, becomes
    element-wise. Everything else stays named: each of its inputs is read many times.
    """

    NAME = "normalize-memory-bound-products"

    def run(self, op: ir.Operation) -> None:
        target = stitch.target_of(op)
        fused = stitch.NUMERICS.get(op) != "strict"
        for function in functions(op):
            for child in block_ops(function):
                if child.name != "linalg.generic" and is_contraction(child):
                    view = structured(child)
                    if view is not None and is_memory_bound(view, target):
                        _rewrite(view, fused=fused)


def is_memory_bound(view: Structured, target: Target) -> bool:
    """A contraction that uses every element of one operand once, and multiplies faster than memory delivers it."""
    sizes = view.loop_sizes()
    wide = {dim for dim, size in enumerate(sizes) if size > 1}
    full = [
        math.prod(shape_of(value)) * _bytes(element_type(value))
        for value, affine_map in zip(view.operands, view.maps, strict=True)
        if wide <= {ir.AffineDimExpr(expr).position for expr in affine_map.results}
    ]
    if not full or 0 in sizes:
        return False
    warp_instructions = math.prod(sizes) / target.warp_size
    multiplying = warp_instructions * _cycles(element_type(view.inits[0]), target) / (target.sms * target.clock)
    return multiplying < max(full) / target.bandwidth


def _bytes(element: ir.Type) -> int:
    width = element.width if isinstance(element, ir.IntegerType | ir.FloatType) else 64
    return max(1, width // 8)


def _cycles(element: ir.Type, target: Target) -> float:
    """Issue cycles of a multiply-add of a warp."""
    if isinstance(element, ir.IntegerType):
        return 2 * target.cycles.integer  # a multiplication and an addition
    return target.cycles.double if isinstance(element, ir.F64Type) else target.cycles.float


def _rewrite(view: Structured, *, fused: bool) -> None:
    sizes = view.loop_sizes()
    summed = [dim for dim, kind in enumerate(view.iterators) if kind == REDUCTION]
    outer = all(sizes[dim] == 1 for dim in summed)
    new = _element_wise(view, summed, fused=fused) if outer else _sum(view, fused=fused)
    view.op.result.replace_all_uses_with(new.result)
    view.op.erase()


def _sum(view: Structured, *, fused: bool) -> ir.Operation:
    with ir.InsertionPoint(view.op):
        return build_generic(
            view.inputs, view.inits, view.maps, view.iterators, lambda a: _body(view, a, fused=fused), view.op.location
        )


def _element_wise(view: Structured, summed: Sequence[int], *, fused: bool) -> ir.Operation:
    """The op without the dims that are summed, all of one element; what it adds to is an input."""
    context, location = view.op.context, view.op.location
    kept = [dim for dim in range(len(view.iterators)) if dim not in summed]

    def without(affine_map: ir.AffineMap) -> ir.AffineMap:
        positions = [ir.AffineDimExpr(expr).position for expr in affine_map.results]
        exprs = [
            ir.AffineDimExpr.get(kept.index(p), context) if p in kept else ir.AffineConstantExpr.get(0, context)
            for p in positions
        ]
        return ir.AffineMap.get(len(kept), 0, exprs, context)

    maps = [without(affine_map) for affine_map in view.maps]
    (init,) = view.inits
    with ir.InsertionPoint(view.op):
        return build_generic(
            [*view.inputs, init],
            [build_empty(shape_of(init), element_type(init), location)],
            [*maps, maps[-1]],
            [PARALLEL] * len(kept),
            lambda a: _body(view, a[:-1], fused=fused),
            location,
        )


def _body(view: Structured, arguments: Sequence[ir.Value], *, fused: bool) -> Sequence[ir.Value]:
    """The body of the named op: casts, a product, and its sum with the running value."""
    mapping: dict[ir.Value, ir.Value] = dict(zip(view.body.arguments, arguments, strict=True))
    total = defining_op(view.yielded[0])
    factors = _factors(view, total) if total is not None and fused else None
    if total is None or factors is None:
        clone_into_body(view.body_ops, mapping, ir.InsertionPoint.current)
        return [mapping.get(value, value) for value in view.yielded]
    product, (left, right) = factors
    rest = [op for op in view.body_ops if op not in (total, product)]
    clone_into_body(rest, mapping, ir.InsertionPoint.current)
    return [math_ops.fma(mapping.get(left, left), mapping.get(right, right), arguments[-1])]


def _factors(view: Structured, total: ir.Operation) -> tuple[ir.Operation, Sequence[ir.Value]] | None:
    """The multiplication whose product an f32 or f64 sum adds, and its operands."""
    if total.name != "arith.addf" or not isinstance(total.result.type, ir.F32Type | ir.F64Type):
        return None
    (running,) = view.running
    terms = [value for value in total.operands if value != running]
    product = defining_op(terms[0]) if len(terms) == 1 else None
    if product is None or product.name != "arith.mulf":
        return None
    return product, tuple(product.operands)
