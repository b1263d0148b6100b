"""Classes of ops, as FusionStitching (arXiv 2009.10924, section 3) uses them, read off the op and its body.

| kind | ops |
|---|---|
| light | element-wise, cheap enough to compute twice |
| expensive | element-wise with a transcendental function, a division or a root |
| reduction | a dim is reduced, and no operand is used more than once per element |
| movement | elements change place only: transpose, broadcast, slice, concat, pad, gather |
| compute | contraction, convolution, pooling: every input element is used many times |
| scan | a dim is scanned: every element is combined with those before it (``passes/scan.py``) |
| scatter | updates are combined into the rows that indices name (``passes/scatter.py``) |
"""

from __future__ import annotations

import math
from enum import StrEnum

from mlir import ir
from mlir.dialects import linalg

from mlirstitch.passes.scan import scan_form
from mlirstitch.passes.scatter import scatter_form
from mlirstitch.passes.structured import REDUCTION, Structured, shape_of, structured


class Kind(StrEnum):
    """The value of ``stitch.kind``."""

    LIGHT = "light"
    EXPENSIVE = "expensive"
    REDUCTION = "reduction"
    MOVEMENT = "movement"
    COMPUTE = "compute"
    SCAN = "scan"
    SCATTER = "scatter"


CHEAP_MATH = frozenset(
    f"math.{name}"
    for name in (
        *("absf", "absi", "ceil", "clampf", "copysign", "floor", "fma", "isfinite", "isinf", "isnan", "isnormal"),
        *("round", "roundeven", "trunc"),
    )
)
"""Ops of the math dialect that are one or two instructions; all others count as expensive."""

EXPENSIVE_ARITH = frozenset(
    f"arith.{name}" for name in ("divf", "remf", "divsi", "divui", "remsi", "remui", "ceildivsi", "floordivsi")
)

MOVEMENT_OPS = frozenset(f"tensor.{name}" for name in ("concat", "extract_slice", "insert_slice", "pad"))
VIEW_OPS = frozenset(("tensor.expand_shape", "tensor.collapse_shape"))
CASTS = frozenset(
    f"arith.{name}" for name in ("bitcast", "extf", "extsi", "extui", "truncf", "trunci", "sitofp", "uitofp", "fptosi")
)

MATMUL_OPS = frozenset(("linalg.matmul", "linalg.batch_matmul"))


def is_convolution(op: ir.Operation) -> bool:
    """A named convolution (depthwise and grouped ones included)."""
    return op.name.startswith(("linalg.conv_", "linalg.depthwise_conv_"))


def is_pooling(op: ir.Operation) -> bool:
    """A named pooling."""
    return op.name.startswith("linalg.pooling_")


def is_contraction(op: ir.Operation) -> bool:
    """A sum of products, named or generic: matmul, batch_matmul, matvec, dot, vecmat, mmt4d, contract ..."""
    return op.name.startswith("linalg.") and linalg.isa_contraction_op(op)  # pyright: ignore[reportAttributeAccessIssue]


def is_named_compute(op: ir.Operation) -> bool:
    """An op that stays named on the canonical linalg level."""
    return op.name != "linalg.generic" and (is_convolution(op) or is_pooling(op) or is_contraction(op))


def op_kind(op: ir.Operation) -> Kind | None:
    """The kind of an op on tensors; None for views, casts, constants, ``tensor.empty`` and everything else."""
    if op.name in MOVEMENT_OPS:
        return Kind.MOVEMENT
    if op.name == "linalg.fill":
        return Kind.LIGHT
    view = structured(op)
    if view is None:
        return None
    if is_named_compute(op):
        return Kind.COMPUTE
    if REDUCTION in view.iterators:
        if scan_form(view) is not None:
            return Kind.SCAN
        if scatter_form(view) is not None:
            return Kind.SCATTER
        return Kind.COMPUTE if _reuses_every_operand(view) else Kind.REDUCTION
    return _element_wise_kind(view)


def _reuses_every_operand(view: Structured) -> bool:
    """The iteration space is larger than each operand, as in a contraction; a generic of one input never is."""
    if len(view.inputs) < 2:
        return False
    space = math.prod(view.loop_sizes())
    return all(space > math.prod(shape_of(value)) for value in view.operands)


def _element_wise_kind(view: Structured) -> Kind:
    names = [op.name for op in view.body_ops]
    if any(name in EXPENSIVE_ARITH or (name.startswith("math.") and name not in CHEAP_MATH) for name in names):
        return Kind.EXPENSIVE
    if "tensor.extract" in names:
        return Kind.MOVEMENT
    moved = set(view.body.arguments[: len(view.inputs)])
    if not names and all(value in moved for value in view.yielded):
        return Kind.MOVEMENT
    return Kind.LIGHT
