"""Building the ops between computations: slices, concatenations, sums of parts, neutral elements, device places."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects import dist
from mlirstitch.errors import PlanError
from mlirstitch.passes.partitioning.access import Box, shape_of
from mlirstitch.passes.partitioning.layout import DimSplit
from mlirstitch.passes.structured import build_constant, build_empty, build_generic, element_type, tensor_type


@dataclass(frozen=True)
class First:
    """The first position of a part: ``constant`` plus a step for every coordinate of the device along an axis."""

    constant: int
    steps: tuple[tuple[str, int], ...] = ()

    def minus(self, other: First) -> First:
        """The distance of two positions."""
        steps = dict(self.steps)
        for axis, step in other.steps:
            steps[axis] = steps.get(axis, 0) - step
        kept = tuple((axis, step) for axis, step in steps.items() if step)
        return First(self.constant - other.constant, kept)


def first_of(
    split: DimSplit, size: int, place: Mapping[str, int], sizes: Mapping[str, int], time: Mapping[str, int]
) -> First:
    """Where the part of a dim of ``size`` starts: as a formula that all devices share if all parts are alike, else the
    number for the one at ``place``."""
    parts = 1
    for axis in split.axes:
        parts *= sizes[axis]
    alike = split.axes and split.extent % parts == 0 and split.covers_once(size)
    if not alike:
        return First(split.range(size, place, sizes)[0])
    step = split.extent // parts * split.step
    constant = split.offset
    steps: list[tuple[str, int]] = []
    for axis in reversed(split.axes):
        if axis in time:
            constant += step * place[axis]
        elif sizes[axis] > 1:
            steps.append((axis, step))
        step *= sizes[axis]
    return First(constant, tuple(reversed(steps)))


def index_value(first: First, location: ir.Location) -> ir.Value:
    """A position as an ``index``, at the current insertion point."""
    index = ir.IndexType.get()
    total = build_constant(ir.IntegerAttr.get(index, first.constant), index, location)
    for axis, step in first.steps:
        place = dist.coordinate(axis, location)
        factor = build_constant(ir.IntegerAttr.get(index, step), index, location)
        moved = ir.Operation.create("arith.muli", [index], [place, factor], loc=location).result
        total = ir.Operation.create("arith.addi", [index], [total, moved], loc=location).result
    return total


def slice_at(value: ir.Value, firsts: Sequence[First], shape: Sequence[int], location: ir.Location) -> ir.Value:
    """The part of a tensor of ``shape`` that starts at some positions."""
    if tuple(shape) == tuple(ir.RankedTensorType(value.type).shape):
        return value
    if 0 in shape:  # an empty part begins nowhere
        return build_empty(shape, element_type(value), location)
    moving = [index_value(first, location) for first in firsts if first.steps]
    marker = ir.ShapedType.get_dynamic_size()
    return ir.Operation.create(
        "tensor.extract_slice",
        [tensor_type(shape, element_type(value))],
        [value, *moving],
        {
            "static_offsets": ir.DenseI64ArrayAttr.get([marker if f.steps else f.constant for f in firsts]),
            "static_sizes": ir.DenseI64ArrayAttr.get(list(shape)),
            "static_strides": ir.DenseI64ArrayAttr.get([1] * len(shape)),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, len(moving), 0, 0]),
        },
        loc=location,
    ).result


def take(value: ir.Value, box: Box, location: ir.Location) -> ir.Value:
    """A box of a tensor."""
    return slice_at(value, [First(low) for low, _ in box], shape_of(box), location)


def put(piece: ir.Value, into: ir.Value, box: Box, location: ir.Location) -> ir.Value:
    """A tensor with a box of it replaced."""
    if piece.type == into.type:
        return piece
    return ir.Operation.create(
        "tensor.insert_slice",
        [into.type],
        [piece, into],
        {
            "static_offsets": ir.DenseI64ArrayAttr.get([low for low, _ in box]),
            "static_sizes": ir.DenseI64ArrayAttr.get(list(shape_of(box))),
            "static_strides": ir.DenseI64ArrayAttr.get([1] * len(box)),
            "operandSegmentSizes": ir.DenseI32ArrayAttr.get([1, 1, 0, 0, 0]),
        },
        loc=location,
    ).result


def concat(pieces: Sequence[ir.Value], dim: int, location: ir.Location) -> ir.Value:
    """Tensors one behind the other; empty ones are left out."""
    shapes = [tuple(ir.RankedTensorType(piece.type).shape) for piece in pieces]
    filled = [piece for piece, shape in zip(pieces, shapes, strict=True) if shape[dim]]
    if len(filled) <= 1:
        return (filled or list(pieces))[0]
    shape = list(shapes[0])
    shape[dim] = sum(found[dim] for found in shapes)
    attributes = {"dim": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)}
    type_ = tensor_type(shape, element_type(pieces[0]))
    return ir.Operation.create("tensor.concat", [type_], filled, attributes, loc=location).result


_FLOAT = {"add": "arith.addf", "mul": "arith.mulf", "max": "arith.maximumf", "min": "arith.minimumf"}
_INTEGER = {
    "add": "arith.addi",
    "mul": "arith.muli",
    "max": "arith.maxsi",
    "min": "arith.minsi",
    "and": "arith.andi",
    "or": "arith.ori",
}


def combine(left: ir.Value, right: ir.Value, combiner: str, location: ir.Location) -> ir.Value:
    """Two partial values become one, element by element. Raises PlanError where the combiner has no such op."""
    element = element_type(left)
    table = _FLOAT if isinstance(element, ir.FloatType) else _INTEGER
    if combiner not in table:
        raise PlanError(f"partial values of type {element} are not combined by {combiner}")
    shape = tuple(ir.RankedTensorType(left.type).shape)
    maps = [ir.AffineMap.get_identity(len(shape), location.context)] * 3

    def body(arguments: Sequence[ir.Value]) -> list[ir.Value]:
        return [ir.Operation.create(table[combiner], [element], list(arguments[:2]), loc=location).result]

    kind = {"stitch.kind": ir.StringAttr.get("light")}
    init = build_empty(shape, element, location)
    return build_generic([left, right], [init], maps, ["parallel"] * len(shape), body, location, kind).result


def neutral(value: ir.Value, combiner: str, location: ir.Location) -> ir.Value:
    """A tensor of the shape of another, of elements that a combiner ignores. Raises PlanError if it has none."""
    element = element_type(value)
    numbers = {"add": 0, "mul": 1, "or": 0}
    if combiner not in numbers:
        raise PlanError(f"{combiner} needs no neutral element: every part keeps the value")
    if isinstance(element, ir.FloatType):
        number = -0.0 if combiner == "add" else float(numbers[combiner])
        attr: ir.Attribute = ir.FloatAttr.get(element, number)
    else:
        attr = ir.IntegerAttr.get(element, numbers[combiner])
    type_ = ir.RankedTensorType(value.type)
    return build_constant(ir.DenseElementsAttr.get_splat(type_, attr), type_, location)


def only_first(value: ir.Value, axes: Sequence[str], combiner: str, location: ir.Location) -> ir.Value:
    """The value on the first device along some axes, neutral elements on the others."""
    index, bit = ir.IndexType.get(), ir.IntegerType.get_signless(1)
    zero = build_constant(ir.IntegerAttr.get(index, 0), index, location)
    condition: ir.Value | None = None
    for axis in axes:
        predicate = {"predicate": ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 0)}
        place = dist.coordinate(axis, location)
        first = ir.Operation.create("arith.cmpi", [bit], [place, zero], predicate, loc=location).result
        condition = (
            first
            if condition is None
            else ir.Operation.create("arith.andi", [bit], [condition, first], loc=location).result
        )
    if condition is None:
        return value
    other = neutral(value, combiner, location)
    return ir.Operation.create("arith.select", [value.type], [condition, value, other], loc=location).result
