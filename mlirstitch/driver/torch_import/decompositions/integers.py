"""Integers: exact division, powers, truth values, and constants of type uint8."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from mlirstitch.driver.torch_import.decompositions.promotion import SMALL_INTEGERS, Elementwise, Half, promoted, wrapped
from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose, dims_of

aten = torch.ops.aten

MOST_MULTIPLICATIONS = 64
"""An integer power with an exponent up to this is written as multiplications."""


def _tensor(value: Any, dtype: torch.dtype) -> Tensor:
    """An operand as a tensor of the type; a number wraps as eager's does."""
    if isinstance(value, Tensor):
        return value.to(dtype)
    return torch.full((), value, dtype=dtype)


def _integers(a: Any, b: Any) -> tuple[Tensor, Tensor, torch.dtype] | None:
    """Operands in a signed type that holds them, and the type of the result; None unless the result is an integer."""
    result = promoted(a, b)
    if result.is_floating_point or result.is_complex or result == torch.bool:
        return None
    a, b = (wrapped(v, result) if isinstance(v, int) else v for v in (a, b))
    wide = torch.int32 if result in SMALL_INTEGERS else result
    return _tensor(a, wide), _tensor(b, wide), result


@decompose(aten.floor_divide.default, aten.floor_divide.Scalar)
def floor_divide(a: Any, b: Any) -> Any:
    return torch.div(a, b, rounding_mode="floor")


@decompose(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide_rounding(a: Any, b: Any, *, rounding_mode: str | None) -> Any:
    if rounding_mode is None:
        return torch.true_divide(a, b)
    operands = _integers(a, b)
    if operands is not None:
        x, y, result = operands
        if rounding_mode == "floor":
            return _floor_quotient(x, y).to(result)
        return NotImplemented if x is a and y is b else aten.div.Tensor_mode(x, y, rounding_mode="trunc").to(result)
    result = promoted(a, b) if promoted(a, b).is_floating_point else torch.float32
    x, y = _tensor(a, result), b.to(result) if isinstance(b, Tensor) else float(b)
    if rounding_mode == "trunc":
        return torch.trunc(x / y)
    return _floor_quotient_of_floats(computing(x), computing(y) if isinstance(y, Tensor) else y).to(result)


def _floor_quotient(a: Tensor, b: Tensor) -> Tensor:
    """Exact floor(a / b): the truncated quotient, one less where a remainder has the other sign than b."""
    quotient = torch.div(a, b, rounding_mode="trunc")
    rest = a - quotient * b
    return quotient - ((rest != 0) & ((rest < 0) != (b < 0))).to(quotient.dtype)


def _floor_quotient_of_floats(a: Tensor, b: Tensor | float) -> Tensor:
    """Python's float floor division, as eager computes it: exact remainder first, then the quotient.

    A number stays a number: the importer folds comparisons of constant tensors, and not always right.
    """
    rest = torch.fmod(a, b)
    quotient = (a - rest) / b
    other_sign = (rest < 0) != (b < 0) if isinstance(b, Tensor) else rest > 0 if b < 0 else rest < 0
    quotient = torch.where((rest != 0) & other_sign, quotient - 1.0, quotient)
    whole = torch.floor(quotient)
    whole = torch.where(quotient - whole > 0.5, whole + 1.0, whole)
    whole = torch.where(quotient == 0, a / b * 0.0, whole)
    if isinstance(b, Tensor):
        return torch.where(b == 0, a / b, whole)
    return a / b if b == 0 else whole


@decompose(aten.fmod.Tensor, aten.fmod.Scalar)
def fmod(a: Tensor, b: Any) -> Tensor:
    """The remainder with the sign of a, exact."""
    operands = _integers(a, b)
    if operands is not None:
        x, y, result = operands
        return (x - torch.div(x, y, rounding_mode="trunc") * y).to(result)
    result = promoted(a, b)
    x = computing(a.to(result))
    # The importer's remainder of positive operands is the exact one.
    rest = torch.remainder(x.abs(), computing(b.to(result)).abs() if isinstance(b, Tensor) else abs(float(b)))
    return torch.where(x < 0, -rest, rest).to(result)


_half_power = Elementwise(aten.pow.Tensor_Scalar, half=Half.INEXACT_NUMBER)


@decompose(aten.pow.Tensor_Scalar)
def power(x: Tensor, exponent: Any) -> Any:
    if not isinstance(exponent, int) or x.is_floating_point() or promoted(x, exponent).is_floating_point:
        return _half_power(x, exponent)
    if exponent < 0 or exponent > MOST_MULTIPLICATIONS:
        return NotImplemented
    result = promoted(x, exponent)
    factor = x.to(torch.int32 if result in SMALL_INTEGERS else result)
    product = torch.ones_like(factor)
    for bit in bin(exponent)[2:]:  # square and multiply
        product = product * product
        product = product * factor if bit == "1" else product
    return product.to(result)


def _truth(overload: OpOverload, over_one_dim: OpOverload) -> None:
    """any and all of numbers: of their being non-zero; over several dims: over one after the other."""
    over_dims = overload._overloadname == "dims"

    def rule(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if x.dtype != torch.bool:
            found = overload(x != 0, *args, **kwargs)
            return found.to(torch.uint8) if x.dtype == torch.uint8 else found
        if x.ndim == 0:
            return x.clone()
        return one_by_one(x, *args, **kwargs) if over_dims else NotImplemented

    def one_by_one(x: Tensor, dim: Any = None, keepdim: bool = False) -> Tensor:
        if dim is not None and not dim:
            return x.clone()  # no dims here are none, while sums take them for all
        for d in reversed(dims_of(x, dim)):
            x = over_one_dim(x, d, keepdim)
        return x

    decompose(overload)(rule)


for _name in ("any", "all"):
    _packet = getattr(aten, _name)
    for _overload in (_packet.default, _packet.dim, _packet.dims):
        _truth(_overload, _packet.dim)


def _bitwise_with_number(tensor_form: OpOverload, number_form: OpOverload) -> None:
    decompose(number_form)(lambda x, number: tensor_form(x, _tensor(number, promoted(x, number))))


for _name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
    _bitwise_with_number(getattr(aten, _name).Tensor, getattr(aten, _name).Scalar)


@decompose(aten.__lshift__.Tensor, aten.__lshift__.Scalar)
def shift_left(x: Tensor, amount: Any) -> Tensor:
    return aten.bitwise_left_shift.Tensor(x, _tensor(amount, x.dtype))


@decompose(aten.__rshift__.Tensor)
def shift_right(x: Tensor, amount: Tensor) -> Tensor:
    return aten.bitwise_right_shift.Tensor(x, amount)


@decompose(aten.full.default, final=True)
def full(*args: Any, **kwargs: Any) -> Any:
    """Kept whole: ``constants.py`` lifts it out of the graph."""
    return NotImplemented
