"""A cluster that a library computes: which routine, which operands, which attributes.

The cluster function holds a contraction, and what ``passes/stitching/library_form.py`` finds that its routine computes
as well; or a convolution over reshapes of its arguments, into a destination that is zero. The routine is the linalg
op's name; its attributes are what docs/manifest.md says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.passes.op_kind import MATMUL_OPS, is_convolution
from mlirstitch.passes.stitching.library_form import FormOperand, LibraryForm, library_form, rounds_exactly
from mlirstitch.passes.stitching.template import Cluster
from mlirstitch.passes.structured import block_ops, defining_op, shape_of, splat_scalar, symbol_name

_VIEWS = ("tensor.expand_shape", "tensor.collapse_shape")
_NO_KERNEL = "compile with library=none"


@dataclass(frozen=True)
class LibraryCall:
    """One library call.

    Attributes:
        routine: name of the linalg op without its dialect.
        operands: number of the cluster's argument for each input of the routine, in the routine's order: left and
            right operand, then what the epilogue adds.
        shapes: shape in which the routine sees each input, then its result.
        attributes: ``strides``, ``dilations``, ``indexing_maps`` as lists of integers or attributes of linalg.
        strides: elements between neighbours along each dim of each input, then of the result; empty if all are
            contiguous.
        offsets: first element of each input, then of the result; empty if all are 0.
        epilogue: fields of ``stitch.epilogue``; empty if the routine stores the product.
    """

    routine: str
    operands: tuple[int, ...]
    shapes: tuple[tuple[int, ...], ...]
    attributes: dict[str, ir.Attribute]
    strides: tuple[tuple[int, ...], ...] = ()
    offsets: tuple[int, ...] = ()
    epilogue: dict[str, ir.Attribute] = field(default_factory=dict)


def library_call(function: ir.Operation) -> LibraryCall:
    """What a cluster function with ``stitch.library`` asks for. Raises :class:`PassError` if no library can do it."""
    routine = ir.StringAttr(function.attributes["stitch.library"]).value
    ops = block_ops(function)
    computing = [op for op in ops if op.name == f"linalg.{routine}"]
    if len(computing) != 1:
        names = ", ".join(op.name for op in ops if op.name.startswith("linalg.") and op.name != "linalg.fill")
        raise refusal(
            function,
            f"@{symbol_name(function)} is given to the library as {routine} but holds {names or 'nothing'}",
            hint="a library call computes one contraction or convolution; compile with library=none",
        )
    op = computing[0]
    cluster = Cluster.of_function(function)
    if is_convolution(op):
        return _convolution(op, cluster)
    if op.name not in MATMUL_OPS:
        raise refusal(op, f"no library computes {op.name}", hint=_NO_KERNEL)
    form = library_form(cluster, exact=rounds_exactly(function))
    if isinstance(form, str):
        raise refusal(op, f"no library call computes @{symbol_name(function)}: {form}", hint=_NO_KERNEL)
    if cluster.outputs[0] not in [result for inner in cluster.ops for result in inner.results]:
        raise refusal(op, "the cluster of a library call returns something else than the call's result")
    return _product(form, cluster)


def _product(form: LibraryForm, cluster: Cluster) -> LibraryCall:
    arguments = list(cluster.inputs)
    added = [operand for operand in (form.addend, form.bias) if operand is not None]
    read = [form.left, form.right, *added]
    every = [*read, form.result]
    context = form.result.value.type.context
    maps = [_integers(operand.dims, context) for operand in (form.left, form.right, form.result)]
    contiguous = all(operand.strides == _row_major(operand.shape) for operand in every)
    return LibraryCall(
        form.routine,
        tuple(arguments.index(operand.value) for operand in read),
        tuple(operand.shape for operand in every),
        {"indexing_maps": ir.ArrayAttr.get(maps, context)},
        () if contiguous else tuple(operand.strides for operand in every),
        tuple(operand.offset for operand in every) if any(operand.offset for operand in every) else (),
        _epilogue(form, added),
    )


def _epilogue(form: LibraryForm, added: Sequence[FormOperand]) -> dict[str, ir.Attribute]:
    if not added and form.alpha == 1.0 and not form.activation:
        return {}
    context = form.result.value.type.context
    number = ir.F64Type.get(context)
    fields: dict[str, ir.Attribute] = {
        "alpha": ir.FloatAttr.get(number, form.alpha, ir.Location.unknown(context)),
        "beta": ir.FloatAttr.get(number, form.beta, ir.Location.unknown(context)),
        "activation": ir.StringAttr.get(form.activation or "none", context),
    }
    place = 2
    for name, operand in (("addend", form.addend), ("bias", form.bias)):
        if operand is not None:
            fields[name] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64, context), place)
            place += 1
    return fields


def _row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def _integers(values: tuple[int, ...], context: ir.Context) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(values), context)


def _convolution(op: ir.Operation, cluster: Cluster) -> LibraryCall:
    *inputs, init = list(op.operands)
    scalar = splat_scalar(init)
    if scalar is None or getattr(scalar, "value", None) != 0:
        raise refusal(op, "a library call cannot add to a tensor", hint=_NO_KERNEL)
    others = [inner for inner in cluster.ops if inner.name.startswith("linalg.") and inner.name != "linalg.fill"]
    if len(others) != 1 or len(cluster.outputs) != 1 or _source(cluster.outputs[0]) != op.results[0]:
        raise refusal(op, "the cluster of a library call returns something else than the call's result")
    arguments = list(cluster.inputs)
    sources = [_source(value) for value in inputs]
    if any(source not in arguments for source in sources):
        raise refusal(op, "an operand of a library call is not a contiguous tensor", hint=_NO_KERNEL)
    found: dict[str, ir.Attribute] = {}
    for name in ("strides", "dilations"):
        if name in op.attributes:
            values = tuple(int(value) for value in ir.DenseIntElementsAttr(op.attributes[name]))
            found[name] = _integers(values, op.context)
    shapes = tuple(shape_of(value) for value in (*inputs, op.results[0]))
    return LibraryCall(op.name.removeprefix("linalg."), tuple(arguments.index(s) for s in sources), shapes, found)


def _source(value: ir.Value) -> ir.Value:
    """``value`` without the reshapes that made it."""
    op = defining_op(value)
    while op is not None and op.name in _VIEWS:
        value = op.operands[0]
        op = defining_op(value)
    return value
