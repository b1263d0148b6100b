"""Constants that ``@main`` returns are written by an op."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import (
    PARALLEL,
    block_ops,
    build_constant,
    build_empty,
    build_generic,
    defining_op,
    element_type,
    functions,
    has_uses,
    shape_of,
    splat_scalar,
)


@register_pass
@dataclass(frozen=True)
class WriteReturnedConstants(Pass):
    """Replace a constant, fill or ``tensor.empty`` that the function returns by a generic that writes it.

    A kernel has to write every result. Runs after the last canonicalization, which folds copies away. The contents of a
    returned ``tensor.empty`` are undefined; zeros are written.
    """

    NAME = "normalize-returned-constants"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            end = block_ops(function)[-1]
            for position, value in enumerate(end.operands):
                producer = defining_op(value)
                if producer is not None and producer.name in ("arith.constant", "linalg.fill", "tensor.empty"):
                    with ir.InsertionPoint(end):
                        end.operands[position] = _written(value, producer)
                    if not has_uses(producer.result):
                        producer.erase()


def _written(value: ir.Value, producer: ir.Operation) -> ir.Value:
    location, element, shape = producer.location, element_type(value), shape_of(value)
    identity = ir.AffineMap.get_identity(len(shape), value.context)
    init, kinds = build_empty(shape, element, location), [PARALLEL] * len(shape)
    if producer.name == "tensor.empty":
        attr = ir.FloatAttr.get(element, 0.0, location) if isinstance(element, ir.FloatType) else _zero(element)
    else:
        attr = splat_scalar(value)
    if attr is None:
        return build_generic([value], [init], [identity, identity], kinds, lambda a: [a[0]], location).result
    scalar = build_constant(attr, element, location)
    return build_generic([], [init], [identity], kinds, lambda _: [scalar], location).result


def _zero(element: ir.Type) -> ir.Attribute:
    return ir.IntegerAttr.get(element, 0)
