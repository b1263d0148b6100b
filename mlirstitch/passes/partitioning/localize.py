"""One op of the function as one device computes it: a clone with local shapes, for a part of the op's loops.

Which part of each operand the device has is known (its box); where the op addressed the whole tensor, the clone
addresses the box. Only offsets change: of windows and slices, of ``linalg.index``, of paddings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.walk import walk
from mlirstitch.passes.partitioning.access import Affine, Box, Range, image, shape_of
from mlirstitch.passes.partitioning.linalg_graph import loops_of
from mlirstitch.passes.partitioning.op_loops import CAPTURED, Read, access_map_of
from mlirstitch.passes.structured import (
    Structured,
    build_constant,
    build_empty,
    defining_op,
    element_type,
    is_tensor,
    structured,
    tensor_type,
)

Offset = Callable[[int], ir.Value]
"""Builds the first place of a loop's part, as an ``index``, at the current insertion point."""


@dataclass(frozen=True)
class LocalPart:
    """The part of an op that one device computes at one place in time.

    Attributes:
        loops: range of every loop.
        operands: what the device has of every input of the graph's op, in their order.
        boxes: which part of the tensor each of them is.
        results: the part of every result.
        offset: see :data:`Offset`.
        start: builds the first position of an operand's box along a dim, likewise; None if it is 0 everywhere.
        scalar: gives a scalar of the whole function as one of the device's, at the current insertion point.
        moving: loops whose first place differs between the devices that share the program.
    """

    loops: tuple[Range, ...]
    operands: tuple[ir.Value, ...]
    boxes: tuple[Box, ...]
    results: tuple[Box, ...]
    offset: Offset
    start: Callable[[int, int], ir.Value | None]
    scalar: Callable[[ir.Value], ir.Value]
    moving: frozenset[int] = frozenset()


