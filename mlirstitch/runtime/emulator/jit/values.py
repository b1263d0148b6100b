"""What is known about a value while code is generated: one number for the whole warp, a ramp, or 32 numbers.

Index arithmetic on ``%ctaid``, parameters and constants stays scalar; ``%tid`` and what follows from it by addition
and multiplication with constants is a *ramp*, first thread and constant step, and stays scalar too. Accesses at such
addresses become plain vector loads and stores.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from mlirstitch.runtime.emulator.jit.builder import BITS, WARP, Expression


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a register or operand.

    Attributes:
        first: the value of all threads (a scalar expression, ``step`` 0), of the first thread (a scalar, ``step`` not
            0: thread t has ``first + t * step`` modulo the width), or of every thread (a vector).
        step: see ``first``.
        low, high: bounds of the value of every thread as an unsigned number, if known; a ramp within bounds does not
            wrap.
        aligned: that many low bits of ``first`` are 0, if it is a scalar.
        invariant: a function of block, thread and parameters alone, so that it may be computed at any time and for
            any thread.
    """

    first: Expression
    step: int = 0
    low: int = 0
    high: int = -1
    aligned: int = 0
    invariant: bool = False

    @property
    def uniform(self) -> bool:
        """One value for the whole warp."""
        return not self.first.vector and self.step == 0

    @property
    def ramp(self) -> bool:
        """A scalar with a step."""
        return not self.first.vector and self.step != 0

    @property
    def zeros(self) -> int:
        """That many low bits are 0 for all threads."""
        if self.first.vector:
            return 0
        return min(self.aligned, trailing_zeros(self.step, 64)) if self.step else self.aligned

    @property
    def bounded(self) -> bool:
        """Whether bounds are known."""
        return self.high >= 0

    @property
    def constant(self) -> int | None:
        """The value as an unsigned number if it is known."""
        return self.low if self.high == self.low and self.uniform else None


def trailing_zeros(number: int, width: int) -> int:
    """Low bits of ``number`` that are 0, at most ``width``."""
    return width if number == 0 else min((number & -number).bit_length() - 1, width)


def _bounds(low: int, high: int, width: int) -> tuple[int, int]:
    return (low, high) if low >= 0 and high < 1 << width else (0, -1)


def add(a: Value, b: Value, width: int) -> Value | None:
    """Sum of two values that are not vectors, else None."""
    if a.first.vector or b.first.vector:
        return None
    low, high = _bounds(a.low + b.low, a.high + b.high, width) if a.bounded and b.bounded else (0, -1)
    return Value(a.first + b.first, a.step + b.step, low, high, min(a.aligned, b.aligned), a.invariant and b.invariant)


def subtract(a: Value, b: Value, width: int) -> Value | None:
    """Difference of two values that are not vectors, else None."""
    if a.first.vector or b.first.vector:
        return None
    low, high = _bounds(a.low - b.high, a.high - b.low, width) if a.bounded and b.bounded else (0, -1)
    return Value(a.first - b.first, a.step - b.step, low, high, min(a.aligned, b.aligned), a.invariant and b.invariant)


def multiply(a: Value, b: Value, width: int) -> Value | None:
    """Product where one factor is a known number or both are the same for the whole warp, else None."""
    if a.first.vector or b.first.vector:
        return None
    if b.ramp:
        a, b = b, a
    factor = b.constant
    if a.ramp and factor is None:
        return None
    low, high = _bounds(a.low * b.low, a.high * b.high, width) if a.bounded and b.bounded else (0, -1)
    step = _signed(a.step * factor, width) if factor is not None else 0
    aligned = min(a.aligned + b.aligned, width)
    return Value(a.first * b.first, step, low, high, aligned, a.invariant and b.invariant)


def shift_left(a: Value, amount: int, width: int) -> Value | None:
    """Shift by a known amount below the width of a value that is no vector, else None."""
    if a.first.vector:
        return None
    low, high = _bounds(a.low << amount, a.high << amount, width) if a.bounded else (0, -1)
    step = _signed(a.step << amount, width)
    return Value(a.first << amount, step, low, high, min(a.aligned + amount, width), a.invariant)


def combine_disjoint(a: Value, b: Value, width: int) -> Value | None:
    """``a | b`` where no bit can be set in both (so it is a sum), else None."""
    for one, other in ((a, b), (b, a)):
        if other.bounded and other.high < 1 << one.zeros:
            return add(a, b, width)
    return None


def shift_right(a: Value, amount: int) -> Value | None:
    """Unsigned shift by a known amount of a value that is no vector and stays none, else None."""
    if a.first.vector:
        return None
    bounds = (a.low >> amount, a.high >> amount) if a.bounded else (0, -1)
    aligned = max(a.aligned - amount, 0)
    if a.uniform:
        return Value(a.first >> amount, 0, *bounds, aligned, a.invariant)
    if a.aligned < amount or not a.bounded or a.step < 0:
        return None
    if reach(a.step) < 1 << amount:
        return Value(a.first >> amount, 0, *bounds, aligned, a.invariant)
    if a.step % (1 << amount) == 0:
        return Value(a.first >> amount, a.step >> amount, *bounds, aligned, a.invariant)
    return None


def mask(a: Value, bits: int, width: int) -> Value | None:
    """``a & bits`` where the result is no vector, else None."""
    if a.first.vector:
        return None
    upper = ~bits & ((1 << width) - 1)
    bits |= (1 << a.zeros) - 1
    low = bits + 1 & bits == 0
    if a.bounded and low and a.high <= bits:
        return a
    if a.uniform:
        high = min(bits, a.high) if a.bounded else bits
        return Value(a.first & bits, 0, 0, high, max(a.aligned, trailing_zeros(bits, width)), a.invariant)
    span = reach(a.step)
    if a.step < 0 or span >= 1 << a.aligned:
        return None
    # No thread differs from the first one in the bits from `aligned` up.
    if low and bits < 1 << a.aligned and span <= bits:
        return Value(a.first.other(0), a.step, 0, span, width, a.invariant)
    if upper + 1 & upper == 0 and span <= upper < 1 << a.aligned:
        return Value(a.first, 0, *((a.low & bits, a.high) if a.bounded else (0, -1)), a.aligned, a.invariant)
    return None


def widen(a: Value, kind: str, signed: bool) -> Value | None:
    """Extension of a value that is no vector and, if a ramp, does not wrap; else None."""
    width = a.first.bits
    fits = a.bounded and (not signed or a.high < 1 << (width - 1))
    if a.first.vector or (a.step and not fits):
        return None
    value = replace(a, first=a.first.resize(kind, signed))
    return value if fits else replace(value, low=0, high=-1 if signed else (1 << width) - 1)


def truncate(a: Value, kind: str) -> Value | None:
    """The low bits of a value that is no vector, else None."""
    if a.first.vector:
        return None
    width = BITS[kind]
    low, high = _bounds(a.low, a.high, width) if a.bounded else (0, -1)
    return Value(a.first.resize(kind), _signed(a.step, width), low, high, min(a.aligned, width), a.invariant)


def _signed(number: int, width: int) -> int:
    half = 1 << (width - 1)
    return ((number + half) & ((1 << width) - 1)) - half


def spread(a: Value) -> Expression:
    """The value of every thread."""
    if a.first.vector:
        return a.first
    b = a.first.builder
    if a.constant is not None and a.first.type[0] == "i":
        return b.constant(a.constant, a.first.type, True)
    vector = b.splat(a.first)
    return vector + b.ramp(a.step, a.first.type) if a.step else vector


def reach(step: int) -> int:
    """Distance of the last thread from the first one."""
    return (WARP - 1) * step
