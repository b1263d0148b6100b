"""Collapsed dims are expanded where ops between reshapes can have the dims themselves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith, linalg

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import VIEW_OPS
from mlirstitch.passes.partitioning.dim_factors import DimFactors
from mlirstitch.passes.partitioning.op_loops import is_unset
from mlirstitch.passes.partitioning.separate_fills import SeparateFills
from mlirstitch.passes.structured import (
    Structured,
    block_ops,
    build_constant,
    build_empty,
    build_generic,
    clone_into_body,
    constant_of,
    defining_op,
    element_type,
    functions,
    has_uses,
    is_tensor,
    shape_of,
    structured,
    tensor_type,
)


@register_pass
@dataclass(frozen=True)
class ExpandDims(Pass):
    """Give ops that work on collapsed dims a loop for each dim, so that each can be split by itself.

    An importer collapses ``[B, H, S, D]`` to ``[B*H, S, D]`` around a ``batch_matmul``, and ``[B, S, D]`` to
    ``[B*S, D]`` around a ``matmul``; then only B can be split. This pass turns such an op into a ``linalg.generic``
    over B, H, S, D with the same body and the same ``stitch.kind``; the reshapes around it cancel. Nothing is fused:
    there are as many ops as before, less reshapes.

    Left as they are: dims of arguments and results of the function; what convolutions, poolings, slices, concats and
    paddings work on; gathered tables; the dim that a scan, a scatter or an argmax walks along; dims that reshapes
    cut in ways that do not fit together. Begins with ``dist-separate-fills``: a fill that several ops share would tie
    their dims together.
    """

    NAME = "dist-expand-dims"

    def run(self, op: ir.Operation) -> None:
        SeparateFills().run(op)
        for function in functions(op):
            _Expansion(function).run()


class _Expansion:
    def __init__(self, function: ir.Operation) -> None:
        self.function = function
        self.factors = DimFactors(function)
        self.ops = block_ops(function)
        self.new: dict[ir.Value, ir.Value] = {}
        self.replaced: list[ir.Operation] = []

    def run(self) -> None:
        for op in self.ops:
            if op.name in VIEW_OPS:
                self._reshape(op)
            elif op.name == "arith.constant" and is_tensor(op.results[0]):
                self._constant(op)
            else:
                view = structured(op)
                if view is not None and self.factors.cuts_loops(op):
                    self._structured(view)
        for op in reversed(self.replaced):
            op.erase()
        for op in block_ops(self.function):
            if op.name == "tensor.empty" and not has_uses(op.results[0]):
                op.erase()

    def _replace(self, op: ir.Operation, results: Sequence[ir.Value]) -> None:
        for old, new in zip(op.results, results, strict=True):
            self.new[old] = new
            if old.type == new.type:  # readers that stay as they are
                old.replace_all_uses_with(new)
        self.replaced.append(op)

    def _reshape(self, op: ir.Operation) -> None:
        source, shape = self.new.get(op.operands[0], op.operands[0]), self.factors.shape(op.results[0])
        if source == op.operands[0] and shape == shape_of(op.results[0]):
            return
        with ir.InsertionPoint(op):
            self._replace(op, [reshaped(source, shape, op.location)])

    def _constant(self, op: ir.Operation) -> None:
        shape = self.factors.shape(op.results[0])
        value = constant_of(op.results[0])
        if shape == shape_of(op.results[0]) or not isinstance(value, ir.DenseElementsAttr):
            return
        type_ = tensor_type(shape, element_type(op.results[0]))
        with ir.InsertionPoint(op):
            splat = ir.DenseElementsAttr.get_splat(type_, value.get_splat_value())
            self._replace(op, [build_constant(splat, type_, op.location)])

    def _structured(self, view: Structured) -> None:
        op = view.op
        with ir.InsertionPoint(op), op.location:
            operands = [self._operand(view, number) for number in range(len(view.operands))]
            inputs, inits = operands[: len(view.inputs)], operands[len(view.inputs) :]
            if op.name == "linalg.fill":
                new = defining_op(linalg.fill(inputs[0], outs=inits))
                assert new is not None
            else:
                new = self._generic(view, inputs, inits)
            if "stitch.kind" in op.attributes:
                new.attributes["stitch.kind"] = op.attributes["stitch.kind"]
        self._replace(op, list(new.results))

    def _operand(self, view: Structured, number: int) -> ir.Value:
        """An operand in its new shape; one that nobody wrote is made anew, in the shape of the loops."""
        value = view.operands[number]
        if not is_tensor(value) or not is_unset(value):
            return self.new.get(value, value)
        shape: list[int] = []
        for size, expr in zip(shape_of(value), view.maps[number].results, strict=True):
            is_loop = isinstance(expr, ir.AffineDimExpr)
            shape += self.factors.of_loop(view.op, expr.position) if is_loop else [size]
        return build_empty(shape, element_type(value), view.op.location)

    def _generic(self, view: Structured, inputs: list[ir.Value], inits: list[ir.Value]) -> ir.Operation:
        factors = [self.factors.of_loop(view.op, loop) for loop in range(len(view.iterators))]
        first = [sum(len(f) for f in factors[:loop]) for loop in range(len(factors))]
        count = sum(len(f) for f in factors)
        iterators = [kind for kind, f in zip(view.iterators, factors, strict=True) for _ in f]

        def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
            mapping: dict[ir.Value, ir.Value] = dict(zip(view.body.arguments, arguments, strict=True))
            for inner in view.body_ops:
                if inner.name == "linalg.index":
                    loop = ir.IntegerAttr(inner.attributes["dim"]).value
                    mapping[inner.result] = _linear_index(first[loop], factors[loop])
                else:
                    clone_into_body([inner], mapping, ir.InsertionPoint.current)
            return [mapping.get(value, value) for value in view.yielded]

        maps = [_expanded_map(affine_map, first, factors, count) for affine_map in view.maps]
        return build_generic(inputs, inits, maps, iterators, body, view.op.location)


def _expanded_map(
    affine_map: ir.AffineMap, first: Sequence[int], factors: Sequence[Sequence[int]], count: int
) -> ir.AffineMap:
    """The map with every loop replaced by the loops of its factors; a loop inside an expression has one factor."""
    context = affine_map.context
    results: list[ir.AffineExpr] = []
    for expr in affine_map.results:
        if isinstance(expr, ir.AffineDimExpr):
            dims = range(first[expr.position], first[expr.position] + len(factors[expr.position]))
            results += [ir.AffineDimExpr.get(dim, context) for dim in dims]
        else:
            results.append(_renumbered(expr, first, context))
    return ir.AffineMap.get(count, 0, results, context)


def _renumbered(expr: ir.AffineExpr, first: Sequence[int], context: ir.Context) -> ir.AffineExpr:
    if isinstance(expr, ir.AffineDimExpr):
        return ir.AffineDimExpr.get(first[expr.position], context)
    if not isinstance(expr, ir.AffineBinaryExpr):
        return expr
    left, right = (_renumbered(side, first, context) for side in (expr.lhs, expr.rhs))
    for kind in (ir.AffineAddExpr, ir.AffineMulExpr, ir.AffineModExpr, ir.AffineFloorDivExpr):
        if isinstance(expr, kind):
            return kind.get(left, right)
    return ir.AffineCeilDivExpr.get(left, right)


def _linear_index(first: int, factors: Sequence[int]) -> ir.Value:
    """The index of a loop from those of its factors, row-major."""
    index = _index(first)
    for position, extent in enumerate(factors[1:], 1):
        scale = arith.constant(ir.IndexType.get(), extent)
        index = arith.addi(arith.muli(index, scale), _index(first + position))
    return index


def _index(loop: int) -> ir.Value:
    dim = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), loop)
    return ir.Operation.create("linalg.index", results=[ir.IndexType.get()], attributes={"dim": dim}).result


def reshaped(value: ir.Value, shape: Sequence[int], location: ir.Location) -> ir.Value:
    """A tensor in another shape of as many elements, by at most one collapse and one expand, at the insertion point."""
    source = shape_of(value)
    groups = _common_groups(source, shape)
    between = [math.prod(source[dim] for dim in left) for left, _ in groups]
    if len(between) < len(source):
        value = _create("tensor.collapse_shape", value, between, [left for left, _ in groups], location)
    if len(between) < len(shape):
        value = _create("tensor.expand_shape", value, shape, [right for _, right in groups], location)
    return value


def _common_groups(source: Sequence[int], target: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """The smallest groups of neighbouring dims of as many elements on both sides."""
    if 0 in source:
        return [(list(range(len(source))), list(range(len(target))))]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(source) and j < len(target):
        left, right = [i], [j]
        have, want = source[i], target[j]
        while have != want:
            if have < want:
                left.append(left[-1] + 1)
                have *= source[left[-1]]
            else:
                right.append(right[-1] + 1)
                want *= target[right[-1]]
        groups.append((left, right))
        i, j = left[-1] + 1, right[-1] + 1
    if groups:  # what is left are dims of one place
        groups[-1][0].extend(range(i, len(source)))
        groups[-1][1].extend(range(j, len(target)))
    return groups


def _create(
    name: str, value: ir.Value, shape: Sequence[int], groups: Sequence[Sequence[int]], location: ir.Location
) -> ir.Value:
    context = value.context
    i64 = ir.IntegerType.get_signless(64, context)
    entries = [ir.ArrayAttr.get([ir.IntegerAttr.get(i64, dim) for dim in group], context) for group in groups]
    attributes: dict[str, ir.Attribute] = {"reassociation": ir.ArrayAttr.get(entries, context)}
    if name == "tensor.expand_shape":
        attributes["static_output_shape"] = ir.DenseI64ArrayAttr.get(list(shape), context)
    type_ = tensor_type(shape, element_type(value))
    return ir.Operation.create(name, results=[type_], operands=[value], attributes=attributes, loc=location).result
