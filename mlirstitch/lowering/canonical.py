"""The canonical text of a module's clusters: what kernels are made from, and what line numbers in PTX refer to.

Source locations differ between two places that share a kernel, and paths differ between machines. So kernels are
emitted from a copy of the cluster functions that was printed without locations and read back under a fixed name:
``.loc`` directives then point at lines of that text, and equal clusters give equal bytes.
"""

from __future__ import annotations

from collections.abc import Collection

from mlir import ir

from mlirstitch.lowering.attributes import symbol_name

CANONICAL_NAME = "kernels.stitched.mlir"
"""File name under which PTX refers to the canonical text."""


def canonical_text(module: ir.Operation, functions: Collection[str]) -> str:
    """The named functions of a stitched module, in the module's order, printed without locations."""
    with module.context:
        copy = module.clone()
        attributes = copy.operation.attributes
        for name in [named.name for named in attributes]:
            del attributes[name]
        for op in list(copy.regions[0].blocks[0].operations):
            if symbol_name(op.operation) not in functions:
                op.operation.erase()
        return str(copy.operation.get_asm(enable_debug_info=False))


def canonical_functions(text: str) -> dict[str, ir.Operation]:
    """Functions of a canonical text by name; their locations are its lines. Needs a current context.

    The returned operations belong to one module, which lives as long as any of them is referenced.
    """
    module = ir.Operation.parse(text, source_name=CANONICAL_NAME)
    return {symbol_name(op.operation): op.operation for op in module.regions[0].blocks[0].operations}
