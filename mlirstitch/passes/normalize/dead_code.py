"""Dead code inside the body of a linalg op, where upstream dead-code elimination does not need to look."""

from __future__ import annotations

from mlir import ir

from mlirstitch.passes.structured import has_uses

PURE_DIALECTS = ("arith.", "math.")
PURE_OPS = frozenset(("linalg.index", "tensor.extract"))


def is_pure_scalar(op: ir.Operation) -> bool:
    """An op without side effects that yields scalars only; it may be copied, moved and erased."""
    if not (op.name.startswith(PURE_DIALECTS) or op.name in PURE_OPS):
        return False
    return all(not isinstance(result.type, ir.ShapedType) for result in op.results)


def erase_dead_scalars(block: ir.Block) -> None:
    """Erase pure scalar ops whose results nobody uses, users before producers."""
    for op in reversed([op.operation for op in block.operations]):
        if is_pure_scalar(op) and not any(has_uses(result) for result in op.results):
            op.erase()


def needed_ops(block: ir.Block, values: tuple[ir.Value, ...]) -> tuple[list[ir.Operation], set[ir.Value]]:
    """The ops of ``block`` that ``values`` depend on, in order, and every value these ops or ``values`` use."""
    used: set[ir.Value] = set(values)
    ops: list[ir.Operation] = []
    for op in reversed([op.operation for op in block.operations]):
        if any(result in used for result in op.results):
            ops.append(op)
            used.update(op.operands)
    return ops[::-1], used
