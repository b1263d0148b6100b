"""Write the kind of every op."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import op_kind
from mlirstitch.passes.structured import block_ops, functions


@register_pass
@dataclass(frozen=True)
class Classify(Pass):
    """Write ``stitch.kind`` on every linalg op and every tensor op that moves data (see ``passes/op_kind.py``)."""

    NAME = "normalize-classify"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in block_ops(function):
                kind = op_kind(child)
                if kind is not None:
                    child.attributes["stitch.kind"] = ir.StringAttr.get(kind.value, child.context)
