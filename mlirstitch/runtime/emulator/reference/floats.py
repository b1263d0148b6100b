"""Floating-point arithmetic on numpy arrays that rounds exactly once, in the direction PTX asks for.

bfloat16 values are ``uint16`` bit patterns, binary16 values ``float16`` arrays. Sums are kept as pairs ``(s, e)`` of
doubles, ``s + e`` the exact value and ``s`` its rounding; rounding ``s`` *to odd* makes a second rounding to a format
of at most 51 bits correct (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using
rounding to odd", IEEE Trans. Computers 57(4), 2008). NaN payloads are not specified.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mlirstitch.runtime.emulator import approximations

Array: TypeAlias = NDArray[Any]

_TINY32 = np.float32(2.0**-126)
_TINY64 = np.float64(2.0**-1022)
_SPLITTER = 134217729.0  # 2**27 + 1, Dekker
_HALF_ULP32 = np.int64(0x10000000)
_BELOW32 = np.int64(0x1FFFFFFF)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """``a + b`` as rounded sum and exact error (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def round_to_odd(total: Array, error: Array) -> Array:
    """The double next to ``total + error`` whose last bit is odd, or ``total`` where ``error`` is 0."""
    bits = total.view(np.int64)
    adjust = (error != 0) & ((bits & 1) == 0) & np.isfinite(total)
    step = np.where((error > 0) == (total > 0), 1, -1)
    return (bits + np.where(adjust, step, 0)).view(np.float64)


def narrow(value: Array, kind: str, mode: str = "rn") -> Array:
    """Round doubles (exact, or rounded to odd) to ``kind`` "f32", "f16" or "bf16" with ``mode`` rn, rz, rm or rp."""
    if kind == "bf16":
        return _narrow_bf16(value, mode)
    target = np.float32 if kind == "f32" else np.float16
    rounded = value.astype(target)
    return rounded if mode == "rn" else _direct(rounded, rounded.astype(np.float64), value, mode)


def _direct(rounded: Array, wide: Array, exact: Array, mode: str) -> Array:
    """Move ``rounded`` (``wide`` as double) one step where it lies on the wrong side of ``exact``."""
    down = rounded.dtype.type(-np.inf)
    up = rounded.dtype.type(np.inf)
    zero = rounded.dtype.type(0)
    if mode == "rm":
        return np.where(wide > exact, np.nextafter(rounded, down), rounded)
    if mode == "rp":
        return np.where(wide < exact, np.nextafter(rounded, up), rounded)
    return np.where(np.abs(wide) > np.abs(exact), np.nextafter(rounded, zero), rounded)


def _narrow_bf16(value: Array, mode: str) -> Array:
    single = value.astype(np.float32)
    truncated = _direct(single, single.astype(np.float64), value, "rz")
    bits = truncated.view(np.uint32) | (truncated.astype(np.float64) != value)
    nan = np.isnan(value)
    if mode == "rn":
        bits = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    elif mode in ("rm", "rp"):
        away = np.signbit(value) if mode == "rm" else ~np.signbit(value)
        bits = np.where(away & np.isfinite(value), bits + np.uint32(0xFFFF), bits)
    return np.where(nan, np.uint16(0x7FFF), (bits >> np.uint32(16)).astype(np.uint16))


def decode_bf16(bits: Array) -> Array:
    """bfloat16 bit patterns as single precision (exact)."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def encode_bf16(value: Array) -> Array:
    """Single precision to bfloat16 bit patterns, to nearest even."""
    bits = value.view(np.uint32)
    half = ((bits >> np.uint32(16)) & np.uint32(1)) + np.uint32(0x7FFF)
    rounded = ((bits + half) >> np.uint32(16)).astype(np.uint16)
    nan = value != value
    return np.where(nan, np.uint16(0x7FFF), rounded) if nan.any() else rounded


def flush(value: Array) -> Array:
    """Subnormals to zero of the same sign (``.ftz``)."""
    tiny = _TINY32 if value.dtype == np.float32 else _TINY64
    small = np.abs(value) < tiny
    return np.where(small, np.copysign(value.dtype.type(0), value), value) if small.any() else value


def saturate(value: Array) -> Array:
    """Clamp to [0, 1], NaN to 0 (``.sat``)."""
    one, zero = value.dtype.type(1), value.dtype.type(0)
    return np.fmin(np.fmax(value, zero), one) + zero


def fma_f32(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` in single precision, rounded once to nearest even."""
    total = np.multiply(a, b, dtype=np.float64)
    total = total + c
    rounded = total.astype(np.float32)
    # Only for ties and for results subnormal in single precision can the second rounding, double to single, differ.
    suspect = (total.view(np.int64) & _BELOW32) == _HALF_ULP32
    small = np.abs(total) < _TINY32
    if small.any():
        suspect |= small & (total != 0)
    if suspect.any():
        a, b, c = (np.broadcast_to(x, suspect.shape)[suspect].astype(np.float64) for x in (a, b, c))
        rounded[suspect] = round_to_odd(*two_sum(a * b, c)).astype(np.float32)
    return rounded


def fma_small(a: Array, b: Array, c: Array, kind: str, mode: str = "rn") -> Array:
    """``a * b + c`` rounded once to "f32", "f16" or "bf16"; operands are of that format (bf16 as single precision)."""
    product = a.astype(np.float64) * b.astype(np.float64)
    addend = c.astype(np.float64)
    total, error = two_sum(product, addend)
    if mode == "rm":
        total = _zero_down(total, product, addend)
    return narrow(round_to_odd(total, error), kind, mode)


def _zero_down(total: Array, product: Array, addend: Array) -> Array:
    """An exact zero sum of numbers of different sign is -0 when rounding down."""
    positive = ~np.signbit(product) & ~np.signbit(addend) & (product == 0)
    return np.where((total == 0) & ~positive, -0.0, total)


def _two_product(a: Array, b: Array) -> tuple[Array, Array]:
    product = a * b
    scaled = a * _SPLITTER
    a_high = scaled - (scaled - a)
    a_low = a - a_high
    scaled = b * _SPLITTER
    b_high = scaled - (scaled - b)
    b_low = b - b_high
    error = a_low * b_low - (((product - a_high * b_high) - a_low * b_high) - a_high * b_low)
    return product, error


def fma_f64(a: Array, b: Array, c: Array, mode: str = "rn") -> Array:
    """``a * b + c`` in double precision, rounded once."""
    a, b, c = np.broadcast_arrays(a, b, c)
    plain = a * b + c
    product, low = _two_product(a, b)
    high, rest = two_sum(c, low)
    total, error = two_sum(product, high)
    correction = round_to_odd(*two_sum(error, rest))
    if mode == "rn":
        result = total + correction
    else:
        result, left = two_sum(total, correction)
        result = direct_f64(result, left, mode)
        if mode == "rm":
            result = _zero_down(result, product, c)
    safe = (_in_range(a) & _in_range(b)) & (np.abs(c) < 1e290)
    if safe.all():
        return result
    result = np.where(safe, result, plain)
    hard = ~safe & np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    for position in zip(*np.nonzero(hard), strict=True):
        result[position] = _fma_exact(float(a[position]), float(b[position]), float(c[position]), mode)
    return result


def _in_range(value: Array) -> Array:
    """Where splitting and the error of a product neither overflow nor underflow."""
    size = np.abs(value)
    return ((size > 1e-130) & (size < 1e130)) | (size == 0)


def _fma_exact(a: float, b: float, c: float, mode: str) -> float:
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    if exact == 0:
        return a * b + c if mode != "rm" or (a * b == 0 and not np.signbit(a * b) and not np.signbit(c)) else -0.0
    try:
        rounded = float(exact)
    except OverflowError:
        rounded = float("inf") if exact > 0 else float("-inf")
    if rounded == 0 and exact < 0:
        rounded = -0.0
    if mode == "rn":
        return rounded
    above = rounded == float("inf") or (rounded != float("-inf") and Fraction(rounded) > exact)
    below = rounded == float("-inf") or (rounded != float("inf") and Fraction(rounded) < exact)
    if above and (mode == "rm" or (mode == "rz" and exact > 0)):
        return float(np.nextafter(rounded, -np.inf))
    if below and (mode == "rp" or (mode == "rz" and exact < 0)):
        return float(np.nextafter(rounded, np.inf))
    return rounded


def direct_f64(total: Array, error: Array, mode: str) -> Array:
    """``total + error`` (``total`` its nearest double) rounded to double with ``mode`` rn, rz, rm or rp."""
    if mode == "rn":
        return total
    if mode == "rm":
        return np.where(error < 0, np.nextafter(total, -np.inf), total)
    if mode == "rp":
        return np.where(error > 0, np.nextafter(total, np.inf), total)
    inward = (error != 0) & ((error > 0) != (total > 0))
    return np.where(inward, np.nextafter(total, 0.0), total)


def divide(a: Array, b: Array, kind: str, mode: str) -> Array:
    """``a / b`` rounded with ``mode``."""
    if mode == "rn":
        return a / b
    a, b = a.astype(np.float64), b.astype(np.float64)
    quotient = a / b
    remainder = fma_f64(-quotient, b, a)
    return _from_residual(quotient, np.sign(remainder) * np.sign(b), kind, mode)


def square_root(a: Array, kind: str, mode: str) -> Array:
    """Square root rounded with ``mode``."""
    if mode == "rn":
        return np.sqrt(a)
    a = a.astype(np.float64)
    root = np.sqrt(a)
    return _from_residual(root, np.sign(fma_f64(-root, root, a)), kind, mode)


def _from_residual(value: Array, direction: Array, kind: str, mode: str) -> Array:
    direction = np.where(np.isfinite(value) & np.isfinite(direction), direction, 0.0)
    if kind == "f64":
        return direct_f64(value, direction, mode)
    return narrow(round_to_odd(value, direction), kind, mode)


def minimum(a: Array, b: Array, nan: bool = False) -> Array:
    """``min``: -0 is below +0; a NaN operand is ignored, or wins with ``nan`` (``.NaN``)."""
    result = np.minimum(a, b) if nan else np.fmin(a, b)
    return _zeros(result, a, b, np.logical_or)


def maximum(a: Array, b: Array, nan: bool = False) -> Array:
    """``max``: +0 is above -0; a NaN operand is ignored, or wins with ``nan`` (``.NaN``)."""
    result = np.maximum(a, b) if nan else np.fmax(a, b)
    return _zeros(result, a, b, np.logical_and)


def _zeros(result: Array, a: Array, b: Array, sign: np.ufunc) -> Array:
    zero = result == 0
    if not zero.any():
        return result
    both = zero & (a == 0) & (b == 0)
    if not both.any():
        return result
    negative = sign(np.signbit(a), np.signbit(b))
    kind = result.dtype.type
    return np.where(both, np.where(negative, kind(-0.0), kind(0.0)), result)


def to_integer(value: Array, mode: str, target: str) -> Array:
    """Float to integer with ``mode`` rni, rzi, rmi or rpi; clamped, NaN to 0 (PTX ISA, ``cvt``).

    From f64 or to 64 bits NaN gives the lowest signed, or the highest power of two of an unsigned integer.
    """
    wide_source = value.dtype == np.float64
    rounded = ROUND_INTEGRAL[mode](value.astype(np.float64))
    kind = np.dtype(target)
    limits = np.iinfo(kind)
    top = 2.0 ** (8 * kind.itemsize - (kind.kind == "i"))
    inside = (rounded >= float(limits.min)) & (rounded < top)
    result = np.where(inside, rounded, 0.0).astype(kind)
    if not inside.all():
        result = np.where(rounded >= top, kind.type(limits.max), result)
        result = np.where(rounded < float(limits.min), kind.type(limits.min), result)
        if wide_source or kind.itemsize == 8:
            marker = limits.min if kind.kind == "i" else 1 << (8 * kind.itemsize - 1)
            result = np.where(np.isnan(rounded), kind.type(marker), result)
    return result


def from_integer(value: Array, kind: str, mode: str) -> Array:
    """Integer to "f16", "bf16", "f32" or "f64" with ``mode``."""
    if mode == "rn" and kind in ("f32", "f64"):
        return value.astype(np.float32 if kind == "f32" else np.float64)
    if value.dtype.itemsize < 8:
        total, error = value.astype(np.float64), np.zeros(value.shape)
    else:
        low = (value & value.dtype.type(0xFFFFFFFF)).astype(np.float64)
        high = (value >> value.dtype.type(32)).astype(np.float64) * 4294967296.0
        total, error = two_sum(high, low)
    if kind == "f64":
        return direct_f64(total, error, mode)
    return narrow(round_to_odd(total, error), kind, mode)


ROUND_INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}
"""Rounding to an integral value by PTX modifier."""


