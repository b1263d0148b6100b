"""Floating-point algorithms on expressions: the same sequences of exactly rounded operations as the reference engine's
``floats.py``, so that results agree bit for bit. bfloat16 and binary16 values are 16-bit patterns.
"""

from __future__ import annotations

import math

from mlirstitch.runtime.emulator.jit.builder import Expression

_TINY = {"f32": 2.0**-126, "f64": 2.0**-1022}
_INTEGER = {"f16": "i16", "f32": "i32", "f64": "i64"}
INTEGRAL = {"rni": "roundeven", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}
"""Intrinsic of every rounding to an integral value."""


def decode_half(bits: Expression) -> Expression:
    """binary16 to single precision."""
    return bits.as_type("f16").cast("fpext", "f32")


def encode_half(value: Expression) -> Expression:
    """Single precision to binary16, to nearest even."""
    return value.cast("fptrunc", "f16").as_type("i16")


def decode_bf16(bits: Expression) -> Expression:
    """bfloat16 to single precision."""
    return (bits.resize("i32") << 16).as_type("f32")


def encode_bf16(value: Expression) -> Expression:
    """Single precision to bfloat16, to nearest even."""
    bits = value.as_type("i32")
    rounded = ((bits + ((bits >> 16) & 1) + 0x7FFF) >> 16).resize("i16")
    return value.is_nan().where(rounded.other(0x7FFF), rounded)


def flush(value: Expression) -> Expression:
    """Subnormals to zero of the same sign."""
    kind = _INTEGER[value.type]
    bits = value.as_type(kind)
    sign = bits & (1 << (bits.bits - 1))
    return value.fabs().lt(_TINY[value.type]).where(sign, bits).as_type(value.type)


def saturate(value: Expression) -> Expression:
    """Clamp to [0, 1], NaN to 0."""
    positive = value.gt(0.0).where(value, value.other(0.0))
    return positive.gt(1.0).where(positive.other(1.0), positive)


def minimum(a: Expression, b: Expression, nan: bool = False) -> Expression:
    """-0 is below +0; a NaN operand is ignored, or wins with ``nan``."""
    kind = _INTEGER[a.type]
    equal = (a.as_type(kind) | b.as_type(kind)).as_type(a.type)
    return _choose(a.lt(b), a, b, equal, nan)


def maximum(a: Expression, b: Expression, nan: bool = False) -> Expression:
    """+0 is above -0; a NaN operand is ignored, or wins with ``nan``."""
    kind = _INTEGER[a.type]
    equal = (a.as_type(kind) & b.as_type(kind)).as_type(a.type)
    return _choose(a.gt(b), a, b, equal, nan)


def _choose(better: Expression, a: Expression, b: Expression, equal: Expression, nan: bool) -> Expression:
    result = a.eq(b).where(equal, better.where(a, b))
    if nan:
        return a.is_nan().where(a, b.is_nan().where(b, result))
    return b.is_nan().where(a, result)


