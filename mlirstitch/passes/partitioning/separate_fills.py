"""Every reader of a fill, constant or vector of positions gets its own, so that each can be split as its reader is."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import (
    block_ops,
    constant_of,
    defining_op,
    functions,
    has_uses,
    is_tensor,
    shape_of,
    structured,
)

_VIEWS = frozenset(("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"))


@register_pass
@dataclass(frozen=True)
class SeparateFills(Pass):
    """Copy fills, splat constants and vectors computed from nothing else, so that each reader has its own.

    Common subexpressions share them between tensors that have nothing but the shape in common: the zeros that
    activations of 64 tokens start from, and those of a weight with 64 rows; positions of rows and of columns. A
    partition plan splits the two differently. The copy takes along the vectors that it is computed from. Constants with
    data stay shared.
    """

    NAME = "dist-separate-fills"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            made: set[ir.Value] = set()  # values: the hash of an op changes with its operands
            for child in block_ops(function):
                if _is_made_of(child, made):
                    made.add(child.results[0])
            for child in block_ops(function):
                if len(child.results) == 1 and child.results[0] in made:
                    _separate(child, made)


def _is_made_of(op: ir.Operation, made: set[ir.Value]) -> bool:
    """An op that reads no tensor, or a vector (of one long dim) that is computed from such alone."""
    if len(op.results) != 1 or not is_tensor(op.results[0]):
        return False
    if op.name == "arith.constant":
        value = constant_of(op.results[0])
        return isinstance(value, ir.DenseElementsAttr) and value.is_splat
    read = _read(op)
    if read is None:
        return False
    is_vector = sum(extent > 1 for extent in shape_of(op.results[0])) <= 1
    return not read or (is_vector and all(value in made for value in read))


def _read(op: ir.Operation) -> list[ir.Value] | None:
    """The tensors whose contents an op reads, or None if that is not known of it."""
    if op.name in _VIEWS:
        return [op.operands[0]]
    view = structured(op)
    if view is None or any(inner.name == "tensor.extract" for inner in view.body_ops):
        return None
    arguments = zip(view.operands, view.body.arguments, strict=True)
    return [value for value, argument in arguments if is_tensor(value) and has_uses(argument)]


def _separate(op: ir.Operation, made: set[ir.Value]) -> None:
    """Give every reader but the first, those aside that are vectors themselves, a copy."""
    uses = [(use.owner.operation, use.operand_number) for use in op.results[0].uses]
    readers = [use for use in uses if len(use[0].results) != 1 or use[0].results[0] not in made]
    if len(uses) == len(readers):
        readers = readers[1:]  # the first one keeps the original
    for reader, operand in readers:
        copies: dict[ir.Value, ir.Value] = {}
        reader.operands[operand] = _copy(op, op, made, copies)


def _copy(op: ir.Operation, place: ir.Operation, made: set[ir.Value], copies: dict[ir.Value, ir.Value]) -> ir.Value:
    """Copy an op and what it is computed from, in front of ``place``; each once."""
    result = op.results[0]
    if result in copies:
        return copies[result]
    copied: dict[int, ir.Value] = {}
    for position, value in enumerate(op.operands):
        source = defining_op(value) if value in made else None
        if source is not None:
            copied[position] = _copy(source, place, made, copies)
    clone = op.clone(ip=ir.InsertionPoint(place))
    for position, value in copied.items():
        clone.operands[position] = value
    copies[result] = clone.results[0]
    return clone.results[0]
