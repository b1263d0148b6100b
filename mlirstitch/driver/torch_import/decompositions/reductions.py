"""Sums, means, norms, softmax and index reductions.

Sums of half types are formed in float32 and rounded once; sums of integers in int64. Index reductions are two plain
reductions (the extremum, then the first index that holds it or a NaN), so that ties and NaN do not depend on the order
in which a kernel visits the elements.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mlirstitch.driver.torch_import.decompositions.registry import (
    LOW_PRECISION,
    computing,
    count,
    decompose,
    dims_of,
)

aten = torch.ops.aten


def is_integral(dtype: torch.dtype) -> bool:
    """bool and integer types."""
    return not dtype.is_floating_point and not dtype.is_complex


@decompose(aten.sum.dim_IntList)
def sum_over(x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    result = dtype or (torch.int64 if is_integral(x.dtype) else x.dtype)
    if x.dtype == result and result not in LOW_PRECISION:
        return NotImplemented
    wide = torch.float32 if result in LOW_PRECISION else result
    # The input is rounded to the requested type first, as eager does.
    return aten.sum.dim_IntList(x.to(result).to(wide), dims_of(x, dim), keepdim).to(result)


@decompose(aten.sum.default)
def sum_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return aten.sum.dim_IntList(x, list(range(x.ndim)), False, dtype=dtype)


@decompose(aten.mean.dim)
def mean_over(x: Tensor, dim: Any, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Tensor:
    result = dtype or x.dtype
    dims = dims_of(x, dim)
    return (computing(x.to(result)).sum(dims, keepdim) / float(count(x, dims))).to(result)


@decompose(aten.mean.default)
def mean_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return aten.mean.dim(x, list(range(x.ndim)), False, dtype=dtype)


@decompose(aten.prod.dim_int)
def prod_over(x: Tensor, dim: int, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    result = dtype or (torch.int64 if is_integral(x.dtype) else x.dtype)
    if x.ndim == 0:
        return x.to(result, copy=True)
    if x.dtype == result and result not in LOW_PRECISION:
        return NotImplemented
    wide = torch.float32 if result in LOW_PRECISION else result
    return aten.prod.dim_int(x.to(result).to(wide), dim, keepdim).to(result)


@decompose(aten.prod.default)
def prod_all(x: Tensor, *, dtype: torch.dtype | None = None) -> Tensor:
    return aten.prod.dim_int(x.reshape(-1), 0, False, dtype=dtype)


@decompose(aten.linalg_vector_norm.default)
def vector_norm(
    x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    result = dtype or x.dtype
    dims = dims_of(x, dim)
    wide = computing(x.to(result))
    if ord == 2:
        norm = (wide * wide).sum(dims, keepdim).sqrt()
    elif ord == 1:
        norm = wide.abs().sum(dims, keepdim)
    elif ord == 0:
        norm = (wide != 0).to(wide.dtype).sum(dims, keepdim)
    elif ord == math.inf:
        norm = wide.abs().amax(dims, keepdim)
    elif ord == -math.inf:
        norm = wide.abs().amin(dims, keepdim)
    else:
        norm = wide.abs().pow(ord).sum(dims, keepdim).pow(1.0 / ord)
    return norm.to(result)


@decompose(aten.norm.Scalar, aten.norm.ScalarOpt_dim)
def norm(x: Tensor, p: Any = None, dim: Any = None, keepdim: bool = False) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim, keepdim)


@decompose(aten.norm.ScalarOpt_dtype)
def norm_as(x: Tensor, p: Any, *, dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dtype=dtype)


@decompose(aten.norm.ScalarOpt_dim_dtype)
def norm_over_as(x: Tensor, p: Any, dim: Any, keepdim: bool = False, *, dtype: torch.dtype) -> Tensor:
    return torch.linalg.vector_norm(x, 2 if p is None else p, dim, keepdim, dtype=dtype)


# ---------------------------------------------------------------- variance
def moments(x: Tensor, dims: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    """Mean, ``x - mean`` and the sum of its squares over ``dims``, dims kept.

    The corrected two-pass algorithm (Chan, Golub, LeVeque 1983, "Algorithms for computing the sample variance",
    equation 1.7): the deviations from the rounded mean are summed together with their squares, and what their sum
    should not be is taken out. Rows such as 1e6 + small keep their variance.
    """
    n = float(count(x, dims))
    rounded = x.sum(dims, True) / n
    deviation = x - rounded
    drift = deviation.sum(dims, True)
    correction = drift / n
    squares = (deviation * deviation).sum(dims, True) - drift * correction
    # Of a constant row only rounding is left, which may be negative.
    return rounded + correction, deviation - correction, squares.clamp_min(0.0)


def _var_mean(x: Tensor, dim: Any, correction: Any, keepdim: bool) -> tuple[Tensor, Tensor]:
    dims = dims_of(x, dim)
    mean, _, squares = moments(computing(x), dims)
    freedom = max(0.0, count(x, dims) - (1 if correction is None else correction))
    variance = squares / float(freedom)  # 0 / 0 is NaN, as in eager
    if not keepdim:
        variance, mean = (t.reshape([n for d, n in enumerate(x.shape) if d not in dims]) for t in (variance, mean))
    return variance, mean


@decompose(aten.var.correction)
def variance(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return NotImplemented if x.dtype.is_complex else _var_mean(x, dim, correction, keepdim)[0].to(x.dtype)


@decompose(aten.std.correction)
def deviation(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return NotImplemented if x.dtype.is_complex else _var_mean(x, dim, correction, keepdim)[0].sqrt().to(x.dtype)


@decompose(aten.var_mean.correction)
def variance_and_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    var, mean = _var_mean(x, dim, correction, keepdim)
    return var.to(x.dtype), mean.to(x.dtype)


@decompose(aten.std_mean.correction)
def deviation_and_mean(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    var, mean = _var_mean(x, dim, correction, keepdim)
    return var.sqrt().to(x.dtype), mean.to(x.dtype)


# ---------------------------------------------------------------- softmax
@decompose(aten._softmax.default)
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    result = torch.float32 if half_to_float else x.dtype
    if x.numel() == 0:
        return x.to(result).clone()
    wide = computing(x)
    e = (wide - wide.amax([dim], True)).exp()
    return (e / e.sum([dim], True)).to(result)


@decompose(aten._log_softmax.default)
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    result = torch.float32 if half_to_float else x.dtype
    if x.numel() == 0:
        return x.to(result).clone()
    wide = computing(x)
    shifted = wide - wide.amax([dim], True)
    return (shifted - shifted.exp().sum([dim], True).log()).to(result)


@decompose(aten._safe_softmax.default)
def safe_softmax(x: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Softmax in which a row of nothing but -inf gives zeros."""
    probabilities = torch.softmax(x, dim, dtype=dtype)
    masked = (x == -math.inf).all(dim, keepdim=True)
    return torch.where(masked, torch.zeros((), dtype=probabilities.dtype), probabilities)


