"""Form fused multiply-adds, before clusters are cut."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import math as math_ops

from mlirstitch.dialects import stitch
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import (
    Structured,
    block_ops,
    defining_op,
    functions,
    has_uses,
    structured,
    users,
)


@register_pass
@dataclass(frozen=True)
class FormFma(Pass):
    """Turn ``a * b + c``, ``a * b - c`` and ``c - a * b`` of one body into ``math.fma`` (f32 and f64).

    Formed here, every kernel that computes the value gets the same bits; LLVM's contraction would decide kernel by
    kernel and is never enabled. The product must have no other use. Nothing is formed where the other operand is a
    product as well, in this body or as the result of the op that feeds it: the difference of two equal products must
    stay zero. The running value of a reduction is left alone too: later stages look for the combining addition.
    With ``stitch.numerics = "strict"`` the pass does nothing; with "fast-math" a product may have other uses, and may
    be added to another product.
    """

    NAME = "normalize-form-fma"

    def run(self, op: ir.Operation) -> None:
        numerics = stitch.NUMERICS.get(op)
        if numerics == "strict":
            return
        for function in functions(op):
            for child in block_ops(function):
                view = structured(child) if child.name == "linalg.generic" else None
                if view is not None:
                    for inner in view.body_ops:
                        _form(view, inner, everywhere=numerics == "fast-math")


def _form(view: Structured, op: ir.Operation, everywhere: bool) -> None:
    if op.name not in ("arith.addf", "arith.subf") or not isinstance(op.result.type, ir.F32Type | ir.F64Type):
        return
    position = _fused_operand(view, op, everywhere)
    if position is None or op.operands[1 - position] in view.running:
        return
    product, other = defining_op(op.operands[position]), op.operands[1 - position]
    if product is None:
        return
    with ir.InsertionPoint(op), op.location:
        left, right = product.operands
        if op.name == "arith.subf" and position == 0:
            other = arith.negf(other)
        elif op.name == "arith.subf":
            left = arith.negf(left)
        fused = math_ops.fma(left, right, other)
    op.result.replace_all_uses_with(fused)
    op.erase()
    if not has_uses(product.result):
        product.erase()


def _fused_operand(view: Structured, op: ir.Operation, everywhere: bool) -> int | None:
    """Which operand of an addition is a product, computed in the body, to fuse with it; None if none may be."""
    producers = [defining_op(value) for value in op.operands]
    computed = [producer is not None and producer.name == "arith.mulf" for producer in producers]
    if not any(computed):
        return None
    position = computed.index(True)
    if everywhere:
        return position
    alone = sum(_is_product(view, value) for value in op.operands) == 1
    return position if alone and len(users(op.operands[position])) == 1 else None


def _is_product(view: Structured, value: ir.Value) -> bool:
    """``value`` is a product: computed in the body, or an element of a tensor whose op yields a product."""
    op = defining_op(value)
    if op is not None:
        return op.name == "arith.mulf"
    position = ir.BlockArgument(value).arg_number
    producer = defining_op(view.operands[position])
    source = structured(producer) if producer is not None else None
    if producer is None or source is None or not source.is_parallel:
        return False
    result = ir.OpResult(view.operands[position]).result_number
    yielded = defining_op(source.yielded[result])
    return yielded is not None and yielded.name == "arith.mulf"
