"""Transposed operands of matmuls are read in place."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import MATMUL_OPS
from mlirstitch.passes.structured import Structured, block_ops, defining_op, functions, structured


@register_pass
@dataclass(frozen=True)
class FoldTransposes(Pass):
    """Let ``linalg.matmul`` and ``linalg.batch_matmul`` read a transposed operand through their indexing maps.

    ``x @ w.T`` becomes one matmul with the maps of its transposed form: no kernel and no library call has to copy the
    weight. The batch dim stays first. The transpose goes if nobody else reads it.
    """

    NAME = "normalize-fold-transposes"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in block_ops(function):
                view = structured(child) if child.name in MATMUL_OPS else None
                if view is not None:
                    _fold(view)


def _fold(view: Structured) -> None:
    maps = list(view.maps)
    for position, value in enumerate(view.inputs):
        producer = defining_op(value)
        turn = _permutation(producer) if producer is not None else None
        if producer is None or turn is None:
            continue
        results = list(maps[position].results)
        turned = [results[turn[i]] for i in range(len(turn))]
        if view.op.name == "linalg.batch_matmul" and turned[0] != results[0]:
            continue
        maps[position] = ir.AffineMap.get(maps[position].n_dims, 0, turned, view.op.context)
        view.op.operands[position] = producer.operands[0]
    if maps != list(view.maps):
        attributes = [ir.AffineMapAttr.get(m) for m in maps]
        view.op.attributes["indexing_maps"] = ir.ArrayAttr.get(attributes, view.op.context)


def _permutation(op: ir.Operation) -> list[int] | None:
    """For each dim of the input of a pure transpose, the dim of the result it becomes; None for other ops."""
    view = structured(op) if op.name == "linalg.generic" else None
    if view is None or len(view.inputs) != 1 or len(view.inits) != 1 or view.body_ops:
        return None
    if view.yielded != (view.body.arguments[0],) or not all(m.is_permutation for m in view.maps):
        return None
    source, target = ([ir.AffineDimExpr(expr).position for expr in m.results] for m in view.maps)
    return [target.index(dim) for dim in source]
