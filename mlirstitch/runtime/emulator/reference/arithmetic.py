"""Emitters of arithmetic instructions.

Sums and products of f16 and bf16 are computed in single precision, which has more than twice their bits, so that the
second rounding is harmless; ``fma`` goes through double precision and rounding to odd.
"""

from __future__ import annotations

from collections.abc import Callable

from mlirstitch.runtime.emulator.ptx.ir import Instruction
from mlirstitch.runtime.emulator.reference.emit import NUMPY_TYPE, BlockEmitter, Handler

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""Scalar floating-point types."""

_ROUNDING = ("rn", "rz", "rm", "rp")


def _mode(i: Instruction) -> str:
    return next((m for m in i.modifiers if m in _ROUNDING), "rn")


def float_operands(e: BlockEmitter, i: Instruction, type_name: str, count: int) -> list[str]:
    """Operands as arrays of the arithmetic type; bf16 decoded to single precision, subnormals flushed with ``.ftz``."""
    values = [e.use(operand, NUMPY_TYPE[type_name]) for operand in i.inputs[:count]]
    if type_name == "bf16":
        values = [e.assign(f"decode_bf16({v})") for v in values]
    elif "ftz" in i.modifiers and type_name == "f32":
        values = [e.assign(f"flush({v})") for v in values]
    return values


def _result(e: BlockEmitter, i: Instruction, expression: str, type_name: str, encoded: bool = False) -> None:
    """Write a floating-point result with ``.sat``, ``.relu``, ``.ftz`` and the bf16 encoding applied."""
    if "ftz" in i.modifiers and type_name == "f32":
        expression = f"flush({expression})"
    if "sat" in i.modifiers:
        expression = f"saturate({expression})"
    if "relu" in i.modifiers and not encoded:
        value = e.assign(expression)
        expression = f"maximum({value}, {value}.dtype.type(0))"
    if type_name == "bf16" and not encoded:
        expression = f"encode_bf16({expression})"
    e.define(i.outputs[0], expression, NUMPY_TYPE[type_name])


def _packed(e: BlockEmitter, i: Instruction, count: int, make: Callable[[list[str]], str]) -> None:
    """Apply ``make(values) -> expression`` to both halves of f16x2 or bf16x2 operands."""
    bf16 = i.types[0] == "bf16x2"
    words = [e.use(operand, "u4") for operand in i.inputs[:count]]
    halves: list[str] = []
    for shift in (0, 16):
        part = [e.assign(f"half({w}, {shift}, {bf16})") for w in words]
        value = e.assign(make(part))
        if "relu" in i.modifiers:
            value = e.assign(f"maximum({value}, {value}.dtype.type(0))")
        if "sat" in i.modifiers:
            value = e.assign(f"saturate({value})")
        halves.append(value)
    e.define(i.outputs[0], f"join_halves({halves[0]}, {halves[1]}, {bf16})", "u4")


def _pair(e: BlockEmitter, i: Instruction, count: int, make: Callable[[list[str]], str]) -> None:
    """Apply ``make`` to both halves of f32x2 operands."""
    words = [e.use(operand, "u8") for operand in i.inputs[:count]]
    halves: list[str] = []
    for shift in (0, 32):
        part = [e.assign(f"({w} >> np.uint64({shift})).astype('u4').view('f4')") for w in words]
        if "ftz" in i.modifiers:
            part = [e.assign(f"flush({v})") for v in part]
        value = e.assign(make(part))
        halves.append(e.assign(f"flush({value})") if "ftz" in i.modifiers else value)
    low, high = (f"{value}.view('u4').astype('u8')" for value in halves)
    e.define(i.outputs[0], f"{low} | ({high} << np.uint64(32))", "u8")


def _scalar_sum(e: BlockEmitter, a: str, sign: str, b: str, mode: str) -> str:
    if mode == "rn":
        return f"{a} {sign} {b}"
    return _fma("f32", a, e.constant(0x3F800000, "f4"), b if sign == "+" else f"(-{b})", mode)


def _add(e: BlockEmitter, i: Instruction) -> None:
    sign = "+" if i.op == "add" else "-"
    kind = i.types[0]
    if kind in ("f16x2", "bf16x2"):
        return _packed(e, i, 2, lambda v: f"{v[0]} {sign} {v[1]}")
    if kind == "f32x2":
        return _pair(e, i, 2, lambda v: _scalar_sum(e, v[0], sign, v[1], _mode(i)))
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
        mode = _mode(i)
        if mode == "rn":
            return _result(e, i, f"{a} {sign} {b}", kind)
        one = e.constant(0x3F800000, "f4") if kind == "f32" else e.constant(0x3FF0000000000000, "f8")
        b = b if sign == "+" else e.assign(f"-{b}")
        return _result(e, i, _fma(kind, a, one, b, mode), kind)
    dtype = NUMPY_TYPE[kind]
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    if "sat" in i.modifiers:
        other = b if sign == "+" else f"-({b}.astype('i8'))"
        return e.define(i.outputs[0], f"add_saturated({a}, {other})", dtype)
    if "cc" in i.modifiers:
        return _carry_chain(e, i, sign, carry_in=False)
    e.define(i.outputs[0], f"{a} {sign} {b}", dtype)
    return None


def _fma(kind: str, a: str, b: str, c: str, mode: str) -> str:
    if kind == "f64":
        return f"fma_f64({a}, {b}, {c}, '{mode}')"
    if kind == "f32" and mode == "rn":
        return f"fma_f32({a}, {b}, {c})"
    return f"fma_small({a}, {b}, {c}, '{kind}', '{mode}')"


def _carry_chain(e: BlockEmitter, i: Instruction, sign: str, carry_in: bool) -> None:
    dtype = f"u{NUMPY_TYPE[i.types[0]][1]}"
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    _with_carry(e, i, a, b, sign, carry_in, dtype)


def _with_carry(e: BlockEmitter, i: Instruction, a: str, b: str, sign: str, carry_in: bool, dtype: str) -> None:
    if carry_in and e.carry is None:
        raise e.fail(i, "reads a carry that no earlier instruction of its basic block wrote")
    total = e.assign(f"{a} {sign} {b}")
    carry = e.assign(f"{total} < {a}" if sign == "+" else f"{a} < {b}")
    if carry_in:
        first = total
        extra = e.assign(f"{e.carry}.astype('{dtype}')")
        total = e.assign(f"{first} {sign} {extra}")
        second = f"{total} < {first}" if sign == "+" else f"{first} < {extra}"
        carry = e.assign(f"{carry} | ({second})")
    if "cc" in i.modifiers:
        e.carry = carry
    e.define(i.outputs[0], total, dtype)


def _addc(e: BlockEmitter, i: Instruction) -> None:
    _carry_chain(e, i, "+" if i.op == "addc" else "-", carry_in=True)


def _mul(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    if kind in ("f16x2", "bf16x2"):
        return _packed(e, i, 2, lambda v: f"{v[0]} * {v[1]}")
    if kind == "f32x2":
        minus_zero = e.constant(1 << 31, "f4")
        plain = _mode(i) == "rn"
        return _pair(e, i, 2, lambda v: f"{v[0]} * {v[1]}" if plain else _fma("f32", v[0], v[1], minus_zero, _mode(i)))
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
        mode = _mode(i)
        if mode == "rn":
            return _result(e, i, f"{a} * {b}", kind)
        zero = e.constant(1 << 31, "f4") if kind == "f32" else e.constant(1 << 63, "f8")
        return _result(e, i, _fma(kind, a, b, zero, mode), kind)
    dtype = NUMPY_TYPE[kind]
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    e.define(i.outputs[0], *_product(i, a, b, dtype))
    return None


def _product(i: Instruction, a: str, b: str, dtype: str) -> tuple[str, str]:
    """Integer product by ``.lo``, ``.hi`` or ``.wide``, with its type."""
    if "wide" in i.modifiers:
        return f"multiply_wide({a}, {b})", f"{dtype[0]}{2 * int(dtype[1])}"
    if "hi" in i.modifiers:
        return f"multiply_high({a}, {b})", dtype
    return f"{a} * {b}", dtype


def _mad(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    if kind in FLOATS:
        return _fused(e, i)
    dtype = NUMPY_TYPE[kind]
    if i.op == "madc" or "cc" in i.modifiers:
        unsigned = f"u{dtype[1]}"
        a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
        product = e.assign(f"({_product(i, a, b, dtype)[0]}).view('{unsigned}')")
        c = e.use(i.inputs[2], unsigned)
        return _with_carry(e, i, product, c, "+", i.op == "madc", unsigned)
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    product, wide = _product(i, a, b, dtype)
    c = e.use(i.inputs[2], wide)
    if "sat" in i.modifiers:
        return e.define(i.outputs[0], f"add_saturated({product}, {c})", wide)
    e.define(i.outputs[0], f"{product} + {c}", wide)
    return None


def _fused(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    mode = _mode(i)
    if kind in ("f16x2", "bf16x2"):
        scalar = kind[:-2]
        # The packed result is assembled from decoded halves, so bf16 keeps single precision until then.
        if scalar == "bf16":
            return _packed(e, i, 3, lambda v: f"decode_bf16(fma_small({v[0]}, {v[1]}, {v[2]}, 'bf16', '{mode}'))")
        return _packed(e, i, 3, lambda v: f"fma_small({v[0]}, {v[1]}, {v[2]}, 'f16', '{mode}')")
    if kind == "f32x2":
        return _pair(e, i, 3, lambda v: _fma("f32", v[0], v[1], v[2], mode))
    a, b, c = float_operands(e, i, kind, 3)
    value = _fma(kind, a, b, c, mode)
    if kind == "bf16":
        if "relu" in i.modifiers:
            value = f"encode_bf16(maximum(decode_bf16({value}), np.float32(0)))"
        return _result(e, i, value, kind, encoded=True)
    return _result(e, i, value, kind)


def _div(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
        return _result(e, i, f"divide_float({a}, {b}, '{kind}', '{_mode(i)}')", kind)
    dtype = NUMPY_TYPE[kind]
    function = "divide" if i.op == "div" else "remainder"
    e.define(i.outputs[0], f"{function}({e.use(i.inputs[0], dtype)}, {e.use(i.inputs[1], dtype)})", dtype)
    return None


def _sad(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    a, b, c = (e.use(operand, dtype) for operand in i.inputs)
    e.define(i.outputs[0], f"{c} + (np.maximum({a}, {b}) - np.minimum({a}, {b}))", dtype)


_SIGN = {"f16": ("u2", 0x8000), "bf16": ("u2", 0x8000), "f32": ("u4", 1 << 31), "f64": ("u8", 1 << 63),
         "f16x2": ("u4", 0x80008000), "bf16x2": ("u4", 0x80008000)}  # fmt: skip


def _abs_neg(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    if kind in ("f32", "f64"):
        (a,) = float_operands(e, i, kind, 1)
        return e.define(i.outputs[0], f"np.abs({a})" if i.op == "abs" else f"-{a}", NUMPY_TYPE[kind])
    if kind in _SIGN:
        dtype, sign = _SIGN[kind]
        a = e.use(i.inputs[0], dtype)
        text = f"{a} & ~{e.constant(sign, dtype)}" if i.op == "abs" else f"{a} ^ {e.constant(sign, dtype)}"
        return e.define(i.outputs[0], text, dtype)
    a = e.use(i.inputs[0], NUMPY_TYPE[kind])
    e.define(i.outputs[0], f"np.abs({a})" if i.op == "abs" else f"-{a}", NUMPY_TYPE[kind])
    return None


def _min_max(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    name = "minimum" if i.op == "min" else "maximum"
    nan = "NaN" in i.modifiers
    count = len(i.inputs)
    if count == 3 and kind != "f32":
        raise e.fail(i, "has three source operands for f32 only")

    def chosen(values: list[str]) -> str:
        sizes = [e.assign(f"np.abs({v})") for v in values] if "abs" in i.modifiers else values
        result = sizes[0]
        for size in sizes[1:]:
            result = e.assign(f"{name}({result}, {size}, {nan})")
        if "xorsign" in i.modifiers:
            sign = e.assign(" ^ ".join(f"np.signbit({v})" for v in values))
            result = e.assign(f"where({sign}, -{result}, {result})")
        return result

    if kind in ("f16x2", "bf16x2"):
        return _packed(e, i, 2, chosen)
    if kind in FLOATS:
        return _result(e, i, chosen(float_operands(e, i, kind, count)), kind)
    dtype = NUMPY_TYPE[kind]
    a, b = e.use(i.inputs[0], dtype), e.use(i.inputs[1], dtype)
    value = f"np.{name}({a}, {b})"
    return e.define(i.outputs[0], f"np.maximum({value}, 0)" if "relu" in i.modifiers else value, dtype)


def _short_product(e: BlockEmitter, i: Instruction) -> None:
    """``mul24`` and ``mad24``."""
    dtype = NUMPY_TYPE[i.types[0]]
    a, b = (e.assign(f"low_bits({e.use(operand, dtype)}, 24)") for operand in i.inputs[:2])
    product = f"multiply_24({a}, {b}, {'hi' in i.modifiers})"
    e.define(i.outputs[0], product if i.op == "mul24" else f"{product} + {e.use(i.inputs[2], dtype)}", dtype)


def _dot(e: BlockEmitter, i: Instruction) -> None:
    """``dp4a``: four products of bytes added up."""
    a, b, c = (e.use(operand, "u4") for operand in i.inputs)
    e.define(i.outputs[0], f"dot_bytes({a}, {b}, {c}, {i.types!r})", "u4")


def _copysign(e: BlockEmitter, i: Instruction) -> None:
    dtype = NUMPY_TYPE[i.types[0]]
    # PTX: the sign of the first operand on the magnitude of the second.
    e.define(i.outputs[0], f"np.copysign({e.use(i.inputs[1], dtype)}, {e.use(i.inputs[0], dtype)})", dtype)


_SPECIAL_FUNCTIONS = {
    "ex2": "exp2_f32", "lg2": "log2_f32", "sin": "sin_f32", "cos": "cos_f32", "tanh": "tanh_f32", "rsqrt": "rsqrt_f32",
}  # fmt: skip


def _special(e: BlockEmitter, i: Instruction) -> None:
    function = _SPECIAL_FUNCTIONS[i.op]
    kind = i.types[0]
    if kind in ("f16x2", "bf16x2"):
        cast = "" if kind == "bf16x2" else ".astype('f2')"
        return _packed(e, i, 1, lambda v: f"{function}({v[0]}.astype('f4')){cast}")
    if kind == "f64":
        (a,) = float_operands(e, i, kind, 1)
        value = f"1.0 / np.sqrt(flush({a}))" if "ftz" in i.modifiers else f"1.0 / np.sqrt({a})"
        return e.define(i.outputs[0], f"gross_f64({value})" if "ftz" in i.modifiers else value, "f8")
    (a,) = float_operands(e, i, kind, 1)
    if kind == "f16":
        return e.define(i.outputs[0], f"{function}({a}.astype('f4')).astype('f2')", "f2")
    return _result(e, i, f"{function}({a})", kind)


def _rcp_sqrt(e: BlockEmitter, i: Instruction) -> None:
    kind = i.types[0]
    (a,) = float_operands(e, i, kind, 1)
    mode = _mode(i)
    if i.op == "sqrt":
        return _result(e, i, f"square_root({a}, '{kind}', '{mode}')", kind)
    if kind == "f64" and "approx" in i.modifiers:
        return e.define(i.outputs[0], f"gross_f64(1.0 / flush({a}))", "f8")
    one = e.constant(0x3F800000, "f4") if kind == "f32" else e.constant(0x3FF0000000000000, "f8")
    return _result(e, i, f"divide_float({one}, {a}, '{kind}', '{mode}')", kind)


HANDLERS: dict[str, Handler] = {
    "add": _add, "sub": _add, "mul": _mul, "mad": _mad, "madc": _mad, "fma": _fused, "addc": _addc, "subc": _addc,
    "div": _div, "rem": _div, "sad": _sad, "abs": _abs_neg, "neg": _abs_neg, "min": _min_max, "max": _min_max,
    "copysign": _copysign, "ex2": _special, "lg2": _special, "sin": _special, "cos": _special, "tanh": _special,
    "mul24": _short_product, "mad24": _short_product, "dp4a": _dot, "rsqrt": _special, "rcp": _rcp_sqrt,
    "sqrt": _rcp_sqrt,
}  # fmt: skip
"""Emitter of every opcode of this file."""
