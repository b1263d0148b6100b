"""Integer and bit instructions on numpy arrays, with the wrap-around and clamping of PTX."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[Any]

_U32, _U64 = np.uint32, np.uint64
_WIDER = {"u2": "u4", "i2": "i4", "u4": "u8", "i4": "i8"}


def _code(value: Array) -> str:
    return f"{value.dtype.kind}{value.dtype.itemsize}"


def multiply_wide(a: Array, b: Array) -> Array:
    """Full product in twice the width."""
    wide = _WIDER[_code(a)]
    return a.astype(wide) * b.astype(wide)


def multiply_high(a: Array, b: Array) -> Array:
    """Upper half of the full product."""
    if a.dtype.itemsize < 8:
        return (multiply_wide(a, b) >> (8 * a.dtype.itemsize)).astype(a.dtype)
    x, y = a.view(_U64), b.view(_U64)
    mask, half = _U64(0xFFFFFFFF), _U64(32)
    x_low, x_high, y_low, y_high = x & mask, x >> half, y & mask, y >> half
    middle = x_high * y_low + ((x_low * y_low) >> half)
    other = x_low * y_high + (middle & mask)
    high = x_high * y_high + (middle >> half) + (other >> half)
    if a.dtype.kind == "i":
        high = high - np.where(a < 0, y, _U64(0)) - np.where(b < 0, x, _U64(0))
    return high.view(a.dtype)


def divide(a: Array, b: Array) -> Array:
    """Quotient truncated towards zero; division by zero gives all ones (PTX leaves it open)."""
    if a.dtype.kind == "u":
        return np.where(b == 0, a.dtype.type(np.iinfo(a.dtype).max), a // b)
    quotient = a // b
    inexact = (quotient * b != a) & ((a < 0) != (b < 0))
    return np.where(b == 0, a.dtype.type(-1), quotient + inexact)


def remainder(a: Array, b: Array) -> Array:
    """Remainder with the sign of the dividend; the dividend where the divisor is zero."""
    if a.dtype.kind == "u":
        return np.where(b == 0, a, a % b)
    return np.where(b == 0, a, a - divide(a, b) * b)


def shift_left(a: Array, amount: Array) -> Array:
    """``shl``: amounts past the width give 0."""
    bits = 8 * a.dtype.itemsize
    return np.where(amount < bits, a << np.minimum(amount, bits - 1).astype(a.dtype), a.dtype.type(0))


def shift_right(a: Array, amount: Array) -> Array:
    """``shr``: amounts past the width give 0, or the sign."""
    bits = 8 * a.dtype.itemsize
    shifted = a >> np.minimum(amount, bits - 1).astype(a.dtype)
    return shifted if a.dtype.kind == "i" else np.where(amount < bits, shifted, a.dtype.type(0))


def funnel_shift(a: Array, b: Array, amount: Array, left: bool, clamp: bool) -> Array:
    """``shf``: shift the 64-bit value ``b:a``; the upper (left) or lower (right) half remains."""
    joined = (b.astype(_U64) << _U64(32)) | a
    count = (np.minimum(amount, _U32(32)) if clamp else amount & _U32(31)).astype(_U64)
    return ((joined << count) >> _U64(32) if left else joined >> count).astype(_U32)


def permute(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """``prmt``: pick four of the eight bytes of ``b:a``."""
    joined = (b.astype(_U64) << _U64(32)) | a
    selector = selector.astype(_U64)
    result = np.zeros((1, 1), _U64)
    for place in range(4):
        if mode == "":
            control = (selector >> _U64(4 * place)) & _U64(15)
            byte = (joined >> ((control & _U64(7)) << _U64(3))) & _U64(255)
            byte = np.where(control & _U64(8), _U64(255) * (byte >> _U64(7)), byte)
        else:
            position = _permute_position(mode, place, selector & _U64(3))
            byte = (joined >> (position << _U64(3))) & _U64(255)
        result = result | (byte << _U64(8 * place))
    return result.astype(_U32)


def _permute_position(mode: str, place: int, control: Array) -> Array:
    index = _U64(place)
    if mode == "f4e":
        return (control + index) & _U64(7)
    if mode == "b4e":
        return (control - index) & _U64(7)
    if mode == "rc8":
        return control + _U64(0)
    if mode == "ecl":
        return np.maximum(control, index)
    if mode == "ecr":
        return np.minimum(control, index)
    return ((control & _U64(1)) << _U64(1)) + _U64(place & 1)


def extract_field(a: Array, position: Array, length: Array) -> Array:
    """``bfe``: ``length`` bits from ``position``, zero- or sign-extended."""
    bits = 8 * a.dtype.itemsize
    start, count = (position & 255).astype(np.int64), (length & 255).astype(np.int64)
    unsigned = a.view(f"u{a.dtype.itemsize}")
    shifted = shift_right(unsigned, start)
    field = shifted & _ones(count, unsigned.dtype)
    if a.dtype.kind == "u":
        return field
    sign_at = np.minimum(start + count - 1, bits - 1)
    negative = (shift_right(unsigned, np.maximum(sign_at, 0)) & 1 == 1) & (count > 0)
    available = np.maximum(np.minimum(count, bits - start), 0)
    return np.where(negative, field | ~_ones(available, unsigned.dtype), field).view(a.dtype)


def insert_field(a: Array, b: Array, position: Array, length: Array) -> Array:
    """``bfi``: the low ``length`` bits of ``a`` put into ``b`` at ``position``."""
    start, count = (position & 255).astype(np.int64), (length & 255).astype(np.int64)
    mask = shift_left(_ones(count, a.dtype), start)
    return (b & ~mask) | (shift_left(a, start) & mask)


def _ones(count: Array, dtype: np.dtype[Any]) -> Array:
    bits = 8 * dtype.itemsize
    full = np.broadcast_to(dtype.type(np.iinfo(dtype).max), count.shape)
    return np.where(count <= 0, dtype.type(0), shift_right(full, np.maximum(bits - count, 0)))


def leading_zeros(a: Array) -> Array:
    """``clz``, as 32-bit unsigned."""
    if a.dtype.itemsize == 4:
        return (32 - np.frexp(a.astype(np.float64))[1]).astype(_U32)
    high, low = (a >> _U64(32)).astype(_U32), a.astype(_U32)
    return np.where(high != 0, leading_zeros(high), _U32(32) + leading_zeros(low))


def find_leading(a: Array, shift: bool) -> Array:
    """``bfind``: position of the first bit that is no sign, ``0xffffffff`` if none; with ``shift`` the shift amount."""
    bits = 8 * a.dtype.itemsize
    positive = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
    zeros = leading_zeros(positive.view(f"u{a.dtype.itemsize}"))
    return np.where(zeros == bits, _U32(0xFFFFFFFF), zeros if shift else _U32(bits - 1) - zeros)


def reverse_bits(a: Array) -> Array:
    """``brev``."""
    width = a.dtype.itemsize
    kind = a.dtype.type
    for shift, mask in ((1, 0x55), (2, 0x33), (4, 0x0F)):
        pattern = kind(int.from_bytes(bytes([mask]) * width, "little"))
        a = ((a >> kind(shift)) & pattern) | ((a & pattern) << kind(shift))
    return a.byteswap()


def logic3(a: Array, b: Array, c: Array, table: Array) -> Array:
    """``lop3``: any bitwise function of three operands by its truth table."""
    lut = int(table.reshape(-1)[0])
    result = np.zeros((1, 1), a.dtype)
    for index in range(8):
        if lut >> index & 1:
            term = (a if index & 4 else ~a) & (b if index & 2 else ~b) & (c if index & 1 else ~c)
            result = result | term
    return result


def add_saturated(a: Array, b: Array) -> Array:
    """32-bit signed addition that clamps."""
    return np.clip(a.astype(np.int64) + b, -(2**31), 2**31 - 1).astype(np.int32)


def clamp_cast(a: Array, target: str) -> Array:
    """Convert between integer types, clamping to the range of the target (``cvt.sat``)."""
    limits = np.iinfo(target)
    low = max(int(limits.min), int(np.iinfo(a.dtype).min))
    high = min(int(limits.max), int(np.iinfo(a.dtype).max))
    return np.clip(a, a.dtype.type(low), a.dtype.type(high)).astype(target)


def low_bits(a: Array, bits: int) -> Array:
    """The low bits, zero- or sign-extended by the type."""
    shift = a.dtype.type(8 * a.dtype.itemsize - bits)
    return (a << shift) >> shift


def multiply_24(a: Array, b: Array, high: bool) -> Array:
    """``mul24`` of 24-bit operands: bits 0 to 31, or 16 to 47 of the product."""
    product = multiply_wide(a, b)
    return (product >> product.dtype.type(16) if high else product).astype(a.dtype)


def dot_bytes(a: Array, b: Array, c: Array, kinds: tuple[str, str]) -> Array:
    """``dp4a``: ``c`` plus the sum of products of the four bytes of ``a`` and ``b``; wraps."""
    total = c.astype(np.int64)
    for byte in range(4):
        parts = [
            (value >> _U32(8 * byte)).astype(np.uint8).view("i1" if kind == "s32" else "u1").astype(np.int64)
            for value, kind in zip((a, b), kinds, strict=True)
        ]
        total = total + parts[0] * parts[1]
    return total.astype(_U32)


def bit_mask(position: Array, width: Array, clamp: bool) -> Array:
    """``bmsk``: ``width`` ones from bit ``position``."""
    start, count = position.astype(np.int64), width.astype(np.int64)
    if not clamp:
        start, count = start & 31, count & 31
    start, count = np.minimum(start, 32), np.minimum(count, 32)
    return shift_left(_ones(count, np.dtype(_U32)), start)


def extend(a: Array, width: Array, clamp: bool) -> Array:
    """``szext``: keep ``width`` low bits, zero- or sign-extended."""
    count = (np.minimum(width, _U32(32)) if clamp else width & _U32(31)).astype(np.int64)
    return extract_field(a, np.zeros((1, 1), _U32), count.astype(_U32))
