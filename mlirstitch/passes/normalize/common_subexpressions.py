"""Common subexpressions, in time that grows with the number of ops.

MLIR's own ``cse`` compares an op with regions to every one before it that has the same operands, which is quadratic for
thousands of element-wise ops on one tensor: its hash leaves regions out.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structural_key import structural_key
from mlirstitch.passes.structured import functions

Scope = dict[Hashable, ir.Operation]


@register_pass
@dataclass(frozen=True)
class MergeCommonSubexpressions(Pass):
    """Replace an op by an earlier one that computes the same: name, attributes, operands, types and regions are equal.

    Runs on functions of ops without side effects (what ``normalize-reject-unsupported`` lets pass), in the bodies of
    linalg ops too, where an op also makes way for one that stands before the linalg op. The first location stays.
    """

    NAME = "normalize-cse"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for region in function.regions:
                for block in region.blocks:
                    _merge(block, [])


def _merge(block: ir.Block, outer: list[Scope]) -> None:
    """Merge the ops of a block, after those of blocks inside; ``outer`` holds the ops before it, outermost first."""
    scopes = [*outer, {}]
    for op in [child.operation for child in block.operations]:
        for region in op.regions:
            for inner in region.blocks:
                _merge(inner, scopes)
        if not op.results:
            continue  # a terminator
        key = structural_key(op, lambda value: value)
        earlier = next((scope[key] for scope in scopes if key in scope), None)
        if earlier is None:
            scopes[-1][key] = op
            continue
        for result, same in zip(op.results, earlier.results, strict=True):
            result.replace_all_uses_with(same)
        op.erase()
