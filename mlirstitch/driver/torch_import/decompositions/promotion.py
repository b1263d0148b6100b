"""Type promotion written out, and the type in which an element-wise op computes.

The importer's own promotion reads unsigned integers as signed, evaluates functions of half types step by step in that
type, rounds a scalar operand to it first, and crashes on some mixtures of types. Here every operand is converted
beforehand to the type eager computes in, so that the importer only meets operands of one type:

* the promoted type (torch's rules, which know numbers and 0-d tensors as weaker operands);
* int32 where that is an integer of 8 or 16 bits, the result being cut back to those;
* float32 where that is a half type and eager, too, computes in float32 and rounds once: composite functions, products
  with a number that the half type does not hold, and sums with a factor. In sums eager rounds the numbers first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import reduce
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from mlirstitch.driver.torch_import.decompositions.registry import LOW_PRECISION, decompose

aten = torch.ops.aten

NUMBER = (bool, int, float)
SMALL_INTEGERS = (torch.uint8, torch.int8, torch.int16)
"""Types in which the importer compares with the wrong sign, or crashes (int8 remainder, uint8 quotient)."""


class Half(Enum):
    """When an op of a half type computes in float32: SUM stands for a sum with a factor other than 1."""

    NEVER = 0
    INEXACT_NUMBER = 1
    ALWAYS = 2
    SUM = 3


@dataclass(frozen=True)
class Elementwise:
    """How the operands of one op are promoted.

    Attributes:
        overload: the op.
        kind: torch's promotion kind.
        half: when half operands are widened.
        numbers: whether number operands take part in the promotion (parameters such as a slope do not).
    """

    overload: OpOverload
    kind: KIND = KIND.DEFAULT
    half: Half = Half.NEVER
    numbers: bool = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        operands = [v for v in (*args, *kwargs.values()) if isinstance(v, Tensor)]
        if self.numbers:
            operands += [v for v in args if isinstance(v, NUMBER)]
        common = promoted(*operands, kind=KIND.DEFAULT if self.kind == KIND.ALWAYS_BOOL else self.kind)
        wide = self._computing(common, operands, kwargs)
        if all(v.dtype == wide for v in operands if isinstance(v, Tensor)):
            return NotImplemented
        result = torch.bool if self.kind == KIND.ALWAYS_BOOL else common
        rounds = self.half == Half.SUM and common in LOW_PRECISION

        def convert(value: Any) -> Any:
            if isinstance(value, Tensor):
                return value.to(common).to(wide) if rounds else value.to(wide)
            if rounds and isinstance(value, float):
                return rounded(value, common)
            return wrapped(value, common) if self.numbers and type(value) is int else value

        out = self.overload(*map(convert, args), **{k: convert(v) for k, v in kwargs.items()})
        return out.to(result)

    def _computing(self, common: torch.dtype, operands: list[Any], kwargs: dict[str, Any]) -> torch.dtype:
        if common in SMALL_INTEGERS:
            return torch.int32
        if common not in LOW_PRECISION or self.half == Half.NEVER:
            return common
        if self.half == Half.ALWAYS:
            return torch.float32
        if self.half == Half.SUM:
            return torch.float32 if kwargs.get("alpha", 1) != 1 else common
        numbers = [v for v in (*operands, *kwargs.values()) if isinstance(v, NUMBER)]
        precise = any(isinstance(v, Tensor) and v.ndim == 0 and v.dtype != common for v in operands)
        return torch.float32 if precise or not all(holds(common, v) for v in numbers) else common


def wrapped(number: int, dtype: torch.dtype) -> int:
    """A Python number as eager puts it into a small integer type; unchanged for other types."""
    if dtype not in SMALL_INTEGERS:
        return number
    limits = torch.iinfo(dtype)
    return (number - limits.min) % (limits.max - limits.min + 1) + limits.min


def promoted(*operands: Any, kind: KIND = KIND.DEFAULT) -> torch.dtype:
    """The type that eager promotes the operands to."""
    return elementwise_dtypes(*operands, type_promotion_kind=kind)[1]


def holds(dtype: torch.dtype, number: bool | int | float) -> bool:
    """Whether a Python number survives conversion to a half type."""
    value = float(number)
    return math.isnan(value) or rounded(value, dtype) == value


def rounded(number: float, dtype: torch.dtype) -> float:
    """A Python number after conversion to a half type."""
    # numpy, because a torch call here would be traced into the program
    with np.errstate(over="ignore"):
        return float((np.float16 if dtype == torch.float16 else ml_dtypes.bfloat16)(number))


def _register(*overloads: OpOverload, kind: KIND = KIND.DEFAULT, half: Half = Half.NEVER, numbers: bool = True) -> None:
    for overload in overloads:
        decompose(overload)(Elementwise(overload, kind, half, numbers))


# Arithmetic with a number.
_register(aten.sub.Tensor, aten.sub.Scalar, aten.rsub.Scalar, aten.rsub.Tensor, half=Half.SUM)
_register(
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.pow.Scalar,
    aten.pow.Tensor_Tensor,
    half=Half.INEXACT_NUMBER,
)


def _addition(overload: OpOverload) -> None:
    """The sum of truth values is their disjunction; the importer's addition of a number wraps."""
    promote = Elementwise(overload, half=Half.SUM)

    def rule(a: Tensor, b: Any, *args: Any, **kwargs: Any) -> Any:
        if promoted(a, b) != torch.bool:
            return promote(a, b, *args, **kwargs)
        other = b if isinstance(b, Tensor) else torch.full((), b)
        alpha = (*args, *kwargs.values(), True)[0]
        return aten.bitwise_or.Tensor(a, other if alpha else torch.zeros_like(other))

    decompose(overload)(rule)