def two_sum(a: Expression, b: Expression) -> tuple[Expression, Expression]:
    """Rounded sum and exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def is_finite(value: Expression) -> Expression:
    """Neither infinite nor NaN."""
    return value.fabs().lt(math.inf)


def round_to_odd(total: Expression, error: Expression) -> Expression:
    """The number next to ``total + error`` whose last bit is odd, or ``total`` where ``error`` is 0."""
    bits = total.as_type(_INTEGER[total.type])
    adjust = error.ne(0.0) & (bits & 1).eq(0) & is_finite(total)
    outward = ~(error.gt(0.0) ^ total.gt(0.0))
    step = outward.where(bits.other(1), bits.other(-1))
    return (bits + adjust.where(step, bits.other(0))).as_type(total.type)


def step_down(value: Expression) -> Expression:
    """The next number below; NaN and -inf stay."""
    bits = value.as_type(_INTEGER[value.type])
    lowest = 1 << (bits.bits - 1)
    moved = bits.lt(0, signed=True).where(bits + 1, bits - 1)
    moved = value.eq(0.0).where(bits.other(lowest | 1), moved)
    stays = value.is_nan() | value.eq(-math.inf)
    return stays.where(bits, moved).as_type(value.type)


def step_up(value: Expression) -> Expression:
    """The next number above; NaN and inf stay."""
    return -step_down(-value)


def step_in(value: Expression) -> Expression:
    """The next number towards zero."""
    bits = value.as_type(_INTEGER[value.type])
    return (value.eq(0.0) | value.is_nan()).where(bits, bits - 1).as_type(value.type)


def _direct(rounded: Expression, wide: Expression, exact: Expression, mode: str) -> Expression:
    """Move ``rounded`` (``wide`` in the type of ``exact``) one step where it lies on the wrong side of ``exact``."""
    if mode == "rm":
        return wide.gt(exact).where(step_down(rounded), rounded)
    if mode == "rp":
        return wide.lt(exact).where(step_up(rounded), rounded)
    return wide.fabs().gt(exact.fabs()).where(step_in(rounded), rounded)


def odd_single(value: Expression) -> Expression:
    """Double to single precision, rounded to odd: a second rounding to 16 bits is then correct."""
    single = value.cast("fptrunc", "f32")
    inward = _direct(single, single.cast("fpext", "f64"), value, "rz")
    inexact = inward.cast("fpext", "f64").ne(value) & ~value.is_nan()
    return (inward.as_type("i32") | inexact.resize("i32")).as_type("f32")


def narrow(value: Expression, kind: str, mode: str = "rn") -> Expression:
    """Doubles (exact, or rounded to odd) to "f32", or to the bits of "f16" or "bf16"."""
    if kind == "bf16":
        return _narrow_bf16(value, mode)
    if kind == "f32":
        single = value.cast("fptrunc", "f32")
        return single if mode == "rn" else _direct(single, single.cast("fpext", "f64"), value, mode)
    half = odd_single(value).cast("fptrunc", "f16")
    if mode == "rn":
        return half.as_type("i16")
    wide = half.cast("fpext", "f32").cast("fpext", "f64")
    return _direct_half(half.as_type("i16"), wide, value, mode)


def _direct_half(bits: Expression, wide: Expression, exact: Expression, mode: str) -> Expression:
    """:func:`_direct` on the bits of binary16."""
    negative = bits.lt(0, signed=True)
    if mode == "rz":
        return wide.fabs().gt(exact.fabs()).where(bits - 1, bits)
    if mode == "rm":
        moved = wide.eq(0.0).where(bits.other(0x8001), negative.where(bits + 1, bits - 1))
        return wide.gt(exact).where(moved, bits)
    moved = wide.eq(0.0).where(bits.other(1), negative.where(bits - 1, bits + 1))
    return wide.lt(exact).where(moved, bits)


def _narrow_bf16(value: Expression, mode: str) -> Expression:
    single = value.cast("fptrunc", "f32")
    truncated = _direct(single, single.cast("fpext", "f64"), value, "rz")
    inexact = truncated.cast("fpext", "f64").ne(value)
    bits = truncated.as_type("i32") | inexact.resize("i32")
    if mode == "rn":
        bits = bits + 0x7FFF + ((bits >> 16) & 1)
    elif mode in ("rm", "rp"):
        negative = value.as_type("i64").lt(0, signed=True)
        away = negative if mode == "rm" else ~negative
        bits = (away & is_finite(value)).where(bits + 0xFFFF, bits)
    short = (bits >> 16).resize("i16")
    return value.is_nan().where(short.other(0x7FFF), short)


def fma_small(a: Expression, b: Expression, c: Expression, kind: str, mode: str) -> Expression:
    """``a * b + c`` of single-precision operands rounded once to "f32", or to the bits of "f16" or "bf16"."""
    product = a.cast("fpext", "f64") * b.cast("fpext", "f64")
    addend = c.cast("fpext", "f64")
    total, error = two_sum(product, addend)
    if mode == "rm":
        # An exact zero sum of numbers of different sign is -0 when rounding down.
        either = product.as_type("i64") | addend.as_type("i64")
        positive = either.ge(0, signed=True) & product.eq(0.0)
        total = (total.eq(0.0) & ~positive).where(total.other(-0.0), total)
    if kind == "f32" and mode == "rm":
        return _fma_down(a, b, c, total, error)
    return narrow(round_to_odd(total, error), kind, mode)


def _fma_down(a: Expression, b: Expression, c: Expression, total: Expression, error: Expression) -> Expression:
    """Single-precision ``fma.rm`` from the exact sum ``total + error``: the nearest number, or the one below."""
    nearest = a.call("fma", b, c)
    wide = nearest.cast("fpext", "f64")
    above = wide.gt(total) | (wide.eq(total) & error.lt(0.0))
    zero = total.eq(0.0) & nearest.eq(0.0)
    exact = total.cast("fptrunc", "f32")
    return above.where(step_down(nearest), zero.where(exact, nearest))


def divide(a: Expression, b: Expression, kind: str, mode: str) -> Expression:
    """``a / b`` rounded with ``mode``."""
    if mode == "rn":
        return a / b
    a, b = a.cast("fpext", "f64"), b.cast("fpext", "f64")
    quotient = a / b
    remainder = (-quotient).call("fma", b, a)
    return _from_residual(quotient, _sign(remainder) * _sign(b), kind, mode)


def square_root(a: Expression, kind: str, mode: str) -> Expression:
    """Square root rounded with ``mode``."""
    if mode == "rn":
        return a.call("sqrt")
    a = a.cast("fpext", "f64")
    root = a.call("sqrt")
    return _from_residual(root, _sign((-root).call("fma", root, a)), kind, mode)


def _sign(value: Expression) -> Expression:
    one = value.gt(0.0).where(value.other(1.0), value.lt(0.0).where(value.other(-1.0), value.other(0.0)))
    return value.is_nan().where(value, one)


def _from_residual(value: Expression, direction: Expression, kind: str, mode: str) -> Expression:
    direction = (is_finite(value) & is_finite(direction)).where(direction, direction.other(0.0))
    if kind == "f64":
        return direct_f64(value, direction, mode)
    return narrow(round_to_odd(value, direction), kind, mode)


def direct_f64(total: Expression, error: Expression, mode: str) -> Expression:
    """``total + error`` (``total`` its nearest double) rounded to double with ``mode``."""
    if mode == "rn":
        return total
    if mode == "rm":
        return error.lt(0.0).where(step_down(total), total)
    if mode == "rp":
        return error.gt(0.0).where(step_up(total), total)
    inward = error.ne(0.0) & (error.gt(0.0) ^ total.gt(0.0))
    return inward.where(step_in(total), total)


def to_integer(value: Expression, mode: str, kind: str, signed: bool) -> Expression:
    """Float to integer of element type ``kind``; clamped, NaN to 0 or the marker of PTX, see the reference."""
    wide_source = value.type == "f64"
    width = int(kind[1:])
    wide = value.cast("fpext", "f64") if not wide_source else value
    rounded = wide.call(INTEGRAL[mode])
    top, least = 2.0 ** (width - signed), -(2.0 ** (width - 1)) if signed else 0.0
    inside = rounded.ge(least) & rounded.lt(top)
    plain = inside.where(rounded, rounded.other(0.0))
    target = "i32" if width < 32 else kind
    result = plain.cast("fptosi" if signed or width < 32 else "fptoui", target).resize(kind)
    maximal = (1 << (width - signed)) - 1
    minimal = -(1 << (width - 1)) if signed else 0
    result = rounded.ge(top).where(result.other(maximal), result)
    result = rounded.lt(least).where(result.other(minimal), result)
    if wide_source or width == 64:
        result = rounded.is_nan().where(result.other(1 << (width - 1)), result)
    return result


def from_integer(value: Expression, kind: str, mode: str, signed: bool) -> Expression:
    """Integer to "f32" or "f64", or to the bits of "f16" or "bf16"."""
    op = "sitofp" if signed else "uitofp"
    if mode == "rn" and kind in ("f32", "f64"):
        return value.cast(op, kind)
    if value.bits < 64:
        total = value.cast(op, "f64")
        if kind == "f64":
            return total
        return narrow(total, kind, mode)
    low = (value & 0xFFFFFFFF).cast("uitofp", "f64")
    high = (value.arithmetic_shift(32) if signed else value >> 32).cast(op, "f64") * 4294967296.0
    total, error = two_sum(high, low)
    if kind == "f64":
        return direct_f64(total, error, mode)
    return narrow(round_to_odd(total, error), kind, mode)


def gross(value: Expression) -> Expression:
    """Keep the upper 32 bits of a double."""
    return (value.as_type("i64") & 0xFFFFFFFF00000000).as_type("f64")
