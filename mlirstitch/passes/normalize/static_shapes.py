"""Fold casts to dynamic shapes into ``tensor.concat``, which upstream canonicalization leaves alone."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import block_ops, defining_op, element_type, functions, shape_of, tensor_type


@register_pass
@dataclass(frozen=True)
class StaticConcat(Pass):
    """Let a concat read static operands directly instead of their casts to dynamic shapes, and give it a static result.

    torch-mlir casts the operands of ``cat`` and ``roll`` to ``tensor<?x...>`` although it knows their shapes.
    """

    NAME = "normalize-static-concat"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in block_ops(function):
                if child.name == "tensor.concat":
                    _make_static(child)


def _make_static(op: ir.Operation) -> None:
    operands = [_before_cast(value) for value in op.operands]
    if not all(ir.RankedTensorType(value.type).has_static_shape for value in operands):
        return
    dim = ir.IntegerAttr(op.attributes["dim"]).value
    shape = list(shape_of(operands[0]))
    shape[dim] = sum(shape_of(value)[dim] for value in operands)
    type_ = tensor_type(shape, element_type(op.result))
    if operands == list(op.operands) and type_ == op.result.type:
        return
    with ir.InsertionPoint(op), op.location:
        value = ir.Operation.create(
            "tensor.concat", results=[type_], operands=operands, attributes={"dim": op.attributes["dim"]}
        ).result
        if type_ != op.result.type:
            value = ir.Operation.create("tensor.cast", results=[op.result.type], operands=[value]).result
    op.result.replace_all_uses_with(value)
    op.erase()


def _before_cast(value: ir.Value) -> ir.Value:
    op = defining_op(value)
    return op.operands[0] if op is not None and op.name == "tensor.cast" else value
