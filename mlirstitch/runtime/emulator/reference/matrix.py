"""Emitters of the matrix instructions of a warp."""

from __future__ import annotations

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import MATRIX_SHAPES, TYPE_BYTES
from mlirstitch.runtime.emulator.reference.chunk import WARP
from mlirstitch.runtime.emulator.reference.emit import BlockEmitter, Handler, Site
from mlirstitch.runtime.emulator.reference.fragments import element_bits


def _operands(e: BlockEmitter, i: Instruction, first: int, count: int, dtype: str) -> str:
    names = [e.use(operand, dtype) for operand in i.inputs[first : first + count]]
    return f"({', '.join(names)},)"


def _mma(e: BlockEmitter, i: Instruction) -> None:
    d_kind, a_kind, b_kind, c_kind = i.types
    sizes = MATRIX_SHAPES[next(m for m in i.modifiers if m[1:2].isdigit())]
    m, n, k = sizes
    results, c = (m * n // WARP * (16 if kind == "f16" else 32) // 32 for kind in (d_kind, c_kind))
    a, b = (max(32, size * k * element_bits(kind) // WARP) // 32 for size, kind in ((m, a_kind), (n, b_kind)))
    if a_kind == "f64":
        a, b = 1, 1
    if len(i.inputs) != a + b + c or len(i.outputs) != results:
        raise e.fail(i, f"needs {results} destinations and {a} + {b} + {c} source registers")
    dtype = f"u{max(TYPE_BYTES[d_kind], 4)}"
    left, right, start = _operands(e, i, 0, a, dtype), _operands(e, i, a, b, dtype), _operands(e, i, a + b, c, dtype)
    call = f"x.multiply({e.site(Site(i))}, {sizes}, {i.types!r}, {left}, {right}, {start}, {e.mask})"
    values = e.assign(call)
    for position, register in enumerate(i.outputs):
        if register is not None:
            e.define(register, f"{values}[{position}]", dtype)


def _count(i: Instruction) -> int:
    return next((int(m[1:]) for m in i.modifiers if m in ("x1", "x2", "x4")), 0)


def _load_matrix(e: BlockEmitter, i: Instruction) -> None:
    count = _count(i)
    if len(i.outputs) != count:
        raise e.fail(i, f"needs {count} destination registers")
    address, offset = e.address(i.inputs[0])
    site = e.site(Site(i, "shared", 4, 4, ("u4",) * 4, offset=offset))
    values = e.assign(f"x.load_matrix({site}, {address}, {count}, {'trans' in i.modifiers}, {e.mask})")
    for position, register in enumerate(i.outputs):
        if register is not None:
            e.define(register, f"{values}[{position}]", "u4")


def _store_matrix(e: BlockEmitter, i: Instruction) -> None:
    count = _count(i)
    if len(i.inputs) != count + 1:
        raise e.fail(i, f"needs {count} source registers")
    address, offset = e.address(i.inputs[0])
    site = e.site(Site(i, "shared", 4, 4, ("u4",) * 4, offset=offset))
    values = _operands(e, i, 1, count, "u4")
    e.line(f"x.store_matrix({site}, {address}, {values}, {'trans' in i.modifiers}, {e.mask})")


def _move_matrix(e: BlockEmitter, i: Instruction) -> None:
    value = e.use(i.inputs[0], "u4")
    e.define(i.outputs[0], f"x.transpose_matrix({e.site(Site(i))}, {value}, {e.mask})", "u4")


HANDLERS: dict[str, Handler] = {
    "mma": _mma, "ldmatrix": _load_matrix, "stmatrix": _store_matrix, "movmatrix": _move_matrix,
}  # fmt: skip
"""Emitter of every opcode of this file."""
