"""Element-wise functions.

The importer writes a composite function (sigmoid, GELU) and a scalar operand in the tensor's own type; eager evaluates
both in float32 for half types and rounds once. Maximum, minimum and clamp are left to the importer: its
compare-and-select is turned into ``arith.maximumf`` and ``arith.minimumf`` afterwards (``repairs.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes
from torch.utils._pytree import tree_map

from mlirstitch.driver.torch_import.decompositions.registry import LOW_PRECISION, computing, decompose, is_low

aten = torch.ops.aten


def result_dtype(*values: Any) -> torch.dtype:
    """The type that eager promotes the operands of an element-wise op to."""
    operands = [v for v in values if isinstance(v, (Tensor, int, float, bool))]
    _, result = elementwise_dtypes(*operands, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT)
    return result


def _widened(value: Any) -> Any:
    return computing(value) if isinstance(value, Tensor) else value


def _in_float32(overload: OpOverload) -> None:
    """Evaluate the op in float32 for half types and round the result once."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        if not is_low(*args):
            return NotImplemented
        result = overload(*tree_map(_widened, args), **tree_map(_widened, kwargs))
        return result.to(result_dtype(*(a for a in args if isinstance(a, Tensor))))

    decompose(overload)(rule)


for _overload in (
    aten.sigmoid.default,
    aten.silu.default,
    aten.silu_backward.default,
    aten.sigmoid_backward.default,
    aten.tanh_backward.default,
    aten.gelu_backward.default,
    aten.elu.default,
    aten.elu_backward.default,
    aten.leaky_relu.default,
    aten.softplus.default,
    aten.softplus_backward.default,
    aten.mish.default,
    aten.hardswish.default,
    aten.hardsigmoid.default,
    aten.log_sigmoid_forward.default,
    aten.expm1.default,
    aten.log1p.default,
    aten.sinh.default,
    aten.cosh.default,
    aten.asinh.default,
    aten.acosh.default,
    aten.atanh.default,
    aten.tan.default,
    aten.logit.default,
    aten.erfinv.default,
    aten.addcmul.default,
    aten.addcdiv.default,
    aten.lerp.Scalar,
    aten.lerp.Tensor,
    aten.smooth_l1_loss.default,
    aten.huber_loss.default,
    aten.mse_loss.default,
    aten.mse_loss_backward.default,
    aten.binary_cross_entropy.default,
    aten.binary_cross_entropy_with_logits.default,
    aten.soft_margin_loss.default,
    aten.avg_pool1d.default,
    aten.avg_pool2d.default,
    aten.avg_pool3d.default,
    aten.avg_pool2d_backward.default,
    aten._adaptive_avg_pool2d.default,
    aten.upsample_bilinear2d.vec,
):
    _in_float32(_overload)


def _exact(value: Any, dtype: torch.dtype) -> bool:
    """Whether a Python number survives conversion to the type (then the importer's rounding of it changes nothing)."""
    if not isinstance(value, float) or math.isnan(value) or math.isinf(value):
        return True
    # numpy, because a torch call here would be traced into the program
    return float((np.float16 if dtype == torch.float16 else ml_dtypes.bfloat16)(value)) == value


def _wider(value: Any, result: torch.dtype) -> bool:
    """A 0-d tensor of a wider type takes part with its own precision in eager."""
    return isinstance(value, Tensor) and value.ndim == 0 and value.is_floating_point() and value.dtype != result


def _scalar_operand(overload: OpOverload) -> None:
    """Arithmetic of a half tensor with a number that its type does not hold is done in float32."""

    def rule(a: Any, b: Any, **kwargs: Any) -> Any:
        result = result_dtype(a, b)
        if result not in LOW_PRECISION or kwargs.get("rounding_mode") is not None:
            return NotImplemented
        numbers = [v for v in (a, b) if not isinstance(v, Tensor)]
        inexact = not all(_exact(v, result) for v in (*numbers, kwargs.get("alpha", 1)))
        if not inexact and kwargs.get("alpha", 1) == 1 and not _wider(a, result) and not _wider(b, result):
            return NotImplemented
        return overload(_widened(a), _widened(b), **kwargs).to(result)

    decompose(overload)(rule)


for _overload in (
    aten.add.Tensor,
    aten.add.Scalar,
    aten.sub.Tensor,
    aten.sub.Scalar,
    aten.mul.Tensor,
    aten.mul.Scalar,
    aten.div.Tensor,
    aten.div.Scalar,
    aten.rsub.Scalar,
    aten.pow.Tensor_Scalar,
    aten.pow.Scalar,
):
    _scalar_operand(_overload)


@decompose(aten.reciprocal.default)
def reciprocal(x: Tensor) -> Tensor:
    """One over x; zero gives infinity, NaN gives NaN."""
    wide = computing(x if x.is_floating_point() else x.to(torch.float32))
    return torch.div(torch.ones((), dtype=wide.dtype), wide).to(x.dtype if x.is_floating_point() else torch.float32)


