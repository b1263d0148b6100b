"""Slices of a reduction's result, as of a matrix-vector product, become reductions of slices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mlir import ir

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import VIEW_OPS, Kind, op_kind
from mlirstitch.passes.structured import (
    Structured,
    block_ops,
    build_empty,
    build_fill,
    build_generic,
    clone_into_body,
    defining_op,
    element_type,
    functions,
    has_uses,
    shape_of,
    structured,
    tensor_type,
    users,
)

MOST_OPS_BETWEEN = 64
"""Element-wise ops that are followed from a slice to the place where it meets another."""


@dataclass(frozen=True)
class _Range:
    """``size`` elements of a tensor's dim ``dim`` from ``offset`` on."""

    dim: int
    offset: int
    size: int


@register_pass
@dataclass(frozen=True)
class SliceProducts(Pass):
    """Take slices of matrix and bias instead of slices of a matrix-vector product, where the slices meet again.

    A recurrent cell multiplies its state by one matrix and cuts the result into gates, which it combines element by
    element. A kernel that reduces rows has one row at hand, but an element of the new state needs one of every gate.
    As products with slices of the matrix, which are read in place, the gates have rows of the same number, and the
    whole cell is one kernel.

    Slices move through element-wise ops and views that add or remove dims of one element. Every reader of what is
    sliced must be a slice along the same dim; the slices are disjoint, so that nothing is computed twice; and some
    element-wise op must read two of them, directly or through other element-wise ops. Only reductions are sliced
    (``normalize-memory-bound-products`` makes some), and what follows them; other contractions stay whole. Runs when
    common expressions have been found: the steps of a sequence read the same slices of the matrix in place, each for
    itself, and none of them stores one for the others.
    """

    NAME = "normalize-slice-products"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            # Consumers first: a slice that moved before an op may move before the op's producers as well.
            for child in reversed(block_ops(function)):
                if _may_be_sliced(child) and _meet(child.result):
                    _slice(child)
            for child in reversed(block_ops(function)):
                if child.name in ("linalg.fill", "tensor.empty") and not has_uses(child.result):
                    child.erase()


# What may be sliced -------------------------------------------------------------------------------------------------


def _may_be_sliced(op: ir.Operation) -> bool:
    """All readers are disjoint slices along one dim that the op can be cut along, and a reduction is cut with it."""
    if len(op.results) != 1 or not has_uses(op.result):
        return False
    ranges = [_range_of(user) for user in users(op.result)]
    kept = [part for part in ranges if part is not None]
    if len(kept) < len(ranges) or len({part.dim for part in kept}) > 1 or not _are_disjoint(kept):
        return False
    return _leads_to_reduction(op, kept[0].dim)


def _range_of(op: ir.Operation) -> _Range | None:
    """What an ``extract_slice`` takes, if it cuts one dim and keeps the rank; None for all other ops."""
    if op.name != "tensor.extract_slice" or len(op.operands) > 1:
        return None
    shape = shape_of(op.operands[0])
    offsets, sizes, steps = (
        list(ir.DenseI64ArrayAttr(op.attributes[f"static_{name}"])) for name in ("offsets", "sizes", "strides")
    )
    cut = [dim for dim, size in enumerate(sizes) if size != shape[dim]]
    if len(cut) != 1 or any(step != 1 for step in steps) or shape_of(op.result) != tuple(sizes):
        return None
    return _Range(cut[0], offsets[cut[0]], sizes[cut[0]])


def _are_disjoint(ranges: Sequence[_Range]) -> bool:
    ordered = sorted(ranges, key=lambda part: part.offset)
    return all(a.offset + a.size <= b.offset for a, b in pairwise(ordered))


def _leads_to_reduction(op: ir.Operation, dim: int) -> bool:
    """The op reduces, or reads what only it reads and an op that reduces makes; each can be cut along the dim."""
    if op.name in VIEW_OPS:
        inner = _dim_before_view(op, dim)
        return inner is not None and _private_leads(op, op.operands[0], inner)
    view = structured(op) if op.name == "linalg.generic" else None
    loop = _loop_of(view, dim) if view is not None else None
    if view is None or loop is None or "linalg.index" in (inner.name for inner in view.body_ops):
        return False
    if not view.is_parallel:
        return op_kind(op) is Kind.REDUCTION
    for value, affine_map in zip(view.inputs, view.maps, strict=False):
        position = _position(affine_map, loop)
        if position is not None and _private_leads(op, value, position):
            return True
    return False


def _private_leads(reader: ir.Operation, value: ir.Value, dim: int) -> bool:
    producer = defining_op(value)
    alone = all(user == reader for user in users(value))
    return producer is not None and alone and len(producer.results) == 1 and _leads_to_reduction(producer, dim)


def _loop_of(view: Structured, dim: int) -> int | None:
    """The loop that runs over a dim of the only result, if it indexes all operands by itself."""
    if len(view.inits) != 1:
        return None
    expr = view.init_maps[0].results[dim]
    if not isinstance(expr, ir.AffineDimExpr):
        return None
    loop = expr.position
    for affine_map in view.maps:
        used = [other for other in affine_map.results if not isinstance(other, ir.AffineConstantExpr)]
        if not all(isinstance(other, ir.AffineDimExpr) for other in used):
            return None
        if sum(ir.AffineDimExpr(other).position == loop for other in used) > 1:
            return None
    return loop


