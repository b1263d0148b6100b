"""An independent judge of floating-point results: exact rational arithmetic, rounded once by hand."""

from __future__ import annotations

from fractions import Fraction

FORMATS = {"f16": (11, -14, 15), "bf16": (8, -126, 127), "f32": (24, -126, 127), "f64": (53, -1022, 1023)}
"""Precision, least and greatest exponent of normal numbers."""


def round_exact(value: Fraction, kind: str, mode: str) -> float:
    """``value`` rounded to the format with mode rn, rz, rm or rp; overflow as IEEE 754 says."""
    if value == 0:
        return 0.0
    precision, least, greatest = FORMATS[kind]
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if Fraction(2) ** exponent > size:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - precision + 1)
    steps, rest = divmod(size, unit)
    negative = value < 0
    up = {
        "rn": rest * 2 > unit or (rest * 2 == unit and steps % 2 == 1),
        "rz": False,
        "rm": negative and rest > 0,
        "rp": not negative and rest > 0,
    }[mode]
    rounded = (steps + up) * unit
    limit = (2 - Fraction(2) ** (1 - precision)) * Fraction(2) ** greatest
    if rounded > limit:
        towards_zero = mode == "rz" or (mode == "rm" and not negative) or (mode == "rp" and negative)
        result = float(limit) if towards_zero else float("inf")
    else:
        result = float(rounded)
    return -result if negative else result
