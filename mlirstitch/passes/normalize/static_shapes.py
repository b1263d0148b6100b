"""``tensor.concat`` as kernels can compute it: of static shapes, and of no more tensors than a kernel takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import block_ops, defining_op, element_type, functions, shape_of, tensor_type

MOST_OPERANDS = 64
"""A kernel takes a bounded number of tensors (``stitching/judge.py: Limits``); half of them are left for fusion."""


@register_pass
@dataclass(frozen=True)
class StaticConcat(Pass):
    """Let a concat read static operands directly instead of their casts to dynamic shapes, and give it a static result.

    torch-mlir casts the operands of ``cat`` and ``roll`` to ``tensor<?x...>`` although it knows their shapes. A concat
    of more than 64 tensors becomes a tree of smaller ones, because no kernel takes so many arguments.
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
    changed = operands != list(op.operands) or not ir.RankedTensorType(op.result.type).has_static_shape
    if not changed and len(operands) <= MOST_OPERANDS:
        return
    dim = ir.IntegerAttr(op.attributes["dim"]).value
    with ir.InsertionPoint(op), op.location:
        while len(operands) > MOST_OPERANDS:
            groups = [operands[i : i + MOST_OPERANDS] for i in range(0, len(operands), MOST_OPERANDS)]
            operands = [_concat(group, dim) if len(group) > 1 else group[0] for group in groups]
        value = _concat(operands, dim)
        if value.type != op.result.type:
            value = ir.Operation.create("tensor.cast", results=[op.result.type], operands=[value]).result
    op.result.replace_all_uses_with(value)
    op.erase()


def _concat(operands: Sequence[ir.Value], dim: int) -> ir.Value:
    """The concatenation along ``dim``, with its static type, at the current insertion point."""
    shape = list(shape_of(operands[0]))
    shape[dim] = sum(shape_of(value)[dim] for value in operands)
    return ir.Operation.create(
        "tensor.concat",
        results=[tensor_type(shape, element_type(operands[0]))],
        operands=list(operands),
        attributes={"dim": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)},
    ).result


def _before_cast(value: ir.Value) -> ir.Value:
    op = defining_op(value)
    return op.operands[0] if op is not None and op.name == "tensor.cast" else value
