"""Statistics that an importer computes in f64 for narrower input are computed in the input's own terms, in f32."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from mlirstitch.dialects.locations import refusal, source_line
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.op_kind import VIEW_OPS
from mlirstitch.passes.structured import (
    REDUCTION,
    block_ops,
    build_constant,
    build_empty,
    build_fill,
    build_generic,
    constant_of,
    defining_op,
    element_type,
    functions,
    is_tensor,
    shape_of,
    splat_scalar,
    structured,
    tensor_type,
)

ARITHMETIC = frozenset(("arith.addf", "arith.subf", "arith.mulf", "arith.divf"))
SOURCES = frozenset(("linalg.fill", "tensor.empty", "arith.constant"))


@register_pass
@dataclass(frozen=True)
class ReplayF64Statistics(Pass):
    """Replay two-pass variances in f32 that were widened to f64 by the importer.

    torch-mlir computes var, layer_norm and group_norm of f32 input as ``extf, sum, divide, subtract, square, sum,
    divide, truncf``. The same ops over f32 are the shifted two-pass method (Chan, Golub, LeVeque 1983), stable for rows
    of 1e6 plus small, and GPUs run f64 at 1/2 to 1/64 of the rate. A set of connected f64 ops is replayed only if it

    - enters by ``extf`` from a narrower type and leaves by ``truncf`` only: f64 arguments and results stay f64,
    - holds nothing but sums, differences, products, quotients and reshapes,
    - sums squares of differences, that is, is a variance: a plain sum that the user widened stays wide,
    - widens where it computes, if it comes from Python: what the user widens on a line of its own stays wide.
    """

    NAME = "normalize-f64-statistics"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for component in _components(function):
                if _is_invented_variance(component):
                    _replay(component)


def _is_wide(value: ir.Value) -> bool:
    return is_tensor(value) and isinstance(element_type(value), ir.F64Type)


def _components(function: ir.Operation) -> list[list[ir.Operation]]:
    """Ops connected through f64 tensors, each set in program order; fills, constants and empties connect nothing."""
    parent: dict[ir.Operation, ir.Operation] = {}

    def root(op: ir.Operation) -> ir.Operation:
        while parent[op] != op:
            parent[op] = parent[parent[op]]
            op = parent[op]
        return op

    ops = [op for op in block_ops(function) if op.name not in SOURCES]
    for op in ops:
        if any(_is_wide(value) for value in (*op.operands, *op.results)):
            parent[op] = op
            for operand in op.operands:
                producer = defining_op(operand)
                if _is_wide(operand) and producer is not None and producer in parent:
                    parent[root(op)] = root(producer)
    groups: dict[ir.Operation, list[ir.Operation]] = {}
    for op in ops:
        if op in parent:
            groups.setdefault(root(op), []).append(op)
    return list(groups.values())


def _is_invented_variance(component: Sequence[ir.Operation]) -> bool:
    lines = {source_line(op.location) for op in component if not _only_widens(op)}
    for op in component:
        line = source_line(op.location)
        if _only_widens(op) and ".py:" in line and line not in lines:
            return False
    if not all(_is_replayable(op) for op in component):
        return False
    return any(_sums_squares_of_differences(op) for op in component)


def _only_widens(op: ir.Operation) -> bool:
    view = structured(op)
    return view is not None and [inner.name for inner in view.body_ops] == ["arith.extf"]


def _is_replayable(op: ir.Operation) -> bool:
    if any(_is_wide(value) and defining_op(value) is None for value in op.operands):
        return False  # a true f64 argument
    if op.name in VIEW_OPS:
        return True
    view = structured(op)
    if op.name != "linalg.generic" or view is None or len(op.results) != 1:
        return False
    if any(_is_wide(init) and splat_scalar(init) is None and not _is_empty(init) for init in view.inits):
        return False
    for operand in view.inputs:
        if not isinstance(element_type(operand), ir.F64Type | ir.F32Type | ir.F16Type | ir.BF16Type):
            return False
    return all(_is_replayable_scalar(inner) for inner in view.body_ops)


def _is_replayable_scalar(op: ir.Operation) -> bool:
    if op.name in ARITHMETIC or op.name == "arith.truncf":
        return all(
            constant_of(value) is not None or (producer := defining_op(value)) is None or producer.block == op.block
            for value in op.operands
        )
    return op.name == "arith.extf"


def _is_empty(value: ir.Value) -> bool:
    op = defining_op(value)
    return op is not None and op.name == "tensor.empty"


def _sums_squares_of_differences(op: ir.Operation) -> bool:
    """A sum over squares, whose base is a difference with a value that was itself reduced by a sum."""
    view = structured(op)
    if view is None or REDUCTION not in view.iterators or not any(i.name == "arith.addf" for i in view.body_ops):
        return False
    square = structured(producer) if (producer := defining_op(view.inputs[0])) is not None else None
    if square is None or [inner.name for inner in square.body_ops] != ["arith.mulf"]:
        return False
    factors = list(square.body_ops[0].operands)
    if any(defining_op(value) is not None for value in factors):
        return False
    bases = [square.operands[ir.BlockArgument(value).arg_number] for value in factors]
    if bases[0] != bases[1]:
        return False
    base = defining_op(bases[0])
    difference = structured(base) if base is not None else None
    return difference is not None and [inner.name for inner in difference.body_ops] == ["arith.subf"]


def _replay(component: Sequence[ir.Operation]) -> None:
    replaced: dict[ir.Value, ir.Value] = {}
    for op in component:
        with ir.InsertionPoint(op), op.location:
            new = _replay_view(op, replaced) if op.name in VIEW_OPS else _replay_generic(op, replaced)
        if _is_wide(op.result):
            replaced[op.result] = new
        else:
            op.result.replace_all_uses_with(new)
    for op in reversed(component):
        op.erase()


def _replay_view(op: ir.Operation, replaced: dict[ir.Value, ir.Value]) -> ir.Value:
    wide = ir.F32Type.get(op.context)
    attributes = {name: op.attributes[name] for name in op.attributes}
    return ir.Operation.create(
        op.name,
        results=[tensor_type(shape_of(op.result), wide)],
        operands=[replaced[op.operands[0]], *list(op.operands)[1:]],
        attributes=attributes,
    ).result


def _replay_generic(op: ir.Operation, replaced: dict[ir.Value, ir.Value]) -> ir.Value:
    view = structured(op)
    if view is None:
        raise refusal(op, "not a structured op")
    single = ir.F32Type.get(op.context)
    inputs = [replaced.get(value, value) for value in view.inputs]
    init = _replay_init(view.inits[0], single, op.location) if _is_wide(view.inits[0]) else view.inits[0]

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        mapping: dict[ir.Value, ir.Value] = dict(zip(view.body.arguments, arguments, strict=True))
        for inner in view.body_ops:
            operands = [_scalar(value, mapping, single) for value in inner.operands]
            mapping[inner.result] = _replay_scalar(inner, operands, single)
        return [_scalar(value, mapping, single) for value in view.yielded]

    return build_generic(inputs, [init], view.maps, view.iterators, body, op.location).result


def _replay_init(init: ir.Value, single: ir.Type, location: ir.Location) -> ir.Value:
    scalar = splat_scalar(init)
    if scalar is None:
        return build_empty(shape_of(init), single, location)
    constant = build_constant(ir.FloatAttr.get(single, ir.FloatAttr(scalar).value), single, location)
    return build_fill(constant, shape_of(init), location)


def _scalar(value: ir.Value, mapping: dict[ir.Value, ir.Value], single: ir.Type) -> ir.Value:
    if value in mapping:
        return mapping[value]
    attr = constant_of(value)
    if isinstance(attr, ir.FloatAttr) and isinstance(value.type, ir.F64Type):
        return arith.constant(single, ir.FloatAttr.get(single, attr.value))
    return value


def _replay_scalar(op: ir.Operation, operands: list[ir.Value], single: ir.Type) -> ir.Value:
    target = single if isinstance(op.result.type, ir.F64Type) else op.result.type
    if op.name in ("arith.extf", "arith.truncf"):
        return _convert(operands[0], target)
    create = {"arith.addf": arith.addf, "arith.subf": arith.subf, "arith.mulf": arith.mulf, "arith.divf": arith.divf}
    return create[op.name](*operands)


def _convert(value: ir.Value, target: ir.Type) -> ir.Value:
    if value.type == target:
        return value
    widths = (ir.FloatType(value.type).width, ir.FloatType(target).width)
    return arith.extf(target, value) if widths[0] < widths[1] else arith.truncf(target, value)
