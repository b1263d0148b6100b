"""Emitters of bit, shift, selection and move instructions."""

from __future__ import annotations

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.syntax import Immediate, Register
from mlirstitch.runtime.emulator.reference.emit import NUMPY_TYPE, BlockEmitter, Handler


def _logic(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    sign = {"and": "&", "or": "|", "xor": "^"}[i.op]
    e.define(i.outputs[0], f"{e.use(i.inputs[0], dtype)} {sign} {e.use(i.inputs[1], dtype)}", dtype)


def _not(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    a = e.use(i.inputs[0], dtype)
    e.define(i.outputs[0], f"~{a}" if i.op == "not" else f"({a} == 0).astype('{dtype}')", dtype)


def _shift(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    a = e.use(i.inputs[0], dtype)
    amount = i.inputs[1]
    bits = 8 * int(dtype[1])
    if isinstance(amount, Immediate) and 0 <= amount.value < bits:
        sign = "<<" if i.op == "shl" else ">>"
        return e.define(i.outputs[0], f"{a} {sign} {e.constant(amount.value, dtype)}", dtype)
    name = "shift_left" if i.op == "shl" else "shift_right"
    e.define(i.outputs[0], f"{name}({a}, {e.use(amount, 'u4')})", dtype)
    return None


def _funnel(e: BlockEmitter, i: Instruction) -> None:
    a, b, c = (e.use(operand, "u4") for operand in i.inputs)
    e.define(i.outputs[0], f"funnel_shift({a}, {b}, {c}, {'l' in i.modifiers}, {'clamp' in i.modifiers})", "u4")


def _bit_field(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    values = i.inputs[:-2]
    names = [e.use(operand, dtype) for operand in values] + [e.use(operand, "u4") for operand in i.inputs[-2:]]
    function = "extract_field" if i.op == "bfe" else "insert_field"
    e.define(i.outputs[0], f"{function}({', '.join(names)})", dtype)


def _bit_count(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    a = e.use(i.inputs[0], dtype)
    if i.op == "brev":
        return e.define(i.outputs[0], f"reverse_bits({a})", dtype)
    text = {
        "popc": f"np.bitwise_count({a}).astype('u4')",
        "clz": f"leading_zeros({a})",
        "bfind": f"find_leading({a}, {'shiftamt' in i.modifiers})",
    }[i.op]
    e.define(i.outputs[0], text, "u4")
    return None


def _bit_mask(e: BlockEmitter, i: Instruction) -> None:
    clamp = "clamp" in i.modifiers
    if i.op == "bmsk":
        a, b = e.use(i.inputs[0], "u4"), e.use(i.inputs[1], "u4")
        return e.define(i.outputs[0], f"bit_mask({a}, {b}, {clamp})", "u4")
    dtype = NUMPY_TYPE[i.types[0]]
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], "u4")
    return e.define(i.outputs[0], f"extend({a}, {b}, {clamp})", dtype)


def _permute(e: BlockEmitter, i: Instruction) -> None:
    mode = i.modifiers[0] if i.modifiers else ""
    a, b, c = (e.use(operand, "u4") for operand in i.inputs)
    e.define(i.outputs[0], f"permute({a}, {b}, {c}, {mode!r})", "u4")


def _logic3(e: BlockEmitter, i: Instruction) -> None:
    a, b, c, table = (e.use(operand, "u4") for operand in i.inputs)
    e.define(i.outputs[0], f"logic3({a}, {b}, {c}, {table})", "u4")


def _selp(e: BlockEmitter, i: Instruction) -> None:
    dtype = e.home(i.outputs[0], NUMPY_TYPE[i.types[0]])
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    e.define(i.outputs[0], f"where({e.use(i.inputs[2], '?')}, {a}, {b})", dtype)


def _slct(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    c = e.use(i.inputs[2], NUMPY_TYPE[i.types[1]])
    e.define(i.outputs[0], f"where({c} >= 0, {a}, {b})", dtype)


def _mov(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    if i.types[0] != "pred":
        dtype = e.home(i.outputs[0], dtype)
    e.define(i.outputs[0], e.use(i.inputs[0], dtype), dtype)


def _pack(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    bits = 8 * int(dtype[1]) // len(i.inputs)
    if bits < 8:
        raise e.fail(i, f"packs {len(i.inputs)} elements")
    parts: list[str] = []
    for position, operand in enumerate(i.inputs):
        value = f"{e.use(operand, f'u{bits // 8}')}.astype('{dtype}')"
        parts.append(f"({value} << {e.constant(position * bits, dtype)})" if position else value)
    e.define(i.outputs[0], " | ".join(parts), dtype)


def _unpack(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    bits = 8 * int(dtype[1]) // len(i.outputs)
    if bits < 8:
        raise e.fail(i, f"unpacks {len(i.outputs)} elements")
    source = e.use(i.inputs[0], dtype)
    for position, register in enumerate(i.outputs):
        if register is None:
            continue
        shifted = f"({source} >> {e.constant(position * bits, dtype)})" if position else source
        e.define(register, f"{shifted}.astype('u{bits // 8}')", f"u{bits // 8}")


def _cvta(e: BlockEmitter, i: Instruction) -> None:
    space = next((m for m in i.modifiers if m != "to"), "global")
    operand = i.inputs[0]
    value = e.use(operand, "u8")
    if space in ("shared", "local"):
        sign = "-" if "to" in i.modifiers else "+"
        value = f"{value} {sign} {space.upper()}_WINDOW"
    e.define(i.outputs[0], value, "u8")


def _implicit(e: BlockEmitter, i: Instruction) -> None:
    register = i.outputs[0]
    if isinstance(register, Register):
        dtype = e.home(register, "?" if register.type == "pred" else f"u{register.bytes}")
        e.define(register, e.constant(0, dtype), dtype)


HANDLERS: dict[str, Handler] = {
    "and": _logic, "or": _logic, "xor": _logic, "not": _not, "cnot": _not, "lop3": _logic3, "shl": _shift,
    "shr": _shift, "shf": _funnel, "bfe": _bit_field, "bfi": _bit_field, "bfind": _bit_count, "brev": _bit_count,
    "popc": _bit_count, "clz": _bit_count, "prmt": _permute, "selp": _selp, "slct": _slct, "mov": _mov, "pack": _pack,
    "bmsk": _bit_mask, "szext": _bit_mask, "unpack": _unpack, "cvta": _cvta, "implicit": _implicit,
}  # fmt: skip
"""Emitter of every opcode of this file."""
