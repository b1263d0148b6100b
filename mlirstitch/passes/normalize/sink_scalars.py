"""Scalars computed on the function level move into the bodies that use them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.normalize.dead_code import erase_dead_scalars, is_pure_scalar
from mlirstitch.passes.structured import (
    PARALLEL,
    block_ops,
    build_generic,
    clone_into_body,
    constant_of,
    defining_op,
    functions,
    is_tensor,
    shape_of,
)


@register_pass
@dataclass(frozen=True)
class SinkScalars(Pass):
    """Clone scalar computations (``tensor.extract`` of a rank-0 tensor, arith, math) into each body that captures them.

    Afterwards no op on the function level yields a scalar except ``arith.constant``, so that clusters exchange tensors
    only. A fill with a computed scalar becomes a generic. A scalar used in any other place is refused.
    """

    NAME = "normalize-sink-scalars"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in block_ops(function):
                if child.name == "linalg.fill" and not _is_local(child.operands[0]):
                    child = _fill_as_generic(child)
                for region in child.regions:
                    for block in region.blocks:
                        _sink_into(block)
            erase_dead_scalars(function.regions[0].blocks[0])
            _refuse_remaining(function)


def _is_local(value: ir.Value) -> bool:
    """A tensor, or a scalar that is a constant."""
    return is_tensor(value) or constant_of(value) is not None


def _sink_into(block: ir.Block) -> None:
    """Clone, at the top of ``block``, every captured scalar that is not constant, with what it depends on."""
    inner = [op.operation for op in block.operations]
    captured = [
        value
        for op in inner
        for value in op.operands
        if not _is_local(value) and (producer := defining_op(value)) is not None and producer.block != block
    ]
    if not captured:
        return
    chain = _producers(captured)
    mapping: dict[ir.Value, ir.Value] = {}
    clone_into_body(chain, mapping, ir.InsertionPoint.at_block_begin(block))
    for op in inner:
        for position, operand in enumerate(op.operands):
            if operand in mapping:
                op.operands[position] = mapping[operand]


def _producers(values: Sequence[ir.Value]) -> list[ir.Operation]:
    """The scalar ops that ``values`` depend on, producers first."""
    order: dict[ir.Operation, None] = {}
    stack = [(value, False) for value in reversed(values)]
    while stack:
        value, is_expanded = stack.pop()
        producer = defining_op(value)
        if producer is None or _is_local(value) or producer in order:
            continue
        if not is_pure_scalar(producer):
            raise refusal(producer, "a scalar from this op is used in a body", "pass it as a rank-0 tensor")
        if is_expanded:
            order[producer] = None
        else:
            stack.append((value, True))
            stack.extend((operand, False) for operand in reversed(list(producer.operands)))
    return list(order)


def _fill_as_generic(op: ir.Operation) -> ir.Operation:
    scalar, init = op.operands
    rank = len(shape_of(init))
    identity = ir.AffineMap.get_identity(rank, op.context)
    with ir.InsertionPoint(op):
        new = build_generic([], [init], [identity], [PARALLEL] * rank, lambda _: [scalar], op.location)
    op.result.replace_all_uses_with(new.result)
    op.erase()
    return new


def _refuse_remaining(function: ir.Operation) -> None:
    for op in block_ops(function):
        if op.name == "arith.constant" or not op.results or all(is_tensor(result) for result in op.results):
            continue
        raise refusal(op, "a computed scalar is used outside of a body", "use a rank-0 tensor and linalg.generic")
