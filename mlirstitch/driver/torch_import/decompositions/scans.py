"""Prefix scans, in the type that eager accumulates in: half types in float32, integers and bools in int64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlirstitch.driver.torch_import.decompositions.promotion import SMALL_INTEGERS
from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose
from mlirstitch.driver.torch_import.lifted_ops import prefix_scan

aten = torch.ops.aten


def _scan(x: Tensor, dim: int, combine: str) -> Tensor:
    """x: a tensor of the type to compute in. A dim of one element, and a tensor without elements, stay as they are."""
    if x.ndim == 0 or x.numel() == 0 or x.shape[dim] == 1:
        return x.clone()
    return prefix_scan(x, dim % x.ndim, combine)


def _accumulated(x: Tensor, dim: int, dtype: torch.dtype | None, combine: str) -> Any:
    if dtype is None:
        dtype = x.dtype if x.is_floating_point() else torch.int64
    x = x.to(dtype)
    if dtype == torch.bool:  # eager does not either
        return NotImplemented
    if dtype in SMALL_INTEGERS:
        return _scan(x.to(torch.int32), dim, combine).to(dtype)
    return _scan(computing(x), dim, combine).to(dtype)


@decompose(aten.cumsum.default)
def cumsum(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _accumulated(x, dim, dtype, "add")


@decompose(aten.cumprod.default)
def cumprod(x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    return _accumulated(x, dim, dtype, "mul")


@decompose(aten.logcumsumexp.default)
def logcumsumexp(x: Tensor, dim: int) -> Any:
    if not x.is_floating_point():
        return NotImplemented
    return _scan(computing(x), dim, "logaddexp").to(x.dtype)


def _extrema(x: Tensor, dim: int, combine: str) -> tuple[Tensor, Tensor]:
    """Running extrema, and where each was seen last; a NaN stays, and later NaNs count as seen again."""
    if x.ndim == 0:
        return x.clone(), torch.zeros((), dtype=torch.int64)
    dim %= x.ndim
    wide = x.to(torch.int32) if x.dtype == torch.bool or x.dtype in SMALL_INTEGERS else x
    values = _scan(wide, dim, combine)
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    positions = torch.arange(x.shape[dim]).reshape(shape)
    seen = wide == values
    if x.is_floating_point():
        seen = seen | torch.isnan(wide)
    places = torch.where(seen, positions, torch.zeros((), dtype=torch.int64))
    return values.to(x.dtype), _scan(places, dim, "max")


@decompose(aten.cummax.default)
def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extrema(x, dim, "max")


@decompose(aten.cummin.default)
def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    return _extrema(x, dim, "min")
