"""The arith and math dialects on numpy arrays: one function an op, element-wise with broadcasting.

Every function takes the op and its operands' values and returns the result's value. Integer semantics are those of
the dialects' documentation: two's complement wrap, ``divsi``/``remsi`` truncate, shifts by the width or more and
division by zero are undefined there and unspecified here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from mlir import ir

from mlirstitch.driver.reference.elements import Elements, is_float

Array = np.ndarray
ScalarOp = Callable[[ir.Operation, Elements, list[Array]], Array]


def _unsigned(x: Array) -> Array:
    """The same bits read as an unsigned integer (bool is already unsigned)."""
    return x if x.dtype == np.bool_ else x.view(np.dtype(f"u{x.dtype.itemsize}"))


def _like(x: Array, dtype: np.dtype) -> Array:
    """An unsigned result put back into the signless type."""
    return x.astype(dtype, copy=False) if dtype == np.bool_ else x.astype(f"u{dtype.itemsize}", copy=False).view(dtype)


def _simple(f: Callable[..., Any]) -> ScalarOp:
    return lambda op, el, a: np.asarray(f(*a)).astype(a[0].dtype, copy=False)


def _on_unsigned(f: Callable[..., Any]) -> ScalarOp:
    return lambda op, el, a: _like(np.asarray(f(*(_unsigned(x) for x in a))), a[0].dtype)


def _in_float64(f: Callable[..., Any]) -> ScalarOp:
    """A function of floats computed in f64 and rounded once to the operand type."""
    return lambda op, el, a: np.asarray(f(*(x.astype(np.float64) for x in a))).astype(a[0].dtype, copy=False)


def _logic(on_bool: Callable[..., Any], on_int: Callable[..., Any]) -> ScalarOp:
    return lambda op, el, a: np.asarray((on_bool if a[0].dtype == np.bool_ else on_int)(*a))


def _div_truncated(a: Array, b: Array) -> Array:
    q = np.floor_divide(a, b)
    inexact = np.not_equal(q * b, a)
    return np.where(inexact & ((a < 0) != (b < 0)), q + np.array(1, a.dtype), q)


def _div_ceil(a: Array, b: Array) -> Array:
    q = np.floor_divide(a, b)
    return np.where(np.not_equal(q * b, a), q + np.array(1, a.dtype), q)


def _rounded_half_away(x: Array) -> Array:
    return np.copysign(np.floor(np.abs(x) + 0.5), x)


_erf = np.frompyfunc(math.erf, 1, 1)
_erfc = np.frompyfunc(math.erfc, 1, 1)

_FLOAT_COMPARE: dict[str, Callable[[Array, Array], Any]] = {
    "eq": np.equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}


def _ordered(a: Array, b: Array) -> Array:
    return ~(np.isnan(a) | np.isnan(b))


def _float_compare(predicate: int, a: Array, b: Array) -> Array:
    """``arith.cmpf``; predicates numbered as in ArithBase.td: false, oeq..ord, ueq..uno, true."""
    if predicate in (0, 15):
        return np.full(np.broadcast_shapes(a.shape, b.shape), predicate == 15)
    if predicate == 7:
        return _ordered(a, b)
    if predicate == 14:
        return ~_ordered(a, b)
    unordered = predicate >= 8
    name = ("eq", "gt", "ge", "lt", "le", "ne")[predicate - (8 if unordered else 1)]
    result = np.not_equal(a, b) & _ordered(a, b) if name == "ne" else _FLOAT_COMPARE[name](a, b)
    return result | ~_ordered(a, b) if unordered else result


def _cmpf(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    return np.asarray(_float_compare(ir.IntegerAttr(op.attributes["predicate"]).value, a[0], a[1]))


_INT_COMPARE: list[Callable[[Array, Array], Any]] = [
    np.equal,
    np.not_equal,
    np.less,
    np.less_equal,
    np.greater,
    np.greater_equal,
]


def _cmpi(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    predicate = ir.IntegerAttr(op.attributes["predicate"]).value
    if predicate >= 6:  # ult, ule, ugt, uge
        return np.asarray(_INT_COMPARE[predicate - 4](_unsigned(a[0]), _unsigned(a[1])))
    if a[0].dtype == np.bool_ and predicate >= 2:  # a signed i1 that is set is -1
        return np.asarray(_INT_COMPARE[predicate](-a[0].astype(np.int8), -a[1].astype(np.int8)))
    return np.asarray(_INT_COMPARE[predicate](a[0], a[1]))


def _cast(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    return a[0].astype(el.dtype(op.results[0].type), copy=False)


def _cast_signed(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    x = -a[0].astype(np.int8) if a[0].dtype == np.bool_ else a[0]
    return x.astype(el.dtype(op.results[0].type), copy=False)


def _cast_unsigned(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    return _unsigned(a[0]).astype(el.dtype(op.results[0].type), copy=False)


def _truncate_integer(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    dtype = el.dtype(op.results[0].type)
    return (a[0] & np.array(1, a[0].dtype)).astype(np.bool_) if dtype == np.bool_ else a[0].astype(dtype)


def _float_to_unsigned(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    dtype = el.dtype(op.results[0].type)
    return a[0].astype(np.bool_) if dtype == np.bool_ else a[0].astype(f"u{dtype.itemsize}").view(dtype)


def _bitcast(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    # With floats widened the pattern of the original type must be restored first and widened again afterwards.
    source = Elements().dtype(op.operands[0].type)
    target = Elements().dtype(op.results[0].type)
    x = np.ascontiguousarray(a[0].astype(source, copy=False))
    return x.view(target).reshape(a[0].shape).astype(el.dtype(op.results[0].type), copy=False)


def _fpowi(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    return np.power(a[0].astype(np.float64), a[1].astype(np.float64)).astype(a[0].dtype)


def _ipowi(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    negative = a[1] < 0
    power = np.power(a[0], np.where(negative, 0, a[1]))
    fraction = np.where(a[0] == 1, 1, np.where(a[0] == -1, np.where(a[1] % 2 == 0, 1, -1), 0))
    return np.where(negative, fraction, power).astype(a[0].dtype)


def _fma(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    if a[0].dtype.itemsize >= 8:  # one rounding needs the exact product: extended precision is the best numpy has
        wide = np.longdouble
        return (a[0].astype(wide) * a[1].astype(wide) + a[2].astype(wide)).astype(a[0].dtype)
    return (a[0].astype(np.float64) * a[1].astype(np.float64) + a[2].astype(np.float64)).astype(a[0].dtype)


def _select(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    return np.where(a[0], a[1], a[2])


def _count_leading_zeros(op: ir.Operation, el: Elements, a: list[Array]) -> Array:
    bits = a[0].dtype.itemsize * 8
    length = np.frompyfunc(lambda v: bits - int(v).bit_length(), 1, 1)
    return np.asarray(length(_unsigned(a[0]))).astype(a[0].dtype)


SCALAR_OPS: dict[str, ScalarOp] = {
    "arith.addf": _simple(np.add),
    "arith.subf": _simple(np.subtract),
    "arith.mulf": _simple(np.multiply),
    "arith.divf": _simple(np.divide),
    "arith.remf": _in_float64(np.fmod),
    "arith.negf": _simple(np.negative),
    "arith.maximumf": _simple(np.maximum),
    "arith.minimumf": _simple(np.minimum),
    "arith.maxnumf": _simple(np.fmax),
    "arith.minnumf": _simple(np.fmin),
    "arith.addi": _logic(np.logical_xor, np.add),
    "arith.subi": _logic(np.logical_xor, np.subtract),
    "arith.muli": _logic(np.logical_and, np.multiply),
    "arith.divsi": _simple(_div_truncated),
    "arith.divui": _on_unsigned(np.floor_divide),
    "arith.floordivsi": _simple(np.floor_divide),
    "arith.ceildivsi": _simple(_div_ceil),
    "arith.ceildivui": _on_unsigned(_div_ceil),
    "arith.remsi": _simple(np.fmod),
    "arith.remui": _on_unsigned(np.remainder),
    "arith.andi": _simple(np.bitwise_and),
    "arith.ori": _simple(np.bitwise_or),
    "arith.xori": _simple(np.bitwise_xor),
    "arith.shli": _simple(np.left_shift),
    "arith.shrsi": _simple(np.right_shift),
    "arith.shrui": _on_unsigned(np.right_shift),
    "arith.maxsi": _logic(np.logical_and, np.maximum),
    "arith.minsi": _logic(np.logical_or, np.minimum),
    "arith.maxui": _on_unsigned(np.maximum),
    "arith.minui": _on_unsigned(np.minimum),
    "arith.cmpf": _cmpf,
    "arith.cmpi": _cmpi,
    "arith.select": _select,
    "arith.extf": _cast,
    "arith.truncf": _cast,
    "arith.extsi": _cast_signed,
    "arith.extui": _cast_unsigned,
    "arith.trunci": _truncate_integer,
    "arith.sitofp": _cast_signed,
    "arith.uitofp": _cast_unsigned,
    "arith.fptosi": _cast,
    "arith.fptoui": _float_to_unsigned,
    "arith.index_cast": _cast_signed,
    "arith.index_castui": _cast_unsigned,
    "arith.bitcast": _bitcast,
    "math.absf": _simple(np.abs),
    "math.absi": _simple(np.abs),
    "math.ceil": _simple(np.ceil),
    "math.floor": _simple(np.floor),
    "math.trunc": _simple(np.trunc),
    "math.roundeven": _simple(np.rint),
    "math.round": _in_float64(_rounded_half_away),
    "math.copysign": _simple(np.copysign),
    "math.fma": _fma,
    "math.fpowi": _fpowi,
    "math.ipowi": _ipowi,
    "math.powf": _in_float64(np.power),
    "math.exp": _in_float64(np.exp),
    "math.exp2": _in_float64(np.exp2),
    "math.expm1": _in_float64(np.expm1),
    "math.log": _in_float64(np.log),
    "math.log2": _in_float64(np.log2),
    "math.log10": _in_float64(np.log10),
    "math.log1p": _in_float64(np.log1p),
    "math.sqrt": _in_float64(np.sqrt),
    "math.rsqrt": _in_float64(lambda x: 1.0 / np.sqrt(x)),
    "math.cbrt": _in_float64(np.cbrt),
    "math.sin": _in_float64(np.sin),
    "math.cos": _in_float64(np.cos),
    "math.tan": _in_float64(np.tan),
    "math.asin": _in_float64(np.arcsin),
    "math.acos": _in_float64(np.arccos),
    "math.atan": _in_float64(np.arctan),
    "math.atan2": _in_float64(np.arctan2),
    "math.sinh": _in_float64(np.sinh),
    "math.cosh": _in_float64(np.cosh),
    "math.tanh": _in_float64(np.tanh),
    "math.asinh": _in_float64(np.arcsinh),
    "math.acosh": _in_float64(np.arccosh),
    "math.atanh": _in_float64(np.arctanh),
    "math.erf": _in_float64(_erf),
    "math.erfc": _in_float64(_erfc),
    "math.ctlz": _count_leading_zeros,
    "math.isnan": lambda op, el, a: np.isnan(a[0]),
    "math.isinf": lambda op, el, a: np.isinf(a[0]),
    "math.isfinite": lambda op, el, a: np.isfinite(a[0]),
}
"""Op name to evaluator."""

REDUCTIONS: dict[str, np.ufunc] = {
    "arith.addf": np.add,
    "arith.mulf": np.multiply,
    "arith.maximumf": np.maximum,
    "arith.minimumf": np.minimum,
    "arith.maxnumf": np.fmax,
    "arith.minnumf": np.fmin,
    "arith.addi": np.add,
    "arith.muli": np.multiply,
    "arith.maxsi": np.maximum,
    "arith.minsi": np.minimum,
    "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor,
}
"""Associative combiners that may be evaluated in any order, as numpy reductions."""


def reorderable(name: str, dtype: np.dtype) -> bool:
    """Whether a reduction by this op in this type may be evaluated as a tree.

    Rounding makes sums and products of narrow floats depend on the order, so those follow the IR's serial order. numpy
    adds booleans as integers, which ``arith.addi`` on i1 does not.
    """
    if name not in REDUCTIONS or (dtype == np.bool_ and name not in ("arith.andi", "arith.ori", "arith.xori")):
        return False
    return not (is_float(dtype) and dtype.itemsize < 4 and name in ("arith.addf", "arith.mulf"))
