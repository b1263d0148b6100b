"""Refuse what cannot be compiled, before any native pass meets it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.errors import PassError
from mlirstitch.options import option
from mlirstitch.passes.base import Pass, register_pass
from mlirstitch.passes.structured import functions, symbol_name

TENSOR_OPS = frozenset(
    f"tensor.{name}"
    for name in (
        *("cast", "collapse_shape", "concat", "empty", "expand_shape", "extract", "extract_slice"),
        *("insert_slice", "pad", "splat", "yield"),
    )
)
LINALG_REFUSED = frozenset(
    f"linalg.{name}"
    for name in (
        *("pack", "unpack", "winograd_filter_transform", "winograd_input_transform"),
        *("winograd_output_transform", "mmt4d", "batch_mmt4d", "fill_rng_2d"),
    )
)
DIALECTS = ("arith", "math", "linalg", "tensor")
MOST_ELEMENTS = 2**45
"""A larger tensor fits into no address space (48 bits), and offsets into several of them into no 64-bit integer."""
OTHER_OPS = frozenset(("func.func", "func.return", "cf.assert"))

HINTS = {
    "tm_tensor": "write scans and scatters as linalg.generic (docs/architecture.md); express sort and top-k with "
    "gather, element-wise ops and reductions, or keep this part of the model in eager PyTorch",
    "scf": "control flow on tensors is not compiled; unroll the loop in Python or trace the branch that is taken",
    "cf": "control flow on tensors is not compiled; unroll the loop in Python or trace the branch that is taken",
    "complex": "compute with real and imaginary parts as two tensors",
    "func": "only one function is compiled; inline the callee first (mlir-opt --inline)",
    "stablehlo": "convert to linalg first (stablehlo-legalize-to-linalg)",
    "tosa": "convert to linalg first (tosa-to-linalg-named,tosa-to-linalg,tosa-to-arith,tosa-to-tensor)",
    "torch": "lower to linalg on tensors first, or hand over the nn.Module itself",
}


@register_pass
@dataclass(frozen=True)
class RejectUnsupported(Pass):
    """Refuse modules that the compiler cannot translate, naming op, types, source line and a way out.

    Refused are: no public ``@main``, or other functions beside it; arguments and results that are not ranked static
    tensors of a supported element type; tensors larger than an address space; ops outside arith, math, linalg and
    tensor (``tm_tensor``, ``scf``, complex numbers, unregistered dialects ...); elided constants, whose data is gone.
    """

    NAME = "normalize-reject-unsupported"

    dynamic: bool = option(False, "let dynamic dims pass inside @main, where later passes may still fold them")

    def run(self, op: ir.Operation) -> None:
        mains = [function for function in functions(op) if symbol_name(function) == "main"]
        if not mains:
            raise PassError(
                "the module has no function @main with a body",
                op=op.name,
                hint="rename the entry function to @main; an empty module has nothing to compile",
            )
        for child in op.regions[0].blocks[0].operations:
            if child.operation != mains[0]:
                raise refusal(child.operation, "only the function @main may stand in the module", HINTS["func"])
        _check_signature(mains[0])
        for inner in _walk(mains[0]):
            _check_op(inner, self.dynamic)


def _walk(op: ir.Operation) -> Iterator[ir.Operation]:
    for region in op.regions:
        for block in region.blocks:
            for child in block.operations:
                yield child.operation
                yield from _walk(child.operation)


def _check_signature(function: ir.Operation) -> None:
    if len(function.regions[0].blocks) != 1:
        raise refusal(function, "@main has several blocks", HINTS["cf"])
    signature = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    for what, types in (("argument", signature.inputs), ("result", signature.results)):
        for position, type_ in enumerate(types):
            reason = _why_no_tensor(type_)
            if reason:
                raise refusal(
                    function,
                    f"{what} {position} of @main has type {type_}: {reason}",
                    "pass ranked tensors of static shape; a scalar is a tensor of rank 0",
                )


def _why_no_tensor(type_: ir.Type) -> str:
    if not isinstance(type_, ir.RankedTensorType):
        return "not a ranked tensor"
    return _why_unsupported(type_)


def _why_unsupported(type_: ir.Type, dynamic: bool = False) -> str:
    """Why a type is not compiled, or ""."""
    if isinstance(type_, ir.UnrankedTensorType):
        return "unranked tensors are not supported"
    if isinstance(type_, ir.MemRefType | ir.UnrankedMemRefType):
        return "buffers are not supported, only tensors"
    if isinstance(type_, ir.VectorType):
        return "vectors are not supported, only tensors and scalars"
    element = type_
    if isinstance(type_, ir.RankedTensorType):
        if not type_.has_static_shape and not dynamic:
            return "dynamic dims are not supported yet; compile for the shapes you use"
        if type_.encoding is not None:
            return f"the encoding {type_.encoding} is not supported"
        element = type_.element_type
    if isinstance(element, ir.ComplexType):
        return "complex numbers are not supported"
    if not _is_supported(element):
        return f"element type {element} is not supported"
    if isinstance(type_, ir.RankedTensorType) and type_.has_static_shape:
        elements = math.prod(type_.shape)
        if elements > MOST_ELEMENTS:
            return f"{elements} elements are more than the {MOST_ELEMENTS} that can be addressed"
    return ""


def _is_supported(element: ir.Type) -> bool:
    if isinstance(element, ir.IntegerType):
        return element.is_signless and element.width in (1, 8, 16, 32, 64)
    return isinstance(element, ir.IndexType | ir.F16Type | ir.BF16Type | ir.F32Type | ir.F64Type)


def _check_op(op: ir.Operation, dynamic: bool) -> None:
    name = op.name
    dialect = name.partition(".")[0]
    if name not in OTHER_OPS and (dialect not in DIALECTS or name in LINALG_REFUSED):
        raise refusal(op, "this op is not supported", HINTS.get(dialect, "rewrite it with linalg and tensor ops"))
    if dialect == "tensor" and name not in TENSOR_OPS:
        raise refusal(op, "this op is not supported", "use slices, concat, pad or linalg.generic instead")
    if name == "arith.constant":
        _check_constant(op)
    for value in (*op.operands, *op.results):
        reason = _why_unsupported(value.type, dynamic)
        if reason:
            hint = HINTS["complex"] if "complex" in reason else "cast or specialise the tensor before this op"
            raise refusal(op, reason, hint)


def _check_constant(op: ir.Operation) -> None:
    value = op.attributes["value"]
    if isinstance(value, ir.DenseElementsAttr | ir.FloatAttr | ir.IntegerAttr):
        return
    if str(value).startswith("dense_resource"):
        raise refusal(
            op,
            "the constant lies in a resource blob, which cannot be read back",
            "print the module with inline constants (dense<...>), or pass the tensor as an argument",
        )
    if isinstance(op.result.type, ir.RankedTensorType) and not isinstance(value, ir.DenseElementsAttr):
        raise refusal(op, "only constants of the form dense<...> are supported", "print the constant as dense<...>")
