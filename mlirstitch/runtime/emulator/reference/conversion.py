"""Emitter of ``cvt``."""

from __future__ import annotations

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.reference.emit import NUMPY_TYPE, BlockEmitter, Handler

_FLOATS = {"f16", "bf16", "f32", "f64"}
_ROUNDING = ("rn", "rz", "rm", "rp")
_INTEGRAL = ("rni", "rzi", "rmi", "rpi")


def _mode(i: Instruction, default: str = "rn") -> str:
    return next((m for m in i.modifiers if m in (*_ROUNDING, *_INTEGRAL)), default)


def _cvt(e: BlockEmitter, i: Instruction) -> None:
    target, source = i.types
    if target in ("f16x2", "bf16x2"):
        return _pair(e, i, target[:-2])
    if target == "tf32":
        a = e.use(i.inputs[0], "u4")
        return e.define(i.outputs[0], f"round_tf32({a}, {'rna' in i.modifiers})", "u4")
    if source in _FLOATS:
        value = e.use(i.inputs[0], NUMPY_TYPE[source])
        if source == "bf16":
            value = e.assign(f"decode_bf16({value})")
        elif "ftz" in i.modifiers and source == "f32":
            value = e.assign(f"flush({value})")
        if target in _FLOATS:
            return _float_to_float(e, i, value)
        dtype = NUMPY_TYPE[target]
        return e.define(i.outputs[0], f"to_integer({value}, '{_mode(i, 'rzi')}', '{dtype}')", dtype)
    value = e.use(i.inputs[0], NUMPY_TYPE[source])
    dtype = NUMPY_TYPE[target]
    if target in _FLOATS:
        result = f"from_integer({value}, '{target}', '{_mode(i)}')"
        if "sat" in i.modifiers and target != "bf16":
            result = f"saturate({result})"
        return e.define(i.outputs[0], result, dtype)
    if "sat" in i.modifiers:
        return e.define(i.outputs[0], f"clamp_cast({value}, '{dtype}')", dtype)
    e.define(i.outputs[0], value if dtype == NUMPY_TYPE[source] else f"{value}.astype('{dtype}')", dtype)
    return None


def _float_to_float(e: BlockEmitter, i: Instruction, value: str) -> None:
    target, source = i.types
    mode = _mode(i)
    if mode in _INTEGRAL:
        value = e.assign(f"ROUND_INTEGRAL['{mode}']({value})")
        mode = "rn"
    order = {"f16": 0, "bf16": 0, "f32": 1, "f64": 2}
    if "sat" in i.modifiers:
        value = e.assign(f"saturate({value})")
    if "relu" in i.modifiers:
        value = e.assign(f"maximum({value}, {value}.dtype.type(0))")
    if target == source:
        result = f"encode_bf16({value})" if target == "bf16" else value
    elif order[target] > order[source]:
        result = value if source == "bf16" and target == "f32" else f"{value}.astype('{NUMPY_TYPE[target]}')"
    elif mode == "rn" and target == "bf16" and source == "f32":
        result = f"encode_bf16({value})"
    elif mode == "rn" and target != "bf16":
        result = f"{value}.astype('{NUMPY_TYPE[target]}')"
    else:
        result = f"narrow({value}.astype('f8'), '{target}', '{mode}')"
    if "ftz" in i.modifiers and target == "f32":
        result = f"flush({result})"
    e.define(i.outputs[0], result, NUMPY_TYPE[target])


def _pair(e: BlockEmitter, i: Instruction, scalar: str) -> None:
    """Two f32 values to one packed word, the first operand in the upper half."""
    high, low = (e.use(operand, "f4") for operand in i.inputs)
    parts: list[str] = []
    for value in (low, high):
        if "relu" in i.modifiers:
            value = e.assign(f"maximum({value}, {value}.dtype.type(0))")
        mode = _mode(i)
        if mode == "rn":
            part = f"encode_bf16({value})" if scalar == "bf16" else f"{value}.astype('f2').view('u2')"
        else:
            part = f"narrow({value}.astype('f8'), '{scalar}', '{mode}').view('u2')"
        parts.append(e.assign(part))
    e.define(i.outputs[0], f"{parts[0]}.astype('u4') | ({parts[1]}.astype('u4') << np.uint32(16))", "u4")


HANDLERS: dict[str, Handler] = {"cvt": _cvt}
"""Emitter of every opcode of this file."""
