"""Losses and scatter-like gradients without scatter: one-hot comparison and a reduction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose

aten = torch.ops.aten

MEAN, SUM = 1, 2


def _one_hot(index: Tensor, size: int, dim: int) -> Tensor:
    """bool tensor, true where the position along the new dim ``dim`` of extent ``size`` equals ``index``."""
    shape = [1] * (index.ndim + 1)
    shape[dim] = size
    return torch.arange(size).reshape(shape) == index.unsqueeze(dim)


def _class_dim(x: Tensor) -> int:
    return 0 if x.ndim == 1 else 1


@decompose(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss_forward(
    x: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """x: [N, C, ...] or [C] log-probabilities; target: class of every position. Loss and total weight."""
    dim = _class_dim(x)
    hit = _one_hot(target, x.shape[dim], dim)
    zero = torch.zeros((), dtype=computing(x).dtype)
    picked = -torch.where(hit, computing(x), zero).sum([dim])
    kept = target != ignore_index
    if weight is None:
        scale = kept.to(picked.dtype)
    else:
        shape = [1] * x.ndim
        shape[dim] = -1
        scale = torch.where(hit, computing(weight).reshape(shape), zero).sum([dim])
        scale = torch.where(kept, scale, zero)
        picked = picked * scale
    # An ignored position counts nothing, whatever its log-probability is.
    losses = torch.where(kept, picked, zero)
    total = scale.sum()
    if reduction == MEAN:
        return (losses.sum() / total).to(x.dtype), total.to(x.dtype)
    if reduction == SUM:
        return losses.sum().to(x.dtype), total.to(x.dtype)
    return losses.to(x.dtype), torch.zeros((), dtype=x.dtype)


@decompose(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    grad: Tensor,
    x: Tensor,
    target: Tensor,
    weight: Tensor | None,
    reduction: int,
    ignore_index: int,
    total_weight: Tensor,
) -> Tensor:
    dim = _class_dim(x)
    hit = _one_hot(target, x.shape[dim], dim) & (target != ignore_index).unsqueeze(dim)
    g = computing(grad)
    g = g / computing(total_weight) if reduction == MEAN else g
    g = g.unsqueeze(dim) if grad.ndim else g
    if weight is not None:
        shape = [1] * x.ndim
        shape[dim] = -1
        g = g * computing(weight).reshape(shape)
    return torch.where(hit, -g, torch.zeros((), dtype=g.dtype)).to(x.dtype)


@decompose(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Gradient of an embedding table [V, D]: the one-hot matrix [V, N] times the gradients [N, D]."""
    flat = indices.reshape(-1)
    hit = _one_hot(flat, num_weights, 0)
    if padding_idx >= 0:
        hit = hit & (flat != padding_idx).unsqueeze(0)
    rows = computing(grad).reshape(flat.shape[0], -1)
    selection = hit.to(rows.dtype)
    result = selection @ rows
    if scale_grad_by_freq:
        result = result / selection.sum([1], True).clamp_min(1.0)
    return result.to(grad.dtype)


@decompose(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    """x plus the sum of all source elements whose index names the position (the gradient of gather)."""
    if x.ndim == 0 or x.dtype == torch.bool or x.dtype.is_complex:
        return NotImplemented
    dim %= x.ndim
    source = source[tuple(slice(0, n) for n in index.shape)]
    # [..., position along dim, element of the index along dim, ...]
    hit = _one_hot(index, x.shape[dim], dim)
    wide = computing(source)
    added = torch.where(hit, wide.unsqueeze(dim), torch.zeros((), dtype=wide.dtype)).sum([dim + 1])
    padding: list[int] = []
    for d in reversed(range(x.ndim)):
        padding += [0, x.shape[d] - added.shape[d]]
    if any(padding):
        added = torch.nn.functional.pad(added, padding)
    return (computing(x) + added.to(computing(x).dtype)).to(x.dtype)


@decompose(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    if x.ndim == 0 or not x.is_floating_point():
        return NotImplemented
    return _accumulate(x, dim % x.ndim, index, source if alpha == 1 else source * alpha)


def _accumulate(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    """x with ``source``'s slices along ``dim`` added at the positions that ``index`` names."""
    size = x.shape[dim]
    index = torch.where(index < 0, index + size, index)
    wide = computing(source).movedim(dim, 0)
    rest = wide.shape[1:]
    added = _one_hot(index, size, 0).to(wide.dtype) @ wide.reshape(index.shape[0], -1)
    return (computing(x) + added.reshape(size, *rest).movedim(0, dim)).to(x.dtype)


@decompose(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
    """The gradient of ``x[index]``: accumulation along one dim. Other forms are left (and refused later)."""
    used = [d for d, i in enumerate(indices) if i is not None]
    if not accumulate or len(used) != 1 or not x.is_floating_point() or indices[used[0]].dtype == torch.bool:
        return NotImplemented
    dim, index = used[0], indices[used[0]]
    shape = [*x.shape[:dim], *index.shape, *x.shape[dim + 1 :]]
    source = values.expand(shape).reshape([*x.shape[:dim], -1, *x.shape[dim + 1 :]])
    return _accumulate(x, dim, index.reshape(-1), source)
