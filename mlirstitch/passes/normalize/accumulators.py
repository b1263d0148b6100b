"""Sums and products of f16 and bf16 accumulate in f32 and are rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith

from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.normalize.dead_code import needed_ops
from mlirstitch.passes.op_kind import Kind, is_named_compute, op_kind
from mlirstitch.passes.scan import SCANNED, TOTAL, scan_form
from mlirstitch.passes.structured import (
    PARALLEL,
    REDUCTION,
    Structured,
    block_ops,
    build_constant,
    build_empty,
    build_fill,
    build_generic,
    clone_into_body,
    defining_op,
    element_type,
    functions,
    has_uses,
    shape_of,
    splat_scalar,
    structured,
    terminator,
    users,
)

ACCUMULATING = frozenset(("arith.addf", "arith.mulf"))


@register_pass
@dataclass(frozen=True)
class WidenAccumulators(Pass):
    """Give every reduction, scan, contraction, convolution and sum pooling of f16 or bf16 an f32 accumulator.

    The op's init and result become f32, and a generic that truncates follows. In a reduction only the combining
    addition or multiplication is widened: what the body computes before it rounds as the program says. In a
    contraction the product is taken in f32 too, where it is exact. Minima and maxima need no wider accumulator.
    """

    NAME = "normalize-accumulators"

    def run(self, op: ir.Operation) -> None:
        for function in functions(op):
            for child in block_ops(function):
                view = structured(child)
                if view is None or child.name == "linalg.fill" or not view.inits:
                    continue
                if not isinstance(element_type(view.inits[0]), ir.F16Type | ir.BF16Type):
                    continue
                if scan_form(view) is not None:
                    _widen_scan(view)
                    continue
                if len(view.inits) != 1:
                    continue
                if is_named_compute(child):
                    if _sums(view):
                        _widen_named(view)
                elif REDUCTION in view.iterators:
                    combiner = _combiner(view, 0)
                    if combiner is not None:
                        _widen_generic(view, combiner)


def _sums(view: Structured) -> bool:
    return any(op.name in ACCUMULATING for op in view.body_ops)


def _combiner(view: Structured, result: int) -> ir.Operation | None:
    """The addition or multiplication that joins a running value, if the body yields it and nothing else reads it."""
    running = view.running[result]
    readers = [user for user in users(running) if user.name != "linalg.yield"]
    if len(readers) != 1 or readers[0].name not in ACCUMULATING:
        return None
    return readers[0] if view.yielded[result] == readers[0].result else None


def _widen_scan(view: Structured) -> None:
    """The same scan with f32 results, rounded one by one."""
    combiner = _combiner(view, TOTAL)
    if combiner is None:
        return
    wide = ir.F32Type.get(view.op.context)
    running = view.running[TOTAL]
    position = 0 if combiner.operands[0] == running else 1
    term = combiner.operands[1 - position]
    ops, _ = needed_ops(view.body, (term,))
    inclusive = view.yielded[SCANNED] == view.yielded[TOTAL]

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        mapping: dict[ir.Value, ir.Value] = dict(zip(view.body.arguments, arguments, strict=True))
        clone_into_body(ops, mapping, ir.InsertionPoint.current)
        combine = arith.addf if combiner.name == "arith.addf" else arith.mulf
        following = combine(arguments[-1], arith.extf(wide, mapping.get(term, term)))
        return [following if inclusive else arguments[-1], following]

    location = view.op.location
    with ir.InsertionPoint(view.op), location:
        inits = [_widen_init(init, wide, location) for init in view.inits]
        new = build_generic(view.inputs, inits, view.maps, view.iterators, body, location)
    _truncate_results(view.op, tuple(new.results))


def _widen_generic(view: Structured, combiner: ir.Operation) -> None:
    wide = ir.F32Type.get(view.op.context)
    running = view.body.arguments[len(view.inputs)]
    position = 0 if combiner.operands[0] == running else 1
    term = combiner.operands[1 - position]
    kind = op_kind(view.op)
    exact, is_scatter = kind is Kind.COMPUTE, kind is Kind.SCATTER
    ops, _ = needed_ops(view.body, (term,))

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        mapping: dict[ir.Value, ir.Value] = dict(zip(view.body.arguments, arguments, strict=True))
        if exact and ops and ops[-1].name == "arith.mulf":
            clone_into_body(ops[:-1], mapping, ir.InsertionPoint.current)
            factors = [arith.extf(wide, mapping.get(v, v)) for v in ops[-1].operands]
            wide_term = arith.mulf(*factors)
        elif is_scatter:
            clone_into_body(ops[:-1], mapping, ir.InsertionPoint.current)
            hit, update, neutral = (mapping.get(v, v) for v in ops[-1].operands)
            wide_term = arith.select(hit, arith.extf(wide, update), arith.extf(wide, neutral))
        else:
            clone_into_body(ops, mapping, ir.InsertionPoint.current)
            wide_term = arith.extf(wide, mapping.get(term, term))
        combine = arith.addf if combiner.name == "arith.addf" else arith.mulf
        pair = (arguments[-1], wide_term) if position == 0 else (wide_term, arguments[-1])
        return [combine(*pair)]

    location = view.op.location
    with ir.InsertionPoint(view.op), location:
        init = _widen_init(view.inits[0], wide, location)
        new = build_generic(view.inputs, [init], view.maps, view.iterators, body, location)
    _truncate_results(view.op, (new.result,))


def _widen_named(view: Structured) -> None:
    """Same op with an f32 init; named ops cast their inputs to the init's type before they multiply."""
    op, location = view.op, view.op.location
    wide = ir.F32Type.get(op.context)
    with ir.InsertionPoint(op), location:
        init = _widen_init(view.inits[0], wide, location)
        attributes = {name: op.attributes[name] for name in op.attributes if name != "linalg.memoized_indexing_maps"}
        new = ir.Operation.create(
            op.name,
            results=[init.type],
            operands=[*view.inputs, init],
            attributes=attributes,
            regions=1,
            loc=location,
        )
        types = [element_type(value) for value in (*view.inputs, init)]
        block = new.regions[0].blocks.append(*types, arg_locs=[location] * len(types))
        with ir.InsertionPoint(block):
            _named_body(view, tuple(block.arguments), wide)
    _truncate_results(op, (new.result,))


