"""One op as a nest of loops over what it reads and writes: the data that every kind of op is brought into."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.passes.partitioning.access import Access, AccessMap, Affine, Whole
from mlirstitch.passes.structured import defining_op

CAPTURED = -1
"""``Read.operand`` of a tensor that the body reads by ``tensor.extract``."""
_VIEWS = frozenset(("tensor.expand_shape", "tensor.collapse_shape", "tensor.cast"))


@dataclass(frozen=True)
class Read:
    """A tensor that an op reads.

    Attributes:
        value: the tensor.
        access: where the loops read it.
        operand: its position among the operands of the op, or :data:`CAPTURED`.
    """

    value: ir.Value
    access: AccessMap
    operand: int


@dataclass(frozen=True)
class OpLoops:
    """An op as loops; the fields are those of ``graph.GraphOp`` of the same names.

    ``reads`` are in the order of ``GraphOp.inputs``: operands in order, inits last, then captured tensors in the order
    in which the body meets them. An operand whose contents do not matter (an unread init, ``tensor.empty``) is no read.
    """

    loops: tuple[int, ...]
    kinds: tuple[str, ...]
    reads: tuple[Read, ...]
    results: tuple[AccessMap, ...]
    combiner: str = ""
    inits: tuple[int, ...] = ()
    linear: tuple[tuple[int, ...], ...] = ()
    fixed: tuple[tuple[int, str], ...] = ()
    operations: int = field(default=0)  # scalar operations at one point of the loops

    @property
    def flops(self) -> int:
        """Scalar operations of the whole op."""
        return self.operations * math.prod(self.loops)


def is_unset(value: ir.Value) -> bool:
    """The contents of a tensor are those of ``tensor.empty``, which nobody may read."""
    op = defining_op(value)
    while op is not None and op.name in _VIEWS:
        op = defining_op(op.operands[0])
    return op is not None and op.name == "tensor.empty"


def affine(terms: Iterable[tuple[int, int]], constant: int, loops: Sequence[int]) -> Affine:
    """The access of a sum of loops (loop, step); loops of one place are left out where there are others."""
    steps: dict[int, int] = {}
    for loop, step in terms:
        steps[loop] = steps.get(loop, 0) + step
    kept = [(loop, step) for loop, step in sorted(steps.items()) if step]
    if len(kept) > 1:
        kept = [(loop, step) for loop, step in kept if loops[loop] != 1]
    return Affine(tuple(kept), constant)


def access_of(expr: ir.AffineExpr, loops: Sequence[int]) -> Access:
    """The access of one result of an indexing map; any place if it divides."""
    if isinstance(expr, ir.AffineDimExpr):
        return Affine(((expr.position, 1),))
    form = _linear_form(expr)
    return Whole() if form is None else affine(form[0].items(), form[1], loops)


def access_map_of(affine_map: ir.AffineMap, loops: Sequence[int]) -> AccessMap:
    """The access map of an indexing map."""
    return tuple(access_of(expr, loops) for expr in affine_map.results)


def row_major(dims: Sequence[int], loops: Sequence[int]) -> Affine:
    """The access of a dim that several loops number row-major."""
    terms: list[tuple[int, int]] = []
    step = 1
    for dim in reversed(dims):
        terms.append((dim, step))
        step *= loops[dim]
    return affine(terms, 0, loops)


def _linear_form(expr: ir.AffineExpr) -> tuple[dict[int, int], int] | None:
    if isinstance(expr, ir.AffineConstantExpr):
        return {}, expr.value
    if isinstance(expr, ir.AffineDimExpr):
        return {expr.position: 1}, 0
    if not isinstance(expr, ir.AffineAddExpr | ir.AffineMulExpr):
        return None
    left, right = _linear_form(expr.lhs), _linear_form(expr.rhs)
    if left is None or right is None:
        return None
    if isinstance(expr, ir.AffineAddExpr):
        terms = dict(left[0])
        for loop, step in right[0].items():
            terms[loop] = terms.get(loop, 0) + step
        return terms, left[1] + right[1]
    if left[0]:
        left, right = right, left
    return {loop: left[1] * step for loop, step in right[0].items()}, left[1] * right[1]
