"""Approximate functions of single-precision values as code: the shared definitions on expressions."""

from __future__ import annotations

from collections.abc import Callable

from mlirstitch.runtime.emulator import approximations
from mlirstitch.runtime.emulator.jit.builder import Expression, Operand


class _Code:
    """:class:`approximations.Arithmetic` on expressions."""

    def choose(self, condition: Expression, yes: Operand, no: Operand) -> Expression:
        return condition.where(yes, no)

    def bits(self, value: Expression) -> Expression:
        return value.as_type("i64")

    def number(self, bits: Expression) -> Expression:
        return bits.as_type("f64")

    def equal(self, a: Expression, b: Operand) -> Expression:
        return a.eq(b)

    def less(self, a: Operand, b: Operand) -> Expression:
        if isinstance(a, Expression):
            return a.lt(b)
        assert isinstance(b, Expression)
        return b.gt(a)

    def shift_right(self, bits: Expression, amount: int) -> Expression:
        return bits.arithmetic_shift(amount)


_CODE = _Code()


def _exp2(value: Expression) -> Expression:
    return approximations.exp2(value.cast("fpext", "f64"), _CODE).cast("fptrunc", "f32")


def _log2(value: Expression) -> Expression:
    return approximations.log2(value.cast("fpext", "f64"), _CODE).cast("fptrunc", "f32")


def _rsqrt(value: Expression) -> Expression:
    wide = value.cast("fpext", "f64")
    return (wide.other(1.0) / wide.call("sqrt")).cast("fptrunc", "f32")


FUNCTIONS: dict[str, Callable[[Expression], Expression]] = {"ex2": _exp2, "lg2": _log2, "rsqrt": _rsqrt}
"""Functions by opcode, single precision to single precision."""
