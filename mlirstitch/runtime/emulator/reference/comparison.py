"""Emitters of comparisons."""

from __future__ import annotations

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.ptx.opcodes import COMPARISONS
from mlirstitch.runtime.emulator.reference.arithmetic import FLOATS, float_operands
from mlirstitch.runtime.emulator.reference.emit import NUMPY_TYPE, BlockEmitter, Handler

_COMPARE = {
    "eq": "{a} == {b}", "ne": "{a} != {b}", "lt": "{a} < {b}", "le": "{a} <= {b}", "gt": "{a} > {b}",
    "ge": "{a} >= {b}", "lo": "{a} < {b}", "ls": "{a} <= {b}", "hi": "{a} > {b}", "hs": "{a} >= {b}",
    "equ": "~(({a} < {b}) | ({a} > {b}))", "neu": "{a} != {b}", "ltu": "~({a} >= {b})", "leu": "~({a} > {b})",
    "gtu": "~({a} <= {b})", "geu": "~({a} < {b})", "num": "({a} == {a}) & ({b} == {b})",
    "nan": "({a} != {a}) | ({b} != {b})",
}  # fmt: skip


def _comparison(i: Instruction, a: str, b: str, floating: bool) -> str:
    name = next(m for m in i.modifiers if m in COMPARISONS)
    if name == "ne" and floating:
        return f"({a} < {b}) | ({a} > {b})"
    return _COMPARE[name].format(a=a, b=b)


def _compare(e: BlockEmitter, i: Instruction) -> str:
    """Result of the comparison of ``setp`` and ``set``, combined with its third operand."""
    kind = i.types[-1]
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
    else:
        dtype = NUMPY_TYPE[kind]
        a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    return e.assign(_comparison(i, a, b, kind in FLOATS))


def _combine(i: Instruction) -> str:
    return {"and": "&", "or": "|", "xor": "^"}[next((m for m in i.modifiers if m in ("and", "or", "xor")), "and")]


def _setp(e: BlockEmitter, i: Instruction) -> None:
    second = next(iter(i.outputs[1:]), None)
    if i.types[0] in ("f16x2", "bf16x2"):
        bf16 = i.types[0] == "bf16x2"
        a, b = e.use(i.inputs[0], "u4"), e.use(i.inputs[1], "u4")
        for register, shift in ((i.outputs[0], 0), (second, 16)):
            x, y = e.assign(f"half({a}, {shift}, {bf16})"), e.assign(f"half({b}, {shift}, {bf16})")
            if register is not None:
                e.define(register, _comparison(i, x, y, True), "?")
        return
    value = _compare(e, i)
    other = f"~{value}"
    if len(i.inputs) == 3:
        c = e.use(i.inputs[2], "?")
        other = f"({other}) {_combine(i)} {c}"
        value = e.assign(f"{value} {_combine(i)} {c}")
    if second is not None:
        other = e.assign(other)
    if i.outputs[0] is not None:
        e.define(i.outputs[0], value, "?")
    if second is not None:
        e.define(second, other, "?")


def _set(e: BlockEmitter, i: Instruction) -> None:
    value = _compare(e, i)
    if len(i.inputs) == 3:
        value = e.assign(f"{value} {_combine(i)} {e.use(i.inputs[2], '?')}")
    if i.types[0] == "f32":
        return e.define(i.outputs[0], f"{value}.astype('f4')", "f4")
    e.define(i.outputs[0], f"np.negative({value}.astype('i4')).view('u4')", "u4")
    return None


def _testp(e: BlockEmitter, i: Instruction) -> None:
    a = e.use(i.inputs[0], NUMPY_TYPE[i.types[0]])
    tiny = f"np.finfo({a}.dtype).tiny"
    text = {
        "finite": f"np.isfinite({a})",
        "infinite": f"np.isinf({a})",
        "number": f"{a} == {a}",
        "notanumber": f"{a} != {a}",
        "normal": f"np.isfinite({a}) & (np.abs({a}) >= {tiny})",
        "subnormal": f"({a} != 0) & (np.abs({a}) < {tiny})",
    }[i.modifiers[0]]
    e.define(i.outputs[0], text, "?")


HANDLERS: dict[str, Handler] = {"set": _set, "setp": _setp, "testp": _testp}
"""Emitter of every opcode of this file."""
