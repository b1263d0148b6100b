"""Mark what ``numerics="fast-math"`` computes by the approximations of the chip."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from mlirstitch.dialects import stitch
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import block_ops, defining_op, functions, structured
from mlirstitch.target import Target

_FUNCTIONS = ("math.exp", "math.sqrt", "math.tanh")
_TANH_PTX = (7, 0)
"""The PTX version from which on there is ``tanh.approx``."""


@register_pass
@dataclass(frozen=True)
class FastMath(Pass):
    """With ``stitch.numerics = "fast-math"``: exp, square roots, tanh and quotients by the chip's approximations.

    The op gets ``stitch.approximate``, which the kernel generator reads; a quotient becomes a product with the
    approximate reciprocal, so that one reciprocal serves a whole row. f16 and bf16 are widened to f32 for it and
    rounded once; f64 is left alone. Marked on the op before clusters are cut, every kernel that computes a value gets
    the same bits. tanh stays precise where the PTX version of the chip has no instruction for it. In the other modes
    the pass does nothing. docs/numerics.md lists the bounds.
    """

    NAME = "normalize-fast-math"

    def run(self, op: ir.Operation) -> None:
        if stitch.NUMERICS.get(op) != "fast-math":
            return
        names = _FUNCTIONS if _has_tanh(op) else tuple(name for name in _FUNCTIONS if name != "math.tanh")
        for function in functions(op):
            for child in block_ops(function):
                view = structured(child) if child.name == "linalg.generic" else None
                for inner in view.body_ops if view is not None else ():
                    if inner.name == "arith.divf" or inner.name in names:
                        _approximate(inner)


def _has_tanh(module: ir.Operation) -> bool:
    target = Target.parse(stitch.TARGET.get(module) or "sm_90")
    return tuple(int(part) for part in target.ptx_version.split(".")) >= _TANH_PTX


def _approximate(op: ir.Operation) -> None:
    kind = op.result.type
    if not isinstance(kind, ir.F32Type | ir.F16Type | ir.BF16Type) or stitch.APPROXIMATE.get(op):
        return
    f32 = ir.F32Type.get(op.context)
    narrow = kind != f32
    with ir.InsertionPoint(op), op.location:
        operands = [arith.extf(f32, value) if narrow else value for value in op.operands]
        if op.name == "arith.divf":
            value = _quotient(*operands)
        else:
            value = ir.Operation.create(op.name, results=[f32], operands=operands).result
            _mark(value)
        value = arith.truncf(kind, value) if narrow else value
    op.result.replace_all_uses_with(value)
    op.erase()


def _quotient(numerator: ir.Value, denominator: ir.Value) -> ir.Value:
    """``numerator * (1 / denominator)``; just the reciprocal if the numerator is 1."""
    one = _is_one(numerator)
    unit = numerator if one else arith.constant(numerator.type, 1.0)
    reciprocal = arith.divf(unit, denominator)
    _mark(reciprocal)
    return reciprocal if one else arith.mulf(numerator, reciprocal)


def _mark(value: ir.Value) -> None:
    op = defining_op(value)
    if op is not None:
        stitch.APPROXIMATE.set(op, True)


def _is_one(value: ir.Value) -> bool:
    op = defining_op(value)
    if op is None or op.name != "arith.constant":
        return False
    attribute = op.attributes["value"]
    return isinstance(attribute, ir.FloatAttr) and attribute.value == 1.0
