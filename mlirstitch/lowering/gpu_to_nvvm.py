"""gpu level to nvvm level: kernels into the llvm dialect with NVVM intrinsics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mlir import ir

from mlirstitch.dialects.locations import refusal
from mlirstitch.dialects.walk import walk
from mlirstitch.passes.base import Pass, register_pass

GPU_TO_NVVM = (
    "verify-kernels",
    "gpu.module(canonicalize,cse,convert-scf-to-cf)",
    "gpu.module(convert-gpu-to-nvvm{index-bitwidth=64 use-bare-ptr-memref-call-conv=true},convert-math-to-llvm)",
    "gpu.module(canonicalize,cse,reconcile-unrealized-casts)",
    "ensure-debug-info-scope-on-llvm-func{emission-kind=DebugDirectivesOnly}",
    "verify-lowered-kernels",
)
"""Passes of the stage. 64-bit indices: no overflow past 2^31 elements, and no more registers on static shapes.
convert-math-to-llvm takes what libdevice has no function for: trunc, absi, ctlz, cttz, ctpop. Debug info of kind
DebugDirectivesOnly prints ``.loc`` lines."""

_DIALECTS = ("arith", "cf", "func", "gpu", "llvm", "math", "memref", "nvvm", "scf", "ub", "vector")
_CAST = "builtin.unrealized_conversion_cast"
"""Makes a memref of a pointer to dynamic shared memory; gone when pointers are all there is."""

_FLOATS = ("f16", "bf16", "f32", "f64")
_INTEGER_WIDTHS = (8, 16, 32, 64)


@register_pass
@dataclass(frozen=True)
class VerifyKernels(Pass):
    """Refuse kernels that the native lowering would abort on or could not lower.

    Memory holds 8 to 64-bit integers, f16, bf16, f32 and f64 (or vectors of them), in memrefs of static shape; ops
    come from the dialects that lower to NVVM.
    """

    NAME: ClassVar[str] = "verify-kernels"

    def run(self, op: ir.Operation) -> None:
        """Check every ``gpu.module`` of the module ``op``."""
        for container in op.regions[0].blocks[0].operations:
            if container.operation.name == "gpu.module":
                for inner in walk(container.operation):
                    _check_op(inner)


@register_pass
@dataclass(frozen=True)
class VerifyLoweredKernels(Pass):
    """Refuse kernels of which something is left after lowering that is neither llvm nor nvvm."""

    NAME: ClassVar[str] = "verify-lowered-kernels"

    def run(self, op: ir.Operation) -> None:
        """Check every ``gpu.module`` of the module ``op``."""
        for container in op.regions[0].blocks[0].operations:
            if container.operation.name != "gpu.module":
                continue
            for inner in walk(container.operation):
                if inner.name.partition(".")[0] not in ("llvm", "nvvm") and inner != container.operation:
                    raise refusal(inner, "cannot be lowered to NVVM", "express it with ops that have a lowering")


def _check_op(op: ir.Operation) -> None:
    if op.name.partition(".")[0] not in _DIALECTS and op.name != _CAST:
        raise refusal(op, "has no lowering to NVVM", f"dialects that have one: {', '.join(_DIALECTS)}")
    blocks = [block for region in op.regions for block in region.blocks]
    values = [*op.results, *(argument for block in blocks for argument in block.arguments)]
    for value in values:
        if isinstance(value.type, ir.MemRefType):
            _check_memref(op, value.type)


def _check_memref(op: ir.Operation, kind: ir.MemRefType) -> None:
    element = kind.element_type
    if isinstance(element, ir.VectorType):
        element = element.element_type
    stored = str(element) in _FLOATS or (isinstance(element, ir.IntegerType) and element.width in _INTEGER_WIDTHS)
    if not stored:
        raise refusal(op, f"{kind}: elements of type {element} cannot be stored", "keep bools as i8 in memory")
    if not kind.has_static_shape:
        raise refusal(op, f"{kind} has a dynamic shape", "kernels take static shapes")
