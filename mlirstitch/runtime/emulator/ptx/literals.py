"""Numbers in PTX text."""

from __future__ import annotations

import struct

from mlirstitch.runtime.emulator.ptx.lexer import Token
from mlirstitch.runtime.emulator.ptx.syntax import TYPE_BYTES, Immediate


def natural_type(name: str) -> str:
    """The register type of a declared type: ``f32`` and ``u32`` live in ``b32`` registers."""
    return "pred" if name == "pred" else f"b{8 * TYPE_BYTES[name]}"


def literal(token: Token, negative: bool) -> Immediate:
    """Read a number token."""
    text = token.text.rstrip("U")
    lowered = text.lower()
    if lowered.startswith("0f") or lowered.startswith("0d"):
        bits = int(text[2:], 16)
        kind = "f32" if lowered[1] == "f" else "f64"
        return Immediate(kind, bits ^ (1 << (8 * TYPE_BYTES[kind] - 1)) if negative else bits)
    if not lowered.startswith("0x") and any(mark in lowered for mark in ".e"):
        return Immediate("decimal", 0, f"-{text}" if negative else text)
    if lowered.startswith("0") and lowered.isdigit():
        value = int(text, 8) if lowered.strip("01234567") == "" else int(text)
    else:
        value = int(text, 0)
    return Immediate("int", -value if negative else value)


def literal_bits(number: Immediate, type_name: str) -> int:
    """Bit pattern of a literal in an operand of ``type_name``, as an unsigned integer of that width."""
    width = 8 * TYPE_BYTES[type_name]
    if number.kind == "int":
        if type_name in ("f32", "f64"):
            number = Immediate("decimal", 0, str(number.value))
        else:
            return number.value & ((1 << width) - 1)
    if number.kind == "decimal":
        single = type_name == "f32" or width == 32
        bits = (
            _single_bits(float(number.text))
            if single
            else struct.unpack("<Q", struct.pack("<d", float(number.text)))[0]
        )
        return bits & ((1 << width) - 1)
    if number.kind == "f32" and type_name == "f64":
        single = struct.unpack("<f", struct.pack("<I", number.value))[0]
        return struct.unpack("<Q", struct.pack("<d", single))[0]
    if number.kind == "f64" and type_name == "f32":
        double = struct.unpack("<d", struct.pack("<Q", number.value))[0]
        return _single_bits(double)
    return number.value & ((1 << width) - 1)


def _single_bits(value: float) -> int:
    """Bits of the nearest single-precision number, infinity past the greatest."""
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000
