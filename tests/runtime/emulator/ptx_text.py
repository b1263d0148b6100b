"""PTX for tests: hand-written kernels, one-instruction kernels, and kernels compiled from the gpu dialect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlirstitch.runtime import emulator

_HEADER = ".version 7.8\n.target sm_90\n.address_size 64\n"
_WIDTH = {
    "b8": 1, "s8": 1, "u8": 1, "b16": 2, "u16": 2, "s16": 2, "f16": 2, "bf16": 2, "b32": 4, "u32": 4, "s32": 4,
    "f32": 4, "f16x2": 4, "bf16x2": 4, "b64": 8, "u64": 8, "s64": 8, "f64": 8,
}  # fmt: skip


def kernel(body: str, pointers: int = 0, scalars: Sequence[str] = (), name: str = "k", before: str = "") -> str:
    """A module with one kernel. Parameter n is in ``%a<n>`` if it is a pointer, in ``%s<n>`` if a 32-bit scalar.

    Registers ``%r0..63`` (b32), ``%d0..63`` (b64), ``%h0..31`` (b16), ``%p0..15`` are declared; ``%r0`` is ``%tid.x``.
    """
    parameters = [f".param .u64 .ptr .align 1 p{n}" for n in range(pointers)]
    parameters += [f".param .{kind} p{pointers + n}" for n, kind in enumerate(scalars)]
    loads = [f"ld.param.b64 %a{n}, [p{n}];" for n in range(pointers)]
    loads += [f"ld.param.b32 %s{pointers + n}, [p{pointers + n}];" for n in range(len(scalars))]
    return (
        f"{_HEADER}{before}\n.visible .entry {name}({', '.join(parameters)})\n{{\n"
        ".reg .pred %p<16>; .reg .b16 %h<32>; .reg .b32 %r<64>; .reg .b64 %d<64>; .reg .b64 %a<16>; .reg .b32 %s<16>;\n"
        f"{' '.join(loads)}\nmov.u32 %r0, %tid.x;\n{body}\nret;\n}}\n"
    )


def line_of(text: str, marker: str) -> int:
    """1-based line of the first one that contains ``marker``."""
    return next(n for n, line in enumerate(text.splitlines(), 1) if marker in line)


def run(text: str, args: Sequence[Any], block: Any = 32, grid: Any = 1, **options: Any) -> emulator.LaunchCounters:
    """Load the module and launch kernel ``k``."""
    return emulator.load(text).launch("k", grid, block, args, **options)


def operation(mnemonic: str, result: str, operands: Sequence[str], immediates: str = "") -> str:
    """A kernel that applies one instruction to element ``tid`` of its inputs; types are PTX types."""
    lines: list[str] = []
    registers: list[str] = []
    prefix = {1: "h", 2: "h", 4: "r", 8: "d"}
    for position, kind in enumerate(operands):
        if kind == "pred":
            lines += [
                f"add.u64 %d60, %a{position}, %d61;",
                "ld.global.u8 %h30, [%d60];",
                f"setp.ne.b16 %p{position}, %h30, 0;",
            ]
            registers.append(f"%p{position}")
            continue
        width = _WIDTH[kind]
        register = f"%{prefix[width]}{10 + position}"
        lines += [
            f"mul.lo.u64 %d60, %d61, {width};",
            f"add.u64 %d60, %a{position}, %d60;",
            f"ld.global.b{8 * width} {register}, [%d60];",
        ]
        registers.append(register)
    out = len(operands)
    width = 1 if result == "pred" else _WIDTH[result]
    target = "%p15" if result == "pred" else f"%{prefix[width]}1"
    lines.append(f"{mnemonic} {', '.join([target, *registers])}{immediates};")
    if result == "pred":
        lines.append("selp.b32 %r50, 1, 0, %p15;")
        target = "%r50"
    lines += [
        f"mul.lo.u64 %d60, %d61, {width};",
        f"add.u64 %d60, %a{out}, %d60;",
        f"st.global.b{8 * width} [%d60], {target};",
    ]
    return kernel("cvt.u64.u32 %d61, %r0;\n" + "\n".join(lines), pointers=out + 1)


def apply(
    mnemonic: str, result: str, operands: Sequence[str], arrays: Sequence[Any], dtype: Any, immediates: str = ""
) -> Any:
    """Run one instruction over arrays of equal length (at most 1024); the results as ``dtype``."""
    count = len(arrays[0])
    out = np.zeros(count, dtype)
    run(operation(mnemonic, result, operands, immediates), [*arrays, out], block=count)
    return out


_LOWER = (
    "builtin.module(gpu.module(canonicalize,cse,convert-scf-to-cf,"
    "convert-gpu-to-nvvm{index-bitwidth=64 use-bare-ptr-memref-call-conv=true},convert-math-to-llvm,"
    "canonicalize,cse,reconcile-unrealized-casts),gpu-module-to-binary{format=isa})"
)


def compile_gpu(body: str, chip: str = "sm_90") -> str:
    """PTX of a gpu.module with this body, as LLVM prints it."""
    from mlir import ir
    from mlir.passmanager import PassManager

    target = f'#nvvm.target<O = 3, chip = "{chip}">'
    text = f"module attributes {{gpu.container_module}} {{ gpu.module @m [{target}] {{ {body} }} }}"
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(text)
        PassManager.parse(_LOWER).run(module.operation)
        printed = str(module)
    found = re.search(r'(?:assembly|offload|bin) = "((?:[^"\\]|\\.)*)"', printed)
    assert found is not None
    decoded = re.sub(r"\\([0-9A-Fa-f]{2})", lambda m: chr(int(m.group(1), 16)), found.group(1))
    return decoded.replace("\x00", "").replace("\\\\", "\\")


def elementwise(name: str, element: str, ops: str, inputs: int, result: str = "") -> str:
    """gpu.func ``name`` that stores ``%r``, computed from ``%x0..``, for every element of 4096."""
    result = result or element
    parameters = [f"%a{n}: memref<4096x{element}> {{llvm.noalias}}" for n in range(inputs)]
    parameters.append(f"%o: memref<4096x{result}> {{llvm.noalias}}")
    loads = "\n".join(f"%x{n} = memref.load %a{n}[%i] : memref<4096x{element}>" for n in range(inputs))
    return f"""gpu.func @{name}({", ".join(parameters)}) kernel {{
      %b = gpu.block_id x
      %t = gpu.thread_id x
      %d = gpu.block_dim x
      %q = arith.muli %b, %d : index
      %i = arith.addi %q, %t : index
      {loads}
      {ops}
      memref.store %r, %o[%i] : memref<4096x{result}>
      gpu.return }}"""