_addition(aten.add.Tensor)
_addition(aten.add.Scalar)
_register(aten.div.Tensor, aten.div.Scalar, kind=KIND.INT_TO_FLOAT, half=Half.INEXACT_NUMBER)
_register(
    aten.maximum.default,
    aten.minimum.default,
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clamp_min.default,
    aten.clamp_min.Tensor,
    aten.clamp_max.default,
    aten.clamp_max.Tensor,
    aten.remainder.Tensor,
    aten.remainder.Scalar,
    aten.abs.default,
    aten.relu.default,
    aten.sign.default,
    aten.neg.default,
    aten.bitwise_left_shift.Tensor,
    aten.bitwise_right_shift.Tensor,
    aten.__rshift__.Scalar,
)
_register(aten.threshold.default, numbers=False)
_register(
    *(getattr(aten, name).Tensor for name in ("gt", "ge", "lt", "le", "ne")),
    kind=KIND.ALWAYS_BOOL,
)


@decompose(aten.eq.Tensor)
def equal(a: Tensor, b: Tensor) -> Any:
    """The importer takes a value for equal to itself, also where it is NaN."""
    if a.is_floating_point() and b.is_floating_point():
        return torch.logical_not(aten.ne.Tensor(a, b))
    return Elementwise(aten.eq.Tensor, KIND.ALWAYS_BOOL)(a, b)


def _compare_with_number(tensor_form: OpOverload, number_form: OpOverload) -> None:
    """The importer compares a float32 tensor with a fraction in float64, eager in float32."""
    promote = Elementwise(number_form, KIND.ALWAYS_BOOL)

    def rule(x: Tensor, number: Any) -> Any:
        fraction = isinstance(number, float) and not (number.is_integer() and abs(number) < LARGEST_INTEGER)
        common = promoted(x, number)
        if not common.is_floating_point:
            return promote(x, number)
        if fraction:
            return tensor_form(x.to(common), torch.full((), number, dtype=common))
        return number_form(x.to(common), int(number)) if isinstance(number, float) else promote(x, number)

    decompose(number_form)(rule)


LARGEST_INTEGER = 2**8
"""Integers below are held by every float type."""

for _name in ("gt", "ge", "lt", "le", "eq", "ne"):
    _compare_with_number(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)
# Functions of one float, single instructions of the IR.
_register(
    *(getattr(aten, name).default for name in ("exp", "exp2", "log", "log2", "log10", "sqrt", "rsqrt", "sin", "cos")),
    *(getattr(aten, name).default for name in ("tanh", "erf", "asin", "acos", "atan", "atan2")),
    kind=KIND.INT_TO_FLOAT,
)
# Functions that the importer writes as several instructions.
_register(
    *(getattr(aten, name).default for name in ("sigmoid", "expm1", "log1p", "sinh", "cosh", "tan", "asinh", "acosh")),
    *(getattr(aten, name).default for name in ("atanh", "logit", "erfinv", "logaddexp")),
    *(getattr(aten, name).default for name in ("silu", "mish", "hardswish", "hardsigmoid", "logaddexp2")),
    aten.xlogy.Tensor,
    kind=KIND.INT_TO_FLOAT,
    half=Half.ALWAYS,
    numbers=False,
)
# Functions with parameters.
_register(
    *(getattr(aten, name).default for name in ("silu_backward", "sigmoid_backward", "tanh_backward", "gelu_backward")),
    *(getattr(aten, name).default for name in ("elu", "elu_backward", "leaky_relu", "leaky_relu_backward", "softplus")),
    *(getattr(aten, name).default for name in ("softplus_backward", "addcmul", "addcdiv", "huber_loss", "mse_loss")),
    *(getattr(aten, name).default for name in ("smooth_l1_loss", "mse_loss_backward", "soft_margin_loss")),
    *(getattr(aten, name).default for name in ("binary_cross_entropy", "binary_cross_entropy_with_logits")),
    aten.lerp.Scalar,
    aten.lerp.Tensor,
    half=Half.ALWAYS,
    numbers=False,
)
# Resampling and contractions: sums in the wide type.
_register(aten.upsample_bilinear2d.vec, aten._adaptive_avg_pool2d.default, half=Half.ALWAYS, numbers=False)
_register(aten.mm.default, aten.bmm.default, aten.convolution.default, numbers=False)


@decompose(aten.where.self)
def where(condition: Tensor, a: Tensor, b: Tensor) -> Any:
    common = promoted(a, b)
    shape = torch.broadcast_shapes(a.shape, b.shape, condition.shape)
    if a.shape == b.shape != shape:
        a = a.expand(shape)  # equal choices would be folded to one of them, of a smaller shape than the result
    elif a.dtype == b.dtype == common:
        return NotImplemented
    return aten.where.self(condition, a.to(common), b.to(common))


@decompose(aten.cat.default)
def concatenate(tensors: Sequence[Tensor], dim: int = 0) -> Any:
    """Operands of several types are promoted; the importer dies of int8 beside bool."""
    common = promoted_together([t.dtype for t in tensors])
    if all(t.dtype == common for t in tensors):
        return NotImplemented
    return aten.cat.default([t.to(common) for t in tensors], dim)


def promoted_together(types: Sequence[torch.dtype]) -> torch.dtype:
    """The type of a tensor that holds elements of all the types; sizes do not matter here."""
    return reduce(torch.promote_types, types)
