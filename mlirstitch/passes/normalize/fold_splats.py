"""Constants move into the bodies that use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import (
    Structured,
    block_ops,
    build_constant,
    build_generic,
    clone_into_body,
    constant_of,
    functions,
    is_tensor,
    splat_scalar,
    structured,
)


@register_pass
@dataclass(frozen=True)
class FoldSplats(Pass):
    """Read a splat tensor as its scalar, and fold ``truncf`` of a constant.

    An input of a generic that is a fill, a splat constant or a scalar becomes a scalar constant (or captured scalar)
    of the body, as long as the other operands still determine the iteration space. ``arith.truncf`` of a constant
    folds with one rounding to nearest even, which is what it computes; upstream folds it only if it is exact.
    """

    NAME = "normalize-fold-splats"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in block_ops(function):
                if child.name != "linalg.generic":
                    continue
                view = structured(child)
                if view is not None:
                    _fold_truncations(view)
                    _fold_inputs(view)


def _fold_truncations(view: Structured) -> None:
    for op in view.body_ops:
        if op.name != "arith.truncf":
            continue
        attr = constant_of(op.operands[0])
        if isinstance(attr, ir.FloatAttr):
            type_ = op.result.type
            with ir.InsertionPoint(view.op):
                value = build_constant(ir.FloatAttr.get(type_, attr.value, op.location), type_, op.location)
            op.result.replace_all_uses_with(value)
            op.erase()


def _fold_inputs(view: Structured) -> None:
    scalars: dict[int, ir.Value] = {}
    location = view.op.location
    kept = set(range(len(view.inputs)))
    for position, value in enumerate(view.inputs):
        if not _determined(view, kept - {position}):
            continue
        if not is_tensor(value):
            scalars[position] = value
            kept.remove(position)
            continue
        attr = splat_scalar(value)
        if attr is not None:
            with ir.InsertionPoint(view.op):
                scalars[position] = build_constant(attr, ir.RankedTensorType(value.type).element_type, location)
            kept.remove(position)
    if scalars:
        _drop_inputs(view, scalars)


def _determined(view: Structured, inputs: set[int]) -> bool:
    """The given inputs and the inits index every iteration dim by itself."""
    maps = [view.maps[i] for i in sorted(inputs)] + list(view.init_maps)
    seen = {expr.position for m in maps for expr in m.results if isinstance(expr, ir.AffineDimExpr)}
    return len(seen) == len(view.iterators)


def _drop_inputs(view: Structured, scalars: dict[int, ir.Value]) -> None:
    kept = [i for i in range(len(view.maps)) if i not in scalars]
    inputs = [i for i in kept if i < len(view.inputs)]

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        mapping: dict[ir.Value, ir.Value] = {
            view.body.arguments[old]: new for old, new in zip(kept, arguments, strict=True)
        }
        mapping.update({view.body.arguments[i]: scalar for i, scalar in scalars.items()})
        clone_into_body(view.body_ops, mapping, ir.InsertionPoint.current)
        return [mapping.get(value, value) for value in view.yielded]

    with ir.InsertionPoint(view.op):
        new = build_generic(
            [view.inputs[i] for i in inputs],
            view.inits,
            [view.maps[i] for i in kept],
            view.iterators,
            body,
            view.op.location,
        )
    for old, result in zip(view.op.results, new.results, strict=True):
        old.replace_all_uses_with(result)
    view.op.erase()