def localize(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    """Build the part of ``op`` at the current insertion point and return its results.

    Raises:
        PassError: the part needs another indexing map, and the op is named, so that it cannot have one.
    """
    rule = _RULES.get(op.name)
    return rule(op, part) if rule is not None else _structured(op, part)


def _reads(op: ir.Operation) -> tuple[Read, ...]:
    found = loops_of(op)
    if found is None:
        raise refusal(op, "this op computes no tensor that is split")
    return found.reads


def _result_type(value: ir.Value, box: Box) -> ir.RankedTensorType:
    return tensor_type(shape_of(box), element_type(value))


def _clone(op: ir.Operation, part: LocalPart, operands: Mapping[int, ir.Value]) -> ir.Operation:
    """A clone at the current insertion point with some operands replaced and local result types."""
    clone = op.operation.clone(ip=ir.InsertionPoint.current)
    for position, value in operands.items():
        clone.operands[position] = value
    for result, box in zip(clone.results, part.results, strict=True):
        result.set_type(_result_type(result, box))
    function = op.operation.parent
    with ir.InsertionPoint(clone):
        for inner in walk(clone):
            for position, value in enumerate(inner.operands):
                owner = defining_op(value)
                if owner is not None and not is_tensor(value) and owner.parent == function:
                    inner.operands[position] = part.scalar(value)
    return clone


# linalg ops with a body


def _structured(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    view = structured(op)
    if view is None:
        raise refusal(op, "there is no rule for a part of this op")
    reads = _reads(op)
    given = {read.operand: position for position, read in enumerate(reads) if read.operand != CAPTURED}
    operands = {position: part.operands[number] for position, number in given.items()}
    first = len(view.inputs)
    for position, value in enumerate(view.operands):
        if position not in operands and is_tensor(value):
            box = part.results[position - first] if position >= first else _unread_box(view, position, part)
            operands[position] = build_empty(shape_of(box), element_type(value), op.location)
    clone = _clone(op, part, operands)
    _shift_maps(op, clone, view, reads, part)
    _shift_indices(clone, part)
    _replace_captured(clone, reads, part)
    return list(clone.results)


def _unread_box(view: Structured, position: int, part: LocalPart) -> Box:
    """The part of an operand that gives only its shape (the window of a pooling)."""
    value = view.operands[position]
    shape = tuple(ir.RankedTensorType(value.type).shape)
    access = access_map_of(view.maps[position], view.loop_sizes())
    return image(access, shape, part.loops)


def _shift_maps(
    op: ir.Operation, clone: ir.Operation, view: Structured, reads: Sequence[Read], part: LocalPart
) -> None:
    """Constants of the indexing maps, where a box does not start at the image of the part's first place."""
    maps = list(view.maps)
    changed = False
    for number, read in enumerate(reads):
        if read.operand == CAPTURED:
            continue
        constants = [
            _shift(access, box[0], part.loops) if isinstance(access, Affine) else 0
            for access, box in zip(read.access, part.boxes[number], strict=True)
        ]
        if any(constants):
            changed = True
            results = [
                ir.AffineExpr.get_add(expr, ir.AffineExpr.get_constant(constant)) if constant else expr
                for expr, constant in zip(maps[read.operand].results, constants, strict=True)
            ]
            maps[read.operand] = ir.AffineMap.get(maps[read.operand].n_dims, 0, results)
    if not changed:
        return
    if op.name != "linalg.generic":
        raise refusal(op, "a part of it starts in the middle of a window", "generalize the op before it is split")
    clone.attributes["indexing_maps"] = ir.ArrayAttr.get([ir.AffineMapAttr.get(m) for m in maps])


def _shift(access: Affine, low: int, loops: Sequence[Range]) -> int:
    """What to add to a position so that the part's loops, counted from 0, address a box that starts at ``low``."""
    return sum(step * loops[loop][0] for loop, step in access.terms) - low


def _shift_indices(clone: ir.Operation, part: LocalPart) -> None:
    """``linalg.index`` counts from the part's first place on."""
    body = clone.regions[0].blocks[0]
    for inner in [o.operation for o in body.operations if o.operation.name == "linalg.index"]:
        loop = ir.IntegerAttr(inner.attributes["dim"]).value
        if part.loops[loop][0] == 0 and loop not in part.moving:
            continue
        with ir.InsertionPoint(clone):
            offset = part.offset(loop)
        with ir.InsertionPoint.after(inner):
            shifted = ir.Operation.create(
                "arith.addi", results=[inner.result.type], operands=[inner.result, offset], loc=inner.location
            )
        inner.result.replace_all_uses_except(shifted.result, shifted)


def _replace_captured(clone: ir.Operation, reads: Sequence[Read], part: LocalPart) -> None:
    """Tensors that the body reads by ``tensor.extract``: what the device has of them, addressed from its box."""
    captured = {read.value: number for number, read in enumerate(reads) if read.operand == CAPTURED}
    if not captured:
        return
    for inner in [o.operation for o in clone.regions[0].blocks[0].operations]:
        if inner.name != "tensor.extract" or inner.operands[0] not in captured:
            continue
        number = captured[inner.operands[0]]
        for dim in range(len(part.boxes[number])):
            with ir.InsertionPoint(clone):
                start = part.start(number, dim)
            if start is not None:
                with ir.InsertionPoint(inner):
                    moved = ir.Operation.create(
                        "arith.subi", [start.type], [inner.operands[1 + dim], start], loc=inner.location
                    )
                inner.operands[1 + dim] = moved.result
        inner.operands[0] = part.operands[number]


# tensor ops


def _constant(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    attr = op.attributes["value"]
    type_ = _result_type(op.result, part.results[0])
    if not isinstance(attr, ir.DenseElementsAttr):
        raise refusal(op, "its elements are not at hand, so that no part of them can be taken")
    if attr.is_splat:
        local = ir.DenseElementsAttr.get_splat(type_, attr.get_splat_value())
    else:
        local = _dense_part(attr, part.results[0], type_)
    return [build_constant(local, type_, op.location)]


def _dense_part(attr: ir.DenseElementsAttr, box: Box, type_: ir.RankedTensorType) -> ir.Attribute:
    shape = tuple(ir.RankedTensorType(attr.type).shape)
    window = tuple(slice(low, high) for low, high in box)
    numbers = np.arange(int(np.prod(shape, dtype=np.int64))).reshape(shape)[window].reshape(-1)
    elements = list(attr)  # pyright: ignore[reportArgumentType]  the stub lacks iteration
    chosen = [elements[int(number)] for number in numbers]
    element = type_.element_type
    if isinstance(element, ir.FloatType):
        return ir.DenseElementsAttr.get([ir.FloatAttr.get(element, value) for value in chosen], type_)
    return ir.DenseElementsAttr.get([ir.IntegerAttr.get(element, int(value)) for value in chosen], type_)


def _view(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    clone = _clone(op, part, {0: part.operands[0]})
    if op.name == "tensor.expand_shape":
        clone.attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(list(shape_of(part.results[0])))
    return [clone.result]


def _extract_slice(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    access = _reads(op)[0].access
    offsets: list[int] = []
    sizes: list[int] = []
    for place, (low, _) in zip(access, part.boxes[0], strict=True):
        if not isinstance(place, Affine):
            raise refusal(op, "a slice whose place depends on data")
        offsets.append(place.constant + sum(step * part.loops[loop][0] for loop, step in place.terms) - low)
        sizes.append(_extent(part.loops[place.terms[0][0]]) if place.terms else 1)
    empty = 0 in shape_of(part.results[0])
    clone = _clone(op, part, {0: part.operands[0]})
    clone.attributes["static_offsets"] = ir.DenseI64ArrayAttr.get([0] * len(offsets) if empty else offsets)
    clone.attributes["static_sizes"] = ir.DenseI64ArrayAttr.get(sizes)
    return [clone.result]


def _extent(loop: Range) -> int:
    return max(0, loop[1] - loop[0])


def _insert_slice(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    reads = _reads(op)
    given = {read.operand: number for number, read in enumerate(reads)}
    result = part.results[0]
    element = element_type(op.result)
    destination = part.operands[given[1]] if 1 in given else build_empty(shape_of(result), element, op.location)
    if 0 not in given:
        return [destination]
    box = part.boxes[given[0]]
    if any(low >= high for low, high in box):
        return [destination]
    sizes = list(ir.DenseI64ArrayAttr(op.attributes["static_sizes"]))
    offsets = list(ir.DenseI64ArrayAttr(op.attributes["static_offsets"]))
    boxes = iter(zip(reads[given[0]].access, box, strict=True))
    rank = len(ir.RankedTensorType(op.operands[0].type).shape)
    kept = _kept(sizes, tuple(ir.RankedTensorType(op.operands[0].type).shape))
    for dim in range(len(sizes)):
        start = offsets[dim]
        if dim in kept and rank:
            _, (low, high) = next(boxes)
            offsets[dim], sizes[dim] = start + low - part.loops[dim][0], high - low
        else:
            offsets[dim] = start - part.loops[dim][0]
    clone = _clone(op, part, {0: part.operands[given[0]], 1: destination})
    clone.attributes["static_offsets"] = ir.DenseI64ArrayAttr.get(offsets)
    clone.attributes["static_sizes"] = ir.DenseI64ArrayAttr.get(sizes)
    return [clone.result]


def _kept(sizes: Sequence[int], shape: Sequence[int]) -> frozenset[int]:
    """The dims of a window that a tensor of ``shape`` has; the others have one place."""
    found: list[int] = []
    for dim, size in enumerate(sizes):
        if len(found) < len(shape) and size == shape[len(found)]:
            found.append(dim)
    return frozenset(found)


def _concat(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    pieces = [
        value
        for value, box in zip(part.operands, part.boxes, strict=True)
        if all(low < high for low, high in box) or not box
    ]
    type_ = _result_type(op.result, part.results[0])
    if not pieces:
        return [build_empty(shape_of(part.results[0]), type_.element_type, op.location)]
    if len(pieces) == 1:
        return pieces
    return [
        ir.Operation.create(
            "tensor.concat", results=[type_], operands=pieces, attributes={"dim": op.attributes["dim"]}, loc=op.location
        ).result
    ]


def _pad(op: ir.Operation, part: LocalPart) -> list[ir.Value]:
    before = list(ir.DenseI64ArrayAttr(op.attributes["static_low"]))
    low: list[int] = []
    high: list[int] = []
    empty = any(first >= end for first, end in part.boxes[0])
    for dim, ((first, end), pad) in enumerate(zip(part.boxes[0], before, strict=True)):
        extent = _extent(part.loops[dim])
        start = extent if empty and first >= end else first - (part.loops[dim][0] - pad)
        low.append(start)
        high.append(extent - start - max(0, end - first))
    clone = _clone(op, part, {0: part.operands[0]})
    clone.attributes["static_low"] = ir.DenseI64ArrayAttr.get(low)
    clone.attributes["static_high"] = ir.DenseI64ArrayAttr.get(high)
    return [clone.result]


_RULES: dict[str, Callable[[ir.Operation, LocalPart], list[ir.Value]]] = {
    "arith.constant": _constant,
    "tensor.cast": _view,
    "tensor.collapse_shape": _view,
    "tensor.concat": _concat,
    "tensor.expand_shape": _view,
    "tensor.extract_slice": _extract_slice,
    "tensor.insert_slice": _insert_slice,
    "tensor.pad": _pad,
}