def _named_body(view: Structured, arguments: tuple[ir.Value, ...], wide: ir.Type) -> None:
    """The named op's own body over the widened types: casts of the inputs, then the same arithmetic."""
    narrow = element_type(view.inits[0])
    mapping = {
        old: arith.extf(wide, new) if new.type == narrow and has_uses(old) else new
        for old, new in zip(view.body.arguments, arguments, strict=True)
    }
    for op in view.body_ops:
        clone = op.clone(ip=ir.InsertionPoint.current)
        for position, operand in enumerate(op.operands):
            if operand in mapping:
                clone.operands[position] = mapping[operand]
        for old, new in zip(op.results, clone.results, strict=True):
            if new.type == narrow:
                new.set_type(wide)
            mapping[old] = new
    yielded = [mapping[value] for value in terminator(view.body).operands]
    ir.Operation.create("linalg.yield", operands=yielded, loc=view.op.location)


def _widen_init(init: ir.Value, wide: ir.Type, location: ir.Location) -> ir.Value:
    shape = shape_of(init)
    scalar = splat_scalar(init)
    if isinstance(scalar, ir.FloatAttr):
        constant = build_constant(ir.FloatAttr.get(wide, scalar.value), wide, location)
        return build_fill(constant, shape, location)
    producer = defining_op(init)
    if producer is not None and producer.name == "tensor.empty":
        return build_empty(shape, wide, location)
    identity = ir.AffineMap.get_identity(len(shape), wide.context)
    return build_generic(
        [init],
        [build_empty(shape, wide, location)],
        [identity, identity],
        [PARALLEL] * len(shape),
        lambda arguments: [arith.extf(wide, arguments[0])],
        location,
    ).result


def _truncate_results(op: ir.Operation, wide: Sequence[ir.Value]) -> None:
    """Let whoever reads the results of ``op`` read the wide ones, rounded, and erase it."""
    location = op.location
    for result, value in zip(op.results, wide, strict=True):
        if not has_uses(result):
            continue
        narrow, shape = element_type(result), shape_of(result)
        identity = ir.AffineMap.get_identity(len(shape), narrow.context)
        with ir.InsertionPoint(op), location:
            rounded = build_generic(
                [value],
                [build_empty(shape, narrow, location)],
                [identity, identity],
                [PARALLEL] * len(shape),
                lambda arguments, narrow=narrow: [arith.truncf(narrow, arguments[0])],
                location,
            ).result
        result.replace_all_uses_with(rounded)
    op.erase()
