"""Recomputation: the backward pass computes some forward ops again, so that their results die after the forward pass.

Chen et al., "Training deep nets with sublinear memory cost" (arXiv 1604.06174); in co-shard (SuperScaler, arXiv
2301.08984, section 2) it is what lets only one part of an activation live.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.partitioning.linalg_graph import RECOMPUTE, RETURN, graph_of
from mlirstitch.passes.partitioning.phases import FORWARD, phases_of
from mlirstitch.passes.structured import block_ops, defining_op, functions, has_uses, is_tensor


def mark_recomputed(function: ir.Operation, indices: Iterable[int]) -> None:
    """Mark ops of a function for ``dist-recompute``, by position in its body (``GraphOp.index``)."""
    ops = block_ops(function)
    with function.context:
        for index in indices:
            ops[index].attributes[RECOMPUTE] = ir.UnitAttr.get()


@register_pass
@dataclass(frozen=True)
class Recompute(Pass):
    """Compute forward ops marked ``dist.recompute`` a second time, for their readers in the backward pass.

    A copy stands in front of its first reader and is fed by copies of the marked ops that it reads; what is not marked
    it reads from the forward pass. Fills and constants go along, since they would live from one to the other. The
    copies carry the mark (so that common subexpressions do not undo them), the originals lose it; an original that the
    forward pass has no use for is gone. Which ops are forward follows from dependences: what the loss, the first result
    that is no new contents of an argument, is computed from.

    Refused: a mark on an op of the backward pass or the optimizer, on an op without a tensor result, and in a function
    that trains nothing.
    """

    NAME = "dist-recompute"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            if any(RECOMPUTE in child.attributes for child in block_ops(function)):
                _Recomputation(function).run()


class _Recomputation:
    def __init__(self, function: ir.Operation) -> None:
        self.ops = block_ops(function)
        self.marked = [op for op in self.ops if RECOMPUTE in op.attributes]
        graph = graph_of(function)
        phases = phases_of(graph)
        self.forward = {graph.ops[number].index for number in phases.ops(FORWARD)}
        self.in_graph = {op.index for op in graph.ops}
        self.trains = any(argument >= 0 for argument in graph.mutated)
        # Values, since the hash of an op changes with its operands.
        self.copied_with = {
            result for op in self.ops if op in self.marked or _is_fill(op) for result in op.results if is_tensor(result)
        }
        self.copies: dict[ir.Value, ir.Value] = {}

    def run(self) -> None:
        self._check()
        marked = {result for op in self.marked for result in op.results}
        for op in self.marked:
            del op.attributes[RECOMPUTE]
        for index, op in enumerate(self.ops):
            if index in self.in_graph and index not in self.forward:
                for position, value in enumerate(op.operands):
                    if value in marked:
                        op.operands[position] = self._copy(value, op)
        for op in reversed(self.marked):
            if not any(has_uses(result) for result in op.results):
                op.erase()

    def _check(self) -> None:
        for index, op in enumerate(self.ops):
            if op not in self.marked:
                continue
            if not self.trains:
                raise refusal(op, "the function trains nothing: there is no backward pass that computes this op again")
            if op.name == RETURN or index not in self.in_graph:
                raise refusal(op, "this op computes no tensor that could be computed again")
            if index not in self.forward:
                raise refusal(op, "this op is not of the forward pass", "mark ops that the loss is computed from")

    def _copy(self, value: ir.Value, reader: ir.Operation) -> ir.Value:
        """The second computation of a value; made in front of ``reader`` unless there is one."""
        if value in self.copies:
            return self.copies[value]
        source = defining_op(value)
        assert source is not None  # only results of ops are marked
        fed = {
            position: self._copy(operand, reader)
            for position, operand in enumerate(source.operands)
            if operand in self.copied_with
        }
        clone = source.clone(ip=ir.InsertionPoint(reader))
        for position, operand in fed.items():
            clone.operands[position] = operand
        with clone.context:
            clone.attributes[RECOMPUTE] = ir.UnitAttr.get()
        self.copies.update(zip(source.results, clone.results, strict=True))
        return self.copies[value]


def _is_fill(op: ir.Operation) -> bool:
    """A tensor of one scalar."""
    return op.name == "linalg.fill"
