"""Losses: the class of every position by comparison, and a reduction."""

from __future__ import annotations

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