@decompose(aten._softmax_backward_data.default)
def softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    y = computing(output)
    product = computing(grad) * y
    return (product - y * product.sum([dim], True)).to(input_dtype)


@decompose(aten._log_softmax_backward_data.default)
def log_softmax_backward(grad: Tensor, output: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    g = computing(grad)
    return (g - computing(output).exp() * g.sum([dim], True)).to(input_dtype)


@decompose(aten.logsumexp.default)
def logsumexp(x: Tensor, dim: Any, keepdim: bool = False) -> Any:
    if x.dtype.is_complex or x.numel() == 0:
        return NotImplemented
    wide = computing(x if x.is_floating_point() else x.to(torch.float32))
    dims = dims_of(x, dim)
    top = wide.amax(dims, True)
    top = torch.where(top.abs() == math.inf, torch.zeros((), dtype=top.dtype), top)
    total = (wide - top).exp().sum(dims, True).log() + top
    total = total if keepdim else total.reshape([n for d, n in enumerate(x.shape) if d not in dims])
    return total.to(x.dtype if x.is_floating_point() else torch.float32)


# ---------------------------------------------------------------- extrema
_COMPARED_AS_INT32 = (torch.bool, torch.uint8, torch.int8, torch.int16)
"""Types whose extrema the importer gets wrong (unsigned read as signed) or crashes on (int8)."""


def _ordered_type(x: Tensor) -> Tensor:
    return x.to(torch.int32) if x.dtype in _COMPARED_AS_INT32 else x


@decompose(aten.amax.default)
def amax(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    if x.ndim == 0:
        return x.clone()
    if x.dtype in _COMPARED_AS_INT32:
        return aten.amax.default(x.to(torch.int32), dim, keepdim).to(x.dtype)
    return NotImplemented


@decompose(aten.amin.default)
def amin(x: Tensor, dim: Any = (), keepdim: bool = False) -> Any:
    if x.ndim == 0:
        return x.clone()
    if x.dtype in _COMPARED_AS_INT32:
        return aten.amin.default(x.to(torch.int32), dim, keepdim).to(x.dtype)
    return NotImplemented


def _extremum(x: Tensor, dim: int, keepdim: bool, largest: bool) -> tuple[Tensor, Tensor]:
    """The extremum over ``dim`` and the first index that holds it, a NaN counting as the extremum."""
    keys = _ordered_type(x)
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    dim %= x.ndim
    best = keys.amax([dim], True) if largest else keys.amin([dim], True)
    found = keys == best
    if keys.is_floating_point():
        found = found | (keys != keys)
    size = x.shape[dim]
    positions = torch.arange(size).reshape([size if d == dim else 1 for d in range(x.ndim)])
    index = torch.where(found, positions, torch.full((), size)).amin([dim], True)
    values = best.to(x.dtype)
    if not keepdim:
        values, index = values.squeeze(dim), index.squeeze(dim)
    return values, index


@decompose(aten.max.dim)
def max_over(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extremum(x, dim, keepdim, largest=True)


@decompose(aten.min.dim)
def min_over(x: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    return _extremum(x, dim, keepdim, largest=False)


def _index(x: Tensor, dim: int | None, keepdim: bool, largest: bool) -> Tensor:
    if dim is not None:
        return _extremum(x, dim, keepdim, largest)[1]
    index = _extremum(x.reshape(-1), 0, False, largest)[1]
    return index.reshape([1] * x.ndim) if keepdim else index


@decompose(aten.argmax.default)
def argmax(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _index(x, dim, keepdim, largest=True)


@decompose(aten.argmin.default)
def argmin(x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _index(x, dim, keepdim, largest=False)


@decompose(aten.max.default)
def max_all(x: Tensor) -> Any:
    return aten.max.default(x.to(torch.int32)).to(x.dtype) if x.dtype in _COMPARED_AS_INT32 else NotImplemented


@decompose(aten.min.default)
def min_all(x: Tensor) -> Any:
    return aten.min.default(x.to(torch.int32)).to(x.dtype) if x.dtype in _COMPARED_AS_INT32 else NotImplemented