@decompose(aten.gelu.default)
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    """Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", exact or with their tanh approximation."""
    wide = computing(x)
    if approximate == "tanh":
        inner = math.sqrt(2.0 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
        y = 0.5 * wide * (1.0 + torch.tanh(inner))
    else:
        y = 0.5 * wide * (1.0 + torch.erf(wide * math.sqrt(0.5)))
    return y.to(x.dtype)


@decompose(aten.fmax.default)
def fmax(a: Tensor, b: Tensor) -> Tensor:
    """The larger operand, a NaN losing against a number."""
    return torch.where(a != a, b, torch.where(b != b, a, torch.maximum(a, b)))


@decompose(aten.fmin.default)
def fmin(a: Tensor, b: Tensor) -> Tensor:
    """The smaller operand, a NaN losing against a number."""
    return torch.where(a != a, b, torch.where(b != b, a, torch.minimum(a, b)))


@decompose(aten.addmm.default)
def addmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _scaled_sum(bias, torch.mm(a, b), beta, alpha)


@decompose(aten.baddbmm.default)
def baddbmm(bias: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    return _scaled_sum(bias, torch.bmm(a, b), beta, alpha)


def _scaled_sum(bias: Tensor, product: Tensor, beta: Any, alpha: Any) -> Tensor:
    product = product if alpha == 1 else product * alpha
    if beta == 0:
        return product
    return product + (bias if beta == 1 else bias * beta)


# ---------------------------------------------------------------- uint8
_UNSIGNED = (torch.uint8,)


def _widened_integer(value: Any) -> Any:
    return value.to(torch.int32) if isinstance(value, Tensor) and value.dtype in _UNSIGNED else value


def on_unsigned(overload: OpOverload, below: Callable[..., Any] | None = None) -> None:
    """Evaluate the op on uint8 operands in int32: the importer would read their bits as signed."""

    def rule(*args: Any, **kwargs: Any) -> Any:
        if any(isinstance(a, Tensor) and a.dtype in _UNSIGNED for a in args):
            result = overload(*tree_map(_widened_integer, args), **kwargs)
            narrow = result_dtype(*args) in _UNSIGNED and result.dtype == torch.int32
            return result.to(torch.uint8) if narrow else result
        return below(*args, **kwargs) if below is not None else NotImplemented

    decompose(overload)(rule)


for _overload in (
    aten.maximum.default,
    aten.minimum.default,
    aten.clamp.default,
    aten.clamp.Tensor,
    aten.clamp_min.default,
    aten.clamp_max.default,
    aten.gt.Tensor,
    aten.gt.Scalar,
    aten.ge.Tensor,
    aten.ge.Scalar,
    aten.lt.Tensor,
    aten.lt.Scalar,
    aten.le.Tensor,
    aten.le.Scalar,
    aten.eq.Scalar,
    aten.ne.Scalar,
    aten.abs.default,
    aten.relu.default,
    aten.sign.default,
    aten.neg.default,
    aten.fmod.Tensor,
    aten.fmod.Scalar,
    aten.remainder.Tensor,
    aten.remainder.Scalar,
    aten.bitwise_right_shift.Tensor,
    aten.__rshift__.Tensor,
    aten.__rshift__.Scalar,
):
    on_unsigned(_overload)


# ---------------------------------------------------------------- integer division
def _floor_quotient(a: Any, b: Any) -> Tensor:
    """Exact floor of a/b for integers: the truncated quotient, one less where the remainder has the other sign."""
    quotient = torch.div(a, b, rounding_mode="trunc")
    rest = torch.fmod(a, b) if isinstance(a, Tensor) else torch.fmod(torch.full((), a), b)
    adjust = (rest != 0) & ((rest < 0) != (b < 0))
    return quotient - adjust.to(quotient.dtype)


def _integer_operands(a: Any, b: Any) -> tuple[Tensor, Any, torch.dtype] | None:
    """Operands in a signed type that holds them exactly, and the result type; None unless both are integers."""
    result = result_dtype(a, b)
    if result.is_floating_point or result.is_complex or result == torch.bool:
        return None
    wide = torch.int64 if result == torch.int64 else torch.int32

    def signed(v: Any) -> Any:
        return v.to(wide) if isinstance(v, Tensor) else torch.full((), v, dtype=wide)

    return signed(a), signed(b), result


@decompose(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode="floor")


@decompose(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide_rounding(a: Any, b: Any, *, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return torch.true_divide(a, b)
    operands = _integer_operands(a, b)
    if operands is not None:
        x, y, result = operands
        if rounding_mode == "floor":
            return _floor_quotient(x, y).to(result)
        same = x is a and y is b
        return NotImplemented if same else aten.div.Tensor_mode(x, y, rounding_mode="trunc").to(result)
    if result_dtype(a, b) in LOW_PRECISION:
        narrow = result_dtype(a, b)
        return torch.div(_widened(a), _widened(b), rounding_mode=rounding_mode).to(narrow)
    return NotImplemented
