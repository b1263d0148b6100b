"""Linalg ops as loops: accesses from indexing maps, combiner and linearity from the body.

No name of a linalg op is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.partitioning.access import Access, AccessMap, Whole
from mlirstitch.passes.partitioning.body_terms import BodyTerms, Sum, Term, linear_sets
from mlirstitch.passes.partitioning.combiners import combiner_of, is_neutral
from mlirstitch.passes.partitioning.op_loops import CAPTURED, OpLoops, Read, access_map_of, affine, is_unset
from mlirstitch.passes.scan import scan_form
from mlirstitch.passes.structured import (
    REDUCTION,
    Structured,
    defining_op,
    has_uses,
    is_tensor,
    structured,
)

_NOT_COUNTED = frozenset(
    ("arith.constant", "arith.index_cast", "arith.extf", "arith.truncf", "arith.bitcast", "linalg.index")
)


def structured_loops(op: ir.Operation) -> OpLoops | None:
    """A linalg op with a body as loops, or None if it has none. Raises PassError for loops of unknown extent."""
    view = structured(op)
    if view is None:
        return None
    loops = view.loop_sizes()
    if -1 in loops:
        raise refusal(op, f"loop d{loops.index(-1)} indexes no operand by itself, so its extent is unknown")
    reads = _reads(view, loops)
    combiner = combiner_of(view) if REDUCTION in view.iterators else ""
    results = tuple(access_map_of(affine_map, loops) for affine_map in view.init_maps)
    first = len(view.inputs)
    inits = tuple(
        position
        for position, read in enumerate(reads)
        if combiner and read.operand >= first and not is_neutral(read.value, combiner)
    )
    return OpLoops(
        loops,
        view.iterators,
        reads,
        results,
        combiner,
        inits,
        _linear(view, reads, combiner, inits),
        _fixed(view, loops),
        sum(_is_counted(inner) for inner in view.body_ops),
    )


def _is_counted(op: ir.Operation) -> bool:
    return op.name.startswith(("arith.", "math.")) and op.name not in _NOT_COUNTED


def _reads(view: Structured, loops: Sequence[int]) -> tuple[Read, ...]:
    found = [
        Read(value, access_map_of(affine_map, loops), operand)
        for operand, (value, affine_map, argument) in enumerate(
            zip(view.operands, view.maps, view.body.arguments, strict=True)
        )
        if is_tensor(value) and has_uses(argument) and not is_unset(value)
    ]
    captured: dict[ir.Value, AccessMap] = {}
    for op in view.body_ops:
        if op.name == "tensor.extract" and not is_unset(op.operands[0]):
            tensor, *indices = op.operands
            access = tuple(_position(index, loops) for index in indices)
            before = captured.get(tensor, access)
            captured[tensor] = tuple(a if a == b else Whole() for a, b in zip(before, access, strict=True))
    return (*found, *(Read(tensor, access, CAPTURED) for tensor, access in captured.items()))


def _position(index: ir.Value, loops: Sequence[int]) -> Access:
    """Where a ``tensor.extract`` reads: a sum of loops where the index is one, else any place."""
    form = _index_form(index)
    return Whole() if form is None else affine(form[0], form[1], loops)


def _index_form(index: ir.Value) -> tuple[list[tuple[int, int]], int] | None:
    """The steps of the loops and the constant of an index, or None if it depends on data."""
    op = defining_op(index)
    if op is None:
        return None
    if op.name == "linalg.index":
        return [(ir.IntegerAttr(op.attributes["dim"]).value, 1)], 0
    if op.name == "arith.constant":
        return [], ir.IntegerAttr(op.attributes["value"]).value
    if op.name == "arith.index_cast":
        return _index_form(op.operands[0])
    if op.name not in ("arith.addi", "arith.subi", "arith.muli"):
        return None
    left, right = (_index_form(operand) for operand in op.operands)
    if left is None or right is None:
        return None
    if op.name == "arith.muli":
        if left[0] and right[0]:
            return None
        terms, factor = (left, right[1]) if left[0] else (right, left[1])
        return [(loop, step * factor) for loop, step in terms[0]], terms[1] * factor
    sign = -1 if op.name == "arith.subi" else 1
    return [*left[0], *((loop, sign * step) for loop, step in right[0])], left[1] + sign * right[1]


def _linear(
    view: Structured, reads: Sequence[Read], combiner: str, inits: Sequence[int]
) -> tuple[tuple[int, ...], ...]:
    """The sets of ``GraphOp.linear``. An init in ``inits``, which one part alone adds, may be partial or not."""
    if REDUCTION in view.iterators and combiner != "add":
        return ()
    sets = [
        _linear_sets(view, reads, frozenset(range(len(view.inputs), len(view.operands))) if combiner else frozenset())
    ]
    if inits:
        sets.append(_linear_sets(view, reads, frozenset()))
    return tuple(dict.fromkeys(found for group in sets for found in group))


def _linear_sets(view: Structured, reads: Sequence[Read], zero: frozenset[int]) -> tuple[tuple[int, ...], ...]:
    """Linear sets where the operands ``zero`` hold zeros."""
    arguments = list(view.body.arguments)
    known: dict[ir.Value, Sum] = {arguments[operand]: () for operand in zero}
    captured: dict[ir.Value, int] = {}
    for position, read in enumerate(reads):
        if read.operand == CAPTURED:
            captured[read.value] = position
        elif read.operand not in zero:
            known[arguments[read.operand]] = (Term(frozenset((position,))),)
    body = BodyTerms(known, captured)
    return linear_sets([term for value in view.yielded for term in body.of(value)])


def _fixed(view: Structured, loops: Sequence[int]) -> tuple[tuple[int, str], ...]:
    scan = scan_form(view) if REDUCTION in view.iterators and len(view.inits) == 2 else None
    if scan is None:
        return ()
    return ((scan.dim, "a scan runs along it, each element after the one before"),)
