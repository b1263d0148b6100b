"""The canonical text of a module's clusters: what kernels are made from, and what line numbers in PTX refer to.

Source locations differ between two places that share a kernel, and paths differ between machines. So kernels are
emitted from a copy of the cluster functions that was printed without locations and read back under a fixed name:
``.loc`` directives then point at lines of that text, and equal clusters give equal bytes.
"""

from __future__ import annotations

from mlir import ir

from mlirstitch.dialects.bindings import print_op
from mlirstitch.options import KERNELS_TEXT_NAME
from mlirstitch.passes.structured import symbol_name

CANONICAL_NAME = KERNELS_TEXT_NAME
"""File name under which PTX refers to the canonical text."""


def canonical_text(module: ir.Operation) -> str:
    """The cluster functions of a stitched module, in the module's order, printed without locations."""
    with module.context:
        copy = module.clone().operation
        for name in list(copy.attributes):
            del copy.attributes[name]
        for op in list(copy.regions[0].blocks[0].operations):
            if symbol_name(op.operation) == "main":
                op.operation.erase()
        return print_op(copy)


def parse_canonical(text: str) -> ir.Operation:
    """The module of a canonical text; locations are its lines. Needs a current context.

    Its functions die with the module: keep it as long as they are used.
    """
    return ir.Operation.parse(text, source_name=CANONICAL_NAME).operation
