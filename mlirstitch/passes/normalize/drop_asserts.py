"""Erase run-time assertions."""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.normalize.dead_code import erase_dead_scalars
from mlirstitch.passes.structured import block_ops, functions, structured


@register_pass
@dataclass(frozen=True)
class DropAsserts(Pass):
    """Erase ``cf.assert`` on the function level and in bodies, together with the comparisons that fed only it.

    Importers guard divisions (``1 / x``), indices and dynamic broadcasts with assertions that would kill the process
    where eager PyTorch returns inf or NaN. What the op computes stays as it is: ``1 / 0`` is inf, a negative index
    wraps if the body says so.
    """

    NAME = "normalize-drop-asserts"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            dropped = _drop(function.regions[0].blocks[0])
            for child in block_ops(function):
                view = structured(child)
                if view is not None and _drop(view.body):
                    erase_dead_scalars(view.body)
            if dropped:
                erase_dead_scalars(function.regions[0].blocks[0])


def _drop(block: ir.Block) -> bool:
    asserts = [op.operation for op in block.operations if op.operation.name == "cf.assert"]
    for op in asserts:
        op.erase()
    return bool(asserts)
