"""Code of arithmetic instructions, floating point and integer."""

from __future__ import annotations

from collections.abc import Callable

from mlirstitch.runtime.emulator.jit import rounding, values
from mlirstitch.runtime.emulator.jit.approximations import FUNCTIONS
from mlirstitch.runtime.emulator.jit.builder import Expression
from mlirstitch.runtime.emulator.jit.emit import INTEGER_TYPE, Handler, KernelEmitter
from mlirstitch.runtime.emulator.jit.layout import Warp
from mlirstitch.runtime.emulator.jit.support import safe_division
from mlirstitch.runtime.emulator.ptx.ir import Instruction

FLOATS = frozenset({"f16", "bf16", "f32", "f64"})
"""Scalar floating-point types."""

_PACKED = frozenset({"f16x2", "bf16x2"})
_ROUNDING = ("rn", "rz", "rm", "rp")


def rounding_mode(i: Instruction) -> str:
    """Rounding modifier."""
    return next((m for m in i.modifiers if m in _ROUNDING), "rn")


def is_signed(ptx_type: str) -> bool:
    """Whether the integers of the type are signed."""
    return ptx_type[0] == "s"


def float_operands(e: KernelEmitter, i: Instruction, kind: str, count: int) -> list[Expression]:
    """Operands in the arithmetic type: half precision as single, subnormals flushed with ``.ftz``."""
    found = e.operands(i.inputs[:count], [kind] * count)
    if kind == "bf16":
        return [rounding.decode_bf16(v) for v in found]
    if kind == "f16":
        return [rounding.decode_half(v) for v in found]
    if "ftz" in i.modifiers and kind == "f32":
        return [rounding.flush(v) for v in found]
    return found


def float_result(e: KernelEmitter, i: Instruction, value: Expression, kind: str) -> None:
    """Write a result computed in the arithmetic type, with ``.ftz``, ``.sat``, ``.relu`` and the encoding applied.

    The value of a half-precision type is rounded first: clamping must see what is stored.
    """
    if kind in ("f16", "bf16"):
        value = _decode(_encode(value, kind), kind) if {"sat", "relu"} & set(i.modifiers) else value
    elif "ftz" in i.modifiers and kind == "f32":
        value = rounding.flush(value)
    if "sat" in i.modifiers:
        value = rounding.saturate(value)
    if "relu" in i.modifiers:
        value = rounding.maximum(value, value.other(0.0))
    e.result(i.outputs[0], _encode(value, kind))


def _encode(value: Expression, kind: str) -> Expression:
    if not value.is_float:
        return value
    if kind == "bf16":
        return rounding.encode_bf16(value)
    return rounding.encode_half(value) if kind == "f16" else value


def _decode(bits: Expression, kind: str) -> Expression:
    return rounding.decode_bf16(bits) if kind == "bf16" else rounding.decode_half(bits)


def packed(e: KernelEmitter, i: Instruction, count: int, make: Callable[[list[Expression], str], Expression]) -> None:
    """Apply ``make(single-precision operands, scalar type)`` to both halves; it gives bits or single precision."""
    scalar = i.types[0][:-2]
    words = e.operands(i.inputs[:count], ["b32"] * count)
    halves: list[Expression] = []
    for shift in (0, 16):
        part = [_decode((w >> shift if shift else w).resize("i16"), scalar) for w in words]
        bits = _encode(make(part, scalar), scalar)
        if {"relu", "sat"} & set(i.modifiers):
            value = _decode(bits, scalar)
            if "relu" in i.modifiers:
                value = rounding.maximum(value, value.other(0.0))
            if "sat" in i.modifiers:
                value = rounding.saturate(value)
            bits = _encode(value, scalar)
        halves.append(bits.resize("i32"))
    e.result(i.outputs[0], halves[0] | (halves[1] << 16))


