"""Scans and scatters put into the imported IR, where the importer has no op for them.

``lifted_ops.py`` cuts such ops out of the aten graph: their operands become results of ``@main``, their result an
argument. Here, in the finished IR, each cut is closed by the ``linalg.generic`` that the op means (``passes/scan.py``,
``passes/scatter.py``). Needs neither torch nor torch_mlir.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mlir import ir
from mlir.dialects import arith
from mlir.dialects import math as math_ops

from mlirstitch.dialects.walk import walk
from mlirstitch.passes.structured import (
    PARALLEL,
    REDUCTION,
    block_ops,
    build_constant,
    build_empty,
    build_fill,
    build_generic,
    defining_op,
    element_type,
    shape_of,
)

SCAN, SCATTER = "scan", "scatter"
Combine = Callable[[ir.Value, ir.Value], ir.Value]


@dataclass(frozen=True)
class Cut:
    """One op cut out of the program.

    Attributes:
        kind: :data:`SCAN` or :data:`SCATTER`.
        dim: dim that is scanned, or of the destination that indices name.
        combine: "add", "mul", "max", "min" or (scans) "logaddexp".
        results: positions of ``@main``'s results that hold its operands: of a scan the tensor; of a scatter the
            destination, the indices and the updates.
        argument: position of the argument that stands for its result.
        source: ``file.py:12`` of the user, or "".
    """

    kind: str
    dim: int
    combine: str
    results: tuple[int, ...]
    argument: int
    source: str


def splice(function: ir.Operation, cuts: Sequence[Cut]) -> None:
    """Close every cut of ``function`` and take its argument and results off the signature."""
    if not cuts:
        return
    block = function.regions[0].blocks[0]
    end = block_ops(function)[-1]
    returned = list(end.operands)
    values: dict[int, ir.Value] = {}
    for cut in cuts:
        stand_in = block.arguments[cut.argument]
        # An operand may be the result of another cut, whose argument is gone by now.
        operands = [values.get(position, returned[position]) for position in cut.results]
        location = _location(cut, stand_in.location)
        with ir.InsertionPoint(end), location:
            build = _scan if cut.kind == SCAN else _scatter
            result = build(cut, operands, location)
        stand_in.replace_all_uses_with(result)
        for position, value in enumerate(returned):
            if value == stand_in:
                values[position] = result
    _sort(function)
    _shrink_signature(function, cuts)


def _location(cut: Cut, other: ir.Location) -> ir.Location:
    file, _, line = cut.source.rpartition(":")
    return ir.Location.file(file, int(line), 0) if file else other


def _scan(cut: Cut, operands: Sequence[ir.Value], location: ir.Location) -> ir.Value:
    (source,) = operands
    shape, element = shape_of(source), element_type(source)
    rank = len(shape)
    identity = ir.AffineMap.get_identity(rank)
    kept = [dim for dim in range(rank) if dim != cut.dim]
    total = ir.AffineMap.get(rank, 0, [ir.AffineDimExpr.get(dim) for dim in kept])
    # Eager starts from +0.0: a sum of -0.0 alone is +0.0.
    start = _neutral(cut.combine, element, location, signed_zero=False)
    inits = [build_empty(shape, element, location), build_fill(start, [shape[dim] for dim in kept], location)]
    combine = _combiner(cut.combine, element)

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        following = combine(arguments[2], arguments[0])
        return [following, following]

    iterators = [REDUCTION if dim == cut.dim else PARALLEL for dim in range(rank)]
    return build_generic([source], inits, [identity, identity, total], iterators, body, location).results[0]


def _scatter(cut: Cut, operands: Sequence[ir.Value], location: ir.Location) -> ir.Value:
    destination, index, updates = operands
    element = element_type(destination)
    rank = len(shape_of(destination))
    place = [ir.AffineDimExpr.get(dim) for dim in range(rank)]
    update = [ir.AffineDimExpr.get(rank if dim == cut.dim else dim) for dim in range(rank)]
    named = update if len(shape_of(index)) == rank and rank > 1 else [ir.AffineDimExpr.get(rank)]
    maps = [ir.AffineMap.get(rank + 1, 0, exprs) for exprs in (named, update, place)]
    neutral = _neutral(cut.combine, element, location)
    combine = _combiner(cut.combine, element)

    def body(arguments: Sequence[ir.Value]) -> Sequence[ir.Value]:
        i64 = ir.IntegerType.get_signless(64)
        loop = {"dim": ir.IntegerAttr.get(i64, cut.dim)}
        row = ir.Operation.create("linalg.index", [ir.IndexType.get()], attributes=loop).result
        hit = arith.cmpi(arith.CmpIPredicate.eq, arguments[0], arith.index_cast(arguments[0].type, row))
        return [combine(arguments[2], arith.select(hit, arguments[1], neutral))]

    iterators = [*(PARALLEL for _ in range(rank)), REDUCTION]
    return build_generic([index, updates], [destination], maps, iterators, body, location).result


def _combiner(name: str, element: ir.Type) -> Combine:
    if name == "logaddexp":
        return _log_add_exp
    floats: dict[str, Combine] = {
        "add": arith.addf,
        "mul": arith.mulf,
        "max": arith.maximumf,
        "min": arith.minimumf,
    }
    integers: dict[str, Combine] = {"add": arith.addi, "mul": arith.muli, "max": arith.maxsi, "min": arith.minsi}
    return (floats if isinstance(element, ir.FloatType) else integers)[name]


def _log_add_exp(a: ir.Value, b: ir.Value) -> ir.Value:
    """The form that ``lowering/kernel/scan_combiner.py`` knows."""
    larger, smaller = arith.maximumf(a, b), arith.minimumf(a, b)
    zero = arith.constant(a.type, 0.0)
    distance = arith.select(
        arith.cmpf(arith.CmpFPredicate.OEQ, a, b), zero, arith.subf(smaller, larger)
    )  # equal infinities have no difference
    return arith.addf(larger, math_ops.log1p(math_ops.exp(distance)))


def _neutral(name: str, element: ir.Type, location: ir.Location, signed_zero: bool = True) -> ir.Value:
    """The value that combining leaves unchanged; for sums -0.0 (``signed_zero``) leaves -0.0 unchanged too."""
    if isinstance(element, ir.FloatType):
        zero = -0.0 if signed_zero else 0.0
        number = {"add": zero, "mul": 1.0, "max": -math.inf, "min": math.inf, "logaddexp": -math.inf}[name]
        return build_constant(ir.FloatAttr.get(element, number), element, location)
    bits = ir.IntegerType(element).width
    whole = {"add": 0, "mul": 1, "max": -(1 << (bits - 1)), "min": (1 << (bits - 1)) - 1}[name]
    return build_constant(ir.IntegerAttr.get(element, whole), element, location)


def _sort(function: ir.Operation) -> None:
    """Bring the ops into an order in which values stand before their uses, as near to the present one as that goes."""
    ops = block_ops(function)
    body, end = ops[:-1], ops[-1]
    waiting = set(body)  # for look-ups only
    for first in body:
        stack = [first]
        while stack:
            op = stack[-1]
            if op not in waiting:
                stack.pop()
                continue
            missing = [source for source in _sources(op) if source in waiting and source != op]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            waiting.discard(op)
            op.move_before(end)


def _sources(op: ir.Operation) -> list[ir.Operation]:
    """The ops of the same block whose results an op or its regions use."""
    found: dict[ir.Operation, None] = {}
    for inner in walk(op):
        for value in inner.operands:
            source = defining_op(value)
            if source is not None and source.block == op.block:
                found[source] = None
    return list(found)


def _shrink_signature(function: ir.Operation, cuts: Sequence[Cut]) -> None:
    block = function.regions[0].blocks[0]
    end = block_ops(function)[-1]
    gone = {position for cut in cuts for position in cut.results}
    kept = [value for position, value in enumerate(end.operands) if position not in gone]
    with ir.InsertionPoint(end):
        ir.Operation.create(end.name, operands=kept, loc=end.location)
    end.erase()
    for position in sorted((cut.argument for cut in cuts), reverse=True):
        block.erase_argument(position)
    signature = ir.FunctionType.get([a.type for a in block.arguments], [value.type for value in kept])
    function.attributes["function_type"] = ir.TypeAttr.get(signature)