def _position(affine_map: ir.AffineMap, loop: int) -> int | None:
    """The dim of an operand that a loop runs over."""
    for position, expr in enumerate(affine_map.results):
        if isinstance(expr, ir.AffineDimExpr) and expr.position == loop:
            return position
    return None


def _dim_before_view(op: ir.Operation, dim: int) -> int | None:
    """The dim of a view's source that is its result's ``dim``, if the view joins it with dims of one element only."""
    groups = [
        [ir.IntegerAttr(member).value for member in ir.ArrayAttr(group)]
        for group in ir.ArrayAttr(op.attributes["reassociation"])
    ]
    source, result = shape_of(op.operands[0]), shape_of(op.result)
    if op.name == "tensor.collapse_shape":
        wide = [member for member in groups[dim] if source[member] != 1]
        return wide[0] if len(wide) == 1 else None
    (group,) = (number for number, members in enumerate(groups) if dim in members)
    return group if all(result[member] == 1 for member in groups[group] if member != dim) else None


def _meet(value: ir.Value) -> bool:
    """Some element-wise op depends on two of the slices that read a tensor, through element-wise ops alone."""
    seen: set[ir.Operation] = set()
    for user in users(value):
        below = set(_element_wise_below(user))
        if seen & below:
            return True
        seen |= below
    return False


def _element_wise_below(op: ir.Operation) -> Iterator[ir.Operation]:
    waiting, found = [op], {op}
    while waiting and len(found) <= MOST_OPS_BETWEEN:
        for result in waiting.pop(0).results:
            for user in users(result):
                view = structured(user) if user.name == "linalg.generic" else None
                if user not in found and (user.name in VIEW_OPS or (view is not None and view.is_parallel)):
                    found.add(user)
                    waiting.append(user)
                    yield user


# Slicing ------------------------------------------------------------------------------------------------------------


def _slice(op: ir.Operation) -> None:
    """Replace every slice of the op's result by the op on slices of its operands, and erase both."""
    for user in users(op.result):
        part = _range_of(user)
        if part is None:
            raise TypeError(f"{user.name} is no slice")
        location = ir.Location.fused([op.location, user.location], context=op.context)
        with ir.InsertionPoint(op), location:
            new = _cut_view(op, part, location) if op.name in VIEW_OPS else _cut_generic(op, part, location)
        user.result.replace_all_uses_with(new)
        user.erase()
    op.erase()


def _cut_view(op: ir.Operation, part: _Range, location: ir.Location) -> ir.Value:
    dim = _dim_before_view(op, part.dim)
    if dim is None:
        raise TypeError("the view mixes dims")
    source = _cut(op.operands[0], replace(part, dim=dim), location)
    shape = [part.size if number == part.dim else size for number, size in enumerate(shape_of(op.result))]
    attributes = {"reassociation": op.attributes["reassociation"]}
    if op.name == "tensor.expand_shape":
        attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(shape, op.context)
    return ir.Operation.create(
        op.name,
        results=[tensor_type(shape, element_type(op.result))],
        operands=[source],
        attributes=attributes,
        loc=location,
    ).result


def _cut_generic(op: ir.Operation, part: _Range, location: ir.Location) -> ir.Value:
    view = structured(op)
    loop = _loop_of(view, part.dim) if view is not None else None
    if view is None or loop is None:
        raise TypeError(f"{op.name} has no loop over the dim")
    operands: list[ir.Value] = []
    for value, affine_map in zip(view.operands, view.maps, strict=True):
        position = _position(affine_map, loop)
        operands.append(value if position is None else _cut(value, replace(part, dim=position), location))

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        mapping: dict[ir.Value, ir.Value] = dict(zip(view.body.arguments, arguments, strict=True))
        clone_into_body(view.body_ops, mapping, ir.InsertionPoint.current)
        return [mapping.get(value, value) for value in view.yielded]

    count = len(view.inputs)
    return build_generic(operands[:count], operands[count:], view.maps, view.iterators, body, location).result


def _cut(value: ir.Value, part: _Range, location: ir.Location) -> ir.Value:
    """A range of a tensor; of a filled or empty one, a smaller one of its sort."""
    shape = list(shape_of(value))
    shape[part.dim] = part.size
    producer = defining_op(value)
    if producer is not None and producer.name == "tensor.empty":
        return build_empty(shape, element_type(value), location)
    if producer is not None and producer.name == "linalg.fill":
        return build_fill(producer.operands[0], shape, location)
    rank = len(shape)
    static = {
        "offsets": [part.offset if dim == part.dim else 0 for dim in range(rank)],
        "sizes": shape,
        "strides": [1] * rank,
    }
    attributes: dict[str, ir.Attribute] = {
        f"static_{name}": ir.DenseI64ArrayAttr.get(numbers, location.context) for name, numbers in static.items()
    }
    attributes["operandSegmentSizes"] = ir.DenseI32ArrayAttr.get([1, 0, 0, 0], location.context)
    return ir.Operation.create(
        "tensor.extract_slice",
        results=[tensor_type(shape, element_type(value))],
        operands=[value],
        attributes=attributes,
        loc=location,
    ).result