def fused(a: Expression, b: Expression, c: Expression, kind: str, mode: str, e: KernelEmitter) -> Expression:
    """``a * b + c`` rounded once; half-precision results as bits."""
    if mode == "rn" and kind in ("f32", "f64"):
        return a.call("fma", b, c)
    if kind == "f64":
        raise e.unsupported("double precision with directed rounding is left to the reference engine")
    if kind == "f32" and a.vector:
        return e.mathematics(f"fma_{mode}", [a, b, c])
    return rounding.fma_small(a, b, c, kind, mode)


def _add(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    negative = i.op == "sub"

    def combine(v: list[Expression], _: str) -> Expression:
        return v[0] - v[1] if negative else v[0] + v[1]

    if kind in _PACKED:
        return packed(e, i, 2, combine)
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
        mode = rounding_mode(i)
        if mode == "rn":
            return float_result(e, i, combine([a, b], kind), kind)
        return float_result(e, i, fused(a, a.other(1.0), -b if negative else b, kind, mode, e), kind)
    if "cc" in i.modifiers:
        a, b = e.operands(i.inputs, [kind, kind])
        return with_carry(e, i, a, b, carry_in=False)
    a, b = e.integer(i.inputs[0], kind), e.integer(i.inputs[1], kind)
    if "sat" in i.modifiers:
        x, y = (v.resize("i64", True) for v in e.together([a, b]))
        return e.result(i.outputs[0], _clamped(x - y if negative else x + y))
    known = (values.subtract if negative else values.add)(a, b, a.first.bits)
    if known is not None:
        return e.define(i.outputs[0], known)
    e.result(i.outputs[0], combine(e.together([a, b]), kind))
    return None


def _clamped(total: Expression) -> Expression:
    """A 64-bit sum clamped to 32 bits."""
    return total.smax(-(2**31)).smin(2**31 - 1).resize("i32")


def with_carry(e: KernelEmitter, i: Instruction, a: Expression, b: Expression, carry_in: bool) -> None:
    """``add.cc``, ``addc``, ``subc`` and the end of ``mad.cc`` and ``madc``."""
    if carry_in and e.carry is None:
        raise e.unsupported("reads a carry that no earlier instruction of its basic block wrote")
    borrow = i.op in ("sub", "subc")
    total = a - b if borrow else a + b
    carry = a.lt(b) if borrow else total.lt(a)
    if carry_in and e.carry is not None:
        first = total
        extra = e.carry
        if extra.vector and not first.vector:
            first = e.builder.splat(first)
            carry = e.builder.splat(carry)
        elif first.vector and not extra.vector:
            extra = e.builder.splat(extra)
        more = extra.resize(first.type)
        total = first - more if borrow else first + more
        carry = carry | (first.lt(more) if borrow else total.lt(first))
        e.pure = e.pure and e.carry_pure
    if "cc" in i.modifiers:
        e.carry, e.carry_pure = carry, e.pure
    e.result(i.outputs[0], total)


def _addc(e: KernelEmitter, i: Instruction) -> None:
    a, b = e.operands(i.inputs, [i.types[0]] * 2)
    with_carry(e, i, a, b, carry_in=True)


def _mul(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    if kind in _PACKED:
        return packed(e, i, 2, lambda v, _: v[0] * v[1])
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
        mode = rounding_mode(i)
        if mode == "rn":
            return float_result(e, i, a * b, kind)
        return float_result(e, i, fused(a, b, a.other(-0.0), kind, mode, e), kind)
    product = _product(e, i)
    if isinstance(product, values.Value):
        return e.define(i.outputs[0], product)
    e.result(i.outputs[0], product)
    return None


def _product(e: KernelEmitter, i: Instruction) -> values.Value | Expression:
    """Integer product by ``.lo``, ``.hi`` or ``.wide``."""
    kind = i.types[0]
    signed = is_signed(kind)
    a, b = e.integer(i.inputs[0], kind), e.integer(i.inputs[1], kind)
    width = a.first.bits
    if "wide" in i.modifiers:
        wide = INTEGER_TYPE[2 * width]
        x, y = values.widen(a, wide, signed), values.widen(b, wide, signed)
        known = values.multiply(x, y, 2 * width) if x is not None and y is not None else None
        if known is not None:
            return known
        first, second = (v.resize(wide, signed) for v in e.together([a, b]))
        return first * second
    if "hi" in i.modifiers:
        first, second = e.together([a, b])
        return _high(first, second, signed)
    known = values.multiply(a, b, width)
    if known is not None:
        return known
    first, second = e.together([a, b])
    return first * second


def _high(a: Expression, b: Expression, signed: bool) -> Expression:
    """Upper half of the full product."""
    width = a.bits
    if width < 64:
        wide = INTEGER_TYPE[2 * width]
        return ((a.resize(wide, signed) * b.resize(wide, signed)) >> width).resize(a.type)
    low = 0xFFFFFFFF
    a_low, a_high, b_low, b_high = a & low, a >> 32, b & low, b >> 32
    middle = a_high * b_low + ((a_low * b_low) >> 32)
    other = a_low * b_high + (middle & low)
    high = a_high * b_high + (middle >> 32) + (other >> 32)
    if signed:
        high = high - (a.arithmetic_shift(63) & b) - (b.arithmetic_shift(63) & a)
    return high


def _mad(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    if kind in FLOATS:
        return _fma(e, i)
    product = _product(e, i)
    pure = e.pure
    wide = kind[0] + str(2 * int(kind[1:])) if "wide" in i.modifiers else kind
    c = e.integer(i.inputs[2], wide)
    if i.op == "madc" or "cc" in i.modifiers:
        value = product if isinstance(product, values.Value) else values.Value(product, invariant=pure)
        x, y = e.together([value, c])
        return with_carry(e, i, x, y, i.op == "madc")
    value = product if isinstance(product, values.Value) else values.Value(product, invariant=pure)
    if "sat" in i.modifiers:
        x, y = (v.resize("i64", True) for v in e.together([value, c]))
        return e.result(i.outputs[0], _clamped(x + y))
    known = values.add(value, c, value.first.bits)
    if known is not None:
        return e.define(i.outputs[0], known)
    x, y = e.together([value, c])
    e.result(i.outputs[0], x + y)
    return None


def _fma(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    mode = rounding_mode(i)
    if kind in _PACKED:
        return packed(e, i, 3, lambda v, scalar: fused(v[0], v[1], v[2], scalar, mode, e))
    a, b, c = float_operands(e, i, kind, 3)
    value = fused(a, b, c, kind, mode, e)
    if not value.is_float and {"sat", "relu"} & set(i.modifiers):
        value = _decode(value, kind)
    float_result(e, i, value, kind)
    return None


def _div(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
        mode = rounding_mode(i)
        if kind == "f64" and mode != "rn":
            raise e.unsupported("double precision with directed rounding is left to the reference engine")
        return float_result(e, i, rounding.divide(a, b, kind, mode), kind)
    a, b = e.operands(i.inputs, [kind, kind])
    signed, remainder = is_signed(kind), i.op == "rem"
    if not a.vector:
        return e.result(i.outputs[0], safe_division(a, b, remainder, signed))
    if a.bits == 64:
        builder, name = e.builder, f"{'remainder' if remainder else 'divide'}_{'s' if signed else 'u'}64"
        place = builder.at(e.warp, Warp.VALUES)
        builder.store(a, place)
        builder.store(b, builder.at(e.warp, Warp.SECOND))
        e.support(name, [e.warp])
        return e.result(i.outputs[0], builder.load(place, "i64", True))
    e.result(i.outputs[0], _vector_division(a, b, remainder, signed))
    return None


def _vector_division(a: Expression, b: Expression, remainder: bool, signed: bool) -> Expression:
    """Division of at most 32 bits through double precision, in which the truncated quotient is exact."""
    op = "sitofp" if signed else "uitofp"
    quotient = a.cast(op, "f64") / b.eq(0).where(b.other(1), b).cast(op, "f64")
    whole = quotient.cast("fptosi", "i64").resize(a.type)
    if remainder:
        return b.eq(0).where(a, a - whole * b)
    return b.eq(0).where(a.other(-1), whole)


def _sad(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    a, b, c = e.operands(i.inputs, [kind] * 3)
    if is_signed(kind):
        e.result(i.outputs[0], c + (a.smax(b) - a.smin(b)))
    else:
        e.result(i.outputs[0], c + (a.umax(b) - a.umin(b)))


def _abs_neg(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    absolute = i.op == "abs"
    if kind in ("f32", "f64"):
        (a,) = float_operands(e, i, kind, 1)
        return e.result(i.outputs[0], a.fabs() if absolute else -a)
    (a,) = e.operands(i.inputs, [kind])
    if kind in FLOATS or kind in _PACKED:
        sign = 0x8000 if a.bits == 16 else 0x80008000
        return e.result(i.outputs[0], a & ~sign if absolute else a ^ sign)
    if not absolute:
        value = values.subtract(e.number(0, a.type), e.integer(i.inputs[0], kind), a.bits)
        if value is not None:
            return e.define(i.outputs[0], value)
    e.result(i.outputs[0], a.lt(0, signed=True).where(-a, a) if absolute else -a)
    return None


def _min_max(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    least = i.op == "min"
    choose = rounding.minimum if least else rounding.maximum
    nan = "NaN" in i.modifiers
    if kind in _PACKED:
        return packed(e, i, 2, lambda v, _: choose(v[0], v[1], nan))
    if kind in FLOATS:
        a, b = float_operands(e, i, kind, 2)
        return float_result(e, i, choose(a, b, nan), kind)
    a, b = e.operands(i.inputs, [kind, kind])
    name = ("s" if is_signed(kind) else "u") + i.op
    e.result(i.outputs[0], a.call(name, b))
    return None


def _copysign(e: KernelEmitter, i: Instruction) -> None:
    kind = INTEGER_TYPE[int(i.types[0][1:])]
    # PTX: the sign of the first operand on the magnitude of the second.
    a, b = e.operands(i.inputs, [f"b{kind[1:]}"] * 2)
    sign = 1 << (a.bits - 1)
    e.result(i.outputs[0], (b & (sign - 1)) | (a & sign))


def _special(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    function = FUNCTIONS.get(i.op)
    if function is None:
        raise e.unsupported("is left to the reference engine")

    def apply(a: Expression) -> Expression:
        return e.mathematics(i.op, [a]) if a.vector else function(a)

    if kind in _PACKED:
        return packed(e, i, 1, lambda v, _: apply(v[0]))
    if kind == "f64":
        (a,) = e.operands(i.inputs, [kind])
        if "ftz" not in i.modifiers:
            return e.result(i.outputs[0], a.other(1.0) / a.call("sqrt"))
        return e.result(i.outputs[0], rounding.gross(a.other(1.0) / rounding.flush(a).call("sqrt")))
    (a,) = float_operands(e, i, kind, 1)
    float_result(e, i, apply(a), kind)
    return None


def _rcp_sqrt(e: KernelEmitter, i: Instruction) -> None:
    kind = i.types[0]
    (a,) = float_operands(e, i, kind, 1)
    mode = rounding_mode(i)
    if kind == "f64" and mode != "rn":
        raise e.unsupported("double precision with directed rounding is left to the reference engine")
    if i.op == "sqrt":
        return float_result(e, i, rounding.square_root(a, kind, mode), kind)
    if kind == "f64" and "approx" in i.modifiers:
        return e.result(i.outputs[0], rounding.gross(a.other(1.0) / rounding.flush(a)))
    return float_result(e, i, rounding.divide(a.other(1.0), a, kind, mode), kind)


HANDLERS: dict[str, Handler] = {
    "add": _add, "sub": _add, "mul": _mul, "mad": _mad, "madc": _mad, "fma": _fma, "addc": _addc, "subc": _addc,
    "div": _div, "rem": _div, "sad": _sad, "abs": _abs_neg, "neg": _abs_neg, "min": _min_max, "max": _min_max,
    "copysign": _copysign, "ex2": _special, "lg2": _special, "sin": _special, "cos": _special, "tanh": _special,
    "rsqrt": _special, "rcp": _rcp_sqrt, "sqrt": _rcp_sqrt,
}  # fmt: skip
"""Code of every opcode of this file."""