class _Arrays:
    """:class:`approximations.Arithmetic` on numpy arrays."""

    def choose(self, condition: Array, yes: Any, no: Any) -> Array:
        return np.where(condition, yes, no)

    def bits(self, value: Array) -> Array:
        return value.view(np.int64)

    def number(self, bits: Array) -> Array:
        return bits.view(np.float64)

    def equal(self, a: Any, b: Any) -> Array:
        return a == b

    def less(self, a: Any, b: Any) -> Array:
        return a < b

    def shift_right(self, bits: Array, amount: int) -> Array:
        return bits >> amount


_ARRAYS = _Arrays()


def exp2_f32(value: Array) -> Array:
    """``ex2.approx``: within 0.5000001 ulp here, see :mod:`approximations`; hardware is within 2 ulp."""
    return approximations.exp2(value.astype(np.float64), _ARRAYS).astype(np.float32)


def log2_f32(value: Array) -> Array:
    """``lg2.approx``: within 0.5000001 ulp here, see :mod:`approximations`."""
    return approximations.log2(value.astype(np.float64), _ARRAYS).astype(np.float32)


def sin_f32(value: Array) -> Array:
    """``sin.approx``: correctly rounded here."""
    return np.sin(value.astype(np.float64)).astype(np.float32)


def cos_f32(value: Array) -> Array:
    """``cos.approx``: correctly rounded here."""
    return np.cos(value.astype(np.float64)).astype(np.float32)


def tanh_f32(value: Array) -> Array:
    """``tanh.approx``: correctly rounded here; hardware has a relative error of 2**-11."""
    return np.tanh(value.astype(np.float64)).astype(np.float32)


def rsqrt_f32(value: Array) -> Array:
    """``rsqrt.approx.f32``: correctly rounded here."""
    return (1.0 / np.sqrt(value.astype(np.float64))).astype(np.float32)


def gross_f64(value: Array) -> Array:
    """Keep the upper 32 bits, as ``rcp.approx.ftz.f64`` and ``rsqrt.approx.ftz.f64`` do."""
    return (value.view(np.uint64) & np.uint64(0xFFFFFFFF00000000)).view(np.float64)
