"""Walking over operations with a generator.

``op.walk(callback)`` turns exceptions of the callback into a RuntimeError without message; a generator does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mlir import ir


def walk(op: ir.Operation) -> Iterator[ir.Operation]:
    """``op`` and everything nested in it, outermost first, in textual order.

    The ops inside an op are listed before the first of them is handed out: an op may be erased or moved once the walk
    has gone past it and its regions. To rewrite freely, list the ops to rewrite first, and those alone: the bindings do
    not know of other handles to an op that is erased, and reading one may end the process.
    """
    pending = [iter([op])]  # a stack and no recursion: input may nest deeper than Python's stack
    while pending:
        current = next(pending[-1], None)
        if current is None:
            pending.pop()
            continue
        yield current
        inner = [child.operation for region in current.regions for block in region.blocks for child in block.operations]
        if inner:
            pending.append(iter(inner))


def nested(op: ir.Operation, names: tuple[str, ...]) -> list[ir.Operation]:
    """The ops found by stepping inwards along ``names``, one level each; ``any`` matches every op.

    ``nested(module, ("gpu.module", "gpu.func"))`` lists the functions of all gpu modules.
    """
    found = [op]
    for name in names:
        found = [
            child.operation
            for parent in found
            for region in parent.regions
            for block in region.blocks
            for child in block.operations
            if name in ("any", child.operation.name)
        ]
    return found
