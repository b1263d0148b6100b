"""A cluster that a library computes: which routine, which operands, which attributes.

The cluster function holds one contraction or convolution over (reshapes of) its arguments, into a destination that is
zero or was never written. The routine is the linalg op's name; its attributes are what docs/manifest.md says.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.op_kind import MATMUL_OPS
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import block_ops, defining_op, shape_of, splat_scalar, structured, symbol_name

_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape")
_PASSIVE = ("arith.constant", "tensor.empty", "linalg.fill", "func.return", *_VIEWS)


@dataclass(frozen=True)
class LibraryCall:
    """One library call.

    Attributes:
        routine: name of the linalg op without its dialect.
        operands: number of the cluster's argument for each input of the routine, in the routine's order.
        shapes: shape in which the routine sees each input, then its result.
        attributes: ``strides``, ``dilations``, ``indexing_maps`` as lists of integers or attributes of linalg.
    """

    routine: str
    operands: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, ir.Attribute]


def library_call(function: ir.Operation) -> LibraryCall:
    """What a cluster function with ``stitch.library`` asks for. Raises :class:`PassError` if no library can do it."""
    active = [op for op in block_ops(function) if op.name not in _PASSIVE]
    routine = ir.StringAttr(function.attributes["stitch.library"]).value
    if len(active) != 1 or active[0].name != f"linalg.{routine}":
        names = ", ".join(op.name for op in active) or "nothing"
        raise refusal(
            function,
            f"@{symbol_name(function)} is given to the library as {routine} but holds {names}",
            hint="only a single linalg op can be a library call; compile with library=none",
        )
    op = active[0]
    cluster = Cluster.of_function(function)
    inputs, init = list(op.operands[: len(op.operands) - 1]), op.operands[len(op.operands) - 1]
    if not _is_zero_or_unwritten(init):
        raise refusal(op, "a library call cannot add to a tensor", hint="compile with library=none")
    if len(cluster.outputs) != 1 or _source(cluster.outputs[0]) != op.results[0]:
        raise refusal(op, "the cluster of a library call returns something else than the call's result")
    arguments = list(cluster.inputs)
    sources = [_source(value) for value in inputs]
    if any(source not in arguments for source in sources):
        raise refusal(op, "an operand of a library call is not a contiguous tensor", hint="compile with library=none")
    shapes = tuple(shape_of(value) for value in (*inputs, op.results[0]))
    return LibraryCall(routine, tuple(arguments.index(s) for s in sources), shapes, _attributes(op))


def _source(value: ir.Value) -> ir.Value:
    """``value`` without the reshapes that made it."""
    op = defining_op(value)
    while op is not None and op.name in _VIEWS:
        value = op.operands[0]
        op = defining_op(value)
    return value


def _is_zero_or_unwritten(init: ir.Value) -> bool:
    op = defining_op(init)
    if op is not None and op.name == "tensor.empty":
        return False  # the op would add to undefined contents
    scalar = splat_scalar(init)
    if isinstance(scalar, ir.FloatAttr | ir.IntegerAttr):
        return scalar.value == 0
    return False


def _attributes(op: ir.Operation) -> dict[str, ir.Attribute]:
    found: dict[str, ir.Attribute] = {}
    for name in ("strides", "dilations"):
        if name in op.attributes:
            values = [int(value) for value in ir.DenseIntElementsAttr(op.attributes[name])]
            found[name] = ir.DenseI64ArrayAttr.get(values, op.context)
    parts = structured(op)
    if op.name in MATMUL_OPS and parts is not None:
        found["indexing_maps"] = ir.ArrayAttr.get([_dims(op, affine_map) for affine_map in parts.maps], op.context)
    return found


def _dims(op: ir.Operation, affine_map: ir.AffineMap) -> ir.Attribute:
    dims: list[int] = []
    for expr in affine_map.results:
        if not isinstance(expr, ir.AffineDimExpr):
            raise refusal(op, f"a library call cannot read by {affine_map}", hint="compile with library=none")
        dims.append(expr.position)
    return ir.DenseI64ArrayAttr.get(dims, op.context)
