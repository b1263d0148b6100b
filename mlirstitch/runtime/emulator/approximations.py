"""What ``ex2.approx`` and ``lg2.approx`` compute, written once for all engines.

A function here is a fixed sequence of exactly rounded double-precision operations (no fused ones) on values of which it
only knows the operators, so that a numpy array and generated code give the same bits on every machine. Results are
rounded to single precision once, by the caller.
"""

from __future__ import annotations

from math import factorial, inf, log, sqrt
from struct import pack, unpack
from typing import Any, Protocol

_INTEGER_BITS = 6755399441055744.0
"""1.5 * 2**52: adding it rounds a number below 2**51 to an integer, which then stands in the low bits."""


class Arithmetic(Protocol):
    """What an algorithm needs besides the operators of double-precision and 64-bit integer values."""

    def choose(self, condition: Any, yes: Any, no: Any) -> Any:
        """``yes`` where the condition holds; one of the two may be a Python float."""
        ...

    def bits(self, value: Any) -> Any:
        """The bits of a double as a signed integer."""
        ...

    def number(self, bits: Any) -> Any:
        """The double with these bits."""
        ...

    def equal(self, a: Any, b: Any) -> Any:
        """Comparison of doubles, false for NaN."""
        ...

    def less(self, a: Any, b: Any) -> Any:
        """Comparison of doubles, false for NaN."""
        ...

    def shift_right(self, bits: Any, amount: int) -> Any:
        """Shift of a signed integer."""
        ...


def _polynomial(x: Any, coefficients: tuple[float, ...]) -> Any:
    """Horner's rule, the constant term first."""
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * x + coefficient
    return total


_EXP2 = tuple(log(2.0) ** k / factorial(k) for k in range(13))


def exp2(x: Any, a: Arithmetic) -> Any:
    """2**x for x a single-precision number, to 2**-50 relative.

    Cody and Waite, "Software Manual for the Elementary Functions", 1980: the nearest integer goes into the exponent,
    the rest, at most 1/2, into a Taylor polynomial of degree 12.
    """
    number = a.equal(x, x)
    within = a.choose(number, x, 0.0)
    # Past these bounds the result is zero or infinite in single precision.
    within = a.choose(a.less(within, -200.0), -200.0, within)
    within = a.choose(a.less(200.0, within), 200.0, within)
    shifted = within + _INTEGER_BITS
    rest = within - (shifted - _INTEGER_BITS)
    power = a.number((a.bits(shifted) + 1023) << 52)
    return a.choose(number, _polynomial(rest, _EXP2) * power, x)


_LOG2 = tuple(2.0 / (log(2.0) * (2 * k + 1)) for k in range(11))
_ROOT_BITS = unpack("<q", pack("<d", sqrt(0.5)))[0]
_INTEGER_BITS_BITS = unpack("<q", pack("<d", _INTEGER_BITS))[0]


def log2(x: Any, a: Arithmetic) -> Any:
    """log2(x) for x a single-precision number as a double, so never subnormal, to 2**-50 relative.

    The exponent plus the series of the inverse hyperbolic tangent for a mantissa between sqrt(1/2) and sqrt(2).
    """
    proper = a.less(0.0, x)
    bits = a.bits(a.choose(proper, x, 1.0))
    exponent = a.shift_right(bits - _ROOT_BITS, 52)
    mantissa = a.number(bits - (exponent << 52))
    ratio = (mantissa - 1.0) / (mantissa + 1.0)
    whole = a.number(exponent + _INTEGER_BITS_BITS) - _INTEGER_BITS
    result = whole + ratio * _polynomial(ratio * ratio, _LOG2)
    result = a.choose(a.equal(x, inf), x, result)
    # 0 / 0 is NaN, as is x / x for a NaN.
    return a.choose(proper, result, a.choose(a.equal(x, 0.0), -inf, (x - x) / (x - x)))
