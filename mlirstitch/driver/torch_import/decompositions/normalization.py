"""Layer, RMS, group, instance and batch normalisation, forward and backward.

Statistics are computed in float32 for half and float32 input (float64 stays float64), the mean once, the variance in a
second pass over ``x - mean``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mlirstitch.driver.torch_import.decompositions.reductions import moments
from mlirstitch.driver.torch_import.decompositions.registry import computing, count, decompose

aten = torch.ops.aten


def _normalize(x: Tensor, dims: list[int], eps: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Normalised x, mean, reciprocal deviation and biased variance, all in the computing type, dims kept."""
    mean, centered, squares = moments(x, dims)
    variance = squares / float(count(x, dims))
    rstd = torch.rsqrt(variance + eps)
    return centered * rstd, mean, rstd, variance


def _affine(y: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    if weight is not None:
        y = y * computing(weight)
    return y if bias is None else y + computing(bias)


def _per_channel(t: Tensor | None, rank: int) -> Tensor | None:
    """A vector of channel values shaped to broadcast against [N, C, ...]."""
    return None if t is None else t.reshape([1, -1] + [1] * (rank - 2))


@decompose(aten.native_layer_norm.default)
def layer_norm(
    x: Tensor, normalized_shape: list[int], weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    y, mean, rstd, _ = _normalize(computing(x), dims, eps)
    return _affine(y, weight, bias).to(x.dtype), mean.to(x.dtype), rstd.to(x.dtype)


@decompose(aten.native_layer_norm_backward.default)
def layer_norm_backward(
    grad: Tensor,
    x: Tensor,
    normalized_shape: list[int],
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    outer = list(range(x.ndim - len(normalized_shape)))
    inner = list(range(len(outer), x.ndim))
    g, scale = computing(grad), computing(rstd)
    normalized = (computing(x) - computing(mean)) * scale
    d_x = d_weight = d_bias = None
    if output_mask[0]:
        gw = g if weight is None else g * computing(weight)
        n = float(count(x, inner))
        d_x = (gw - gw.sum(inner, True) / n - normalized * ((gw * normalized).sum(inner, True) / n)) * scale
        d_x = d_x.to(x.dtype)
    if output_mask[1] and weight is not None:
        product = g * normalized
        d_weight = (product.sum(outer) if outer else product).to(weight.dtype)
    if output_mask[2] and bias is not None:
        d_bias = (g.sum(outer) if outer else g).to(bias.dtype)
    return d_x, d_weight, d_bias


@decompose(aten.rms_norm.default)
def rms_norm(x: Tensor, normalized_shape: list[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    dims = list(range(x.ndim - len(normalized_shape), x.ndim))
    wide = computing(x)
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    rstd = torch.rsqrt((wide * wide).mean(dims, True) + eps)
    return _affine(wide * rstd, weight, None).to(x.dtype)


@decompose(aten.native_group_norm.default)
def group_norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, n: int, c: int, spatial: int, groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    y, mean, rstd, _ = _normalize(computing(x).reshape(n, groups, -1), [2], eps)
    y = _affine(y.reshape(x.shape), _per_channel(weight, x.ndim), _per_channel(bias, x.ndim))
    return y.to(x.dtype), mean.reshape(n, groups).to(x.dtype), rstd.reshape(n, groups).to(x.dtype)


@decompose(aten.native_group_norm_backward.default)
def group_norm_backward(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    weight: Tensor | None,
    n: int,
    c: int,
    spatial: int,
    groups: int,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    shape = [n, groups, c // groups, spatial]
    g = computing(grad).reshape(shape)
    scale = computing(rstd).reshape(n, groups, 1, 1)
    normalized = (computing(x).reshape(shape) - computing(mean).reshape(n, groups, 1, 1)) * scale
    d_x = d_weight = d_bias = None
    if output_mask[0]:
        gw = g if weight is None else g * computing(weight).reshape(1, groups, c // groups, 1)
        m = float(c // groups * spatial)
        d_x = (gw - gw.sum([2, 3], True) / m - normalized * ((gw * normalized).sum([2, 3], True) / m)) * scale
        d_x = d_x.reshape(x.shape).to(x.dtype)
    if output_mask[1]:
        d_weight = (g * normalized).sum([0, 3]).reshape(c).to(x.dtype)
    if output_mask[2]:
        d_bias = g.sum([0, 3]).reshape(c).to(x.dtype)
    return d_x, d_weight, d_bias


# ---------------------------------------------------------------- batch norm
def _batch_norm_training(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Output, mean, reciprocal deviation and unbiased variance of every channel."""
    dims = [0, *range(2, x.ndim)]
    y, mean, rstd, variance = _normalize(computing(x), dims, eps)
    y = _affine(y, _per_channel(weight, x.ndim), _per_channel(bias, x.ndim)).to(x.dtype)
    n = count(x, dims)
    unbiased = variance * (n / (n - 1.0)) if n > 1 else variance * float("inf")
    return y, mean.reshape(-1), rstd.reshape(-1), unbiased.reshape(-1)


def _batch_norm_inference(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, var: Tensor, eps: float
) -> Tensor:
    rank = x.ndim
    rstd = torch.rsqrt(computing(var) + eps).reshape([1, -1] + [1] * (rank - 2))
    y = (computing(x) - computing(mean).reshape([1, -1] + [1] * (rank - 2))) * rstd
    return _affine(y, _per_channel(weight, rank), _per_channel(bias, rank)).to(x.dtype)


def _moved(running: Tensor, batch: Tensor, momentum: float) -> Tensor:
    return (computing(running) * (1.0 - momentum) + batch.to(computing(running).dtype) * momentum).to(running.dtype)


@decompose(aten._native_batch_norm_legit_functional.default)
def batch_norm_functional(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    if not training:
        y = _batch_norm_inference(x, weight, bias, running_mean, running_var, eps)
        none = x.new_zeros(0)
        return y, none, none, running_mean, running_var
    y, mean, rstd, unbiased = _batch_norm_training(x, weight, bias, eps)
    return y, mean, rstd, _moved(running_mean, mean, momentum), _moved(running_var, unbiased, momentum)


@decompose(aten._batch_norm_with_update_functional.default)
def batch_norm_with_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    y, mean, rstd, unbiased = _batch_norm_training(x, weight, bias, eps)
    reserve = x.new_zeros(0, dtype=torch.uint8)
    return y, mean, rstd, reserve, _moved(running_mean, mean, momentum), _moved(running_var, unbiased, momentum)


@decompose(aten._native_batch_norm_legit.no_stats)
def batch_norm_no_stats(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, training: bool, momentum: float, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    return _batch_norm_training(x, weight, bias, eps)[:3]


@decompose(aten._native_batch_norm_legit_no_training.default)
def batch_norm_no_training(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, Tensor, Tensor]:
    none = x.new_zeros(0)
    return _batch_norm_inference(x, weight, bias, running_mean, running_var, eps), none, none


@decompose(aten._batch_norm_no_update.default)
def batch_norm_no_update(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor,
    running_var: Tensor,
    momentum: float,
    eps: float,
) -> tuple[Tensor, ...]:
    y = _batch_norm_inference(x, weight, bias, running_mean, running_var, eps)
    return y, x.new_zeros(0), x.new_zeros(0), x.new_zeros(0, dtype=torch.uint8)


@decompose(aten.native_batch_norm.default)
def native_batch_norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Any:
    if training and running_mean is not None:
        return NotImplemented  # updates its arguments in place: torch's functional form is taken instead
    if training:
        return _batch_norm_training(x, weight, bias, eps)[:3]
    assert running_mean is not None
    assert running_var is not None
    none = x.new_zeros(0)
    return _batch_norm_inference(x, weight, bias, running_mean, running_var, eps), none, none


def _batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_invstd: Tensor | None,
    train: bool,
    eps: float,
    output_mask: list[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    dims = [0, *range(2, x.ndim)]
    shape = [1, -1] + [1] * (x.ndim - 2)
    if train:
        assert save_mean is not None
        assert save_invstd is not None
        mean, rstd = computing(save_mean), computing(save_invstd)
    else:
        assert running_mean is not None
        assert running_var is not None
        mean, rstd = computing(running_mean), torch.rsqrt(computing(running_var) + eps)
    g = computing(grad)
    scale = rstd.reshape(shape)
    normalized = (computing(x) - mean.reshape(shape)) * scale
    sum_g = g.sum(dims, True)
    sum_gn = (g * normalized).sum(dims, True)
    d_x = g * scale
    if train:
        n = float(count(x, dims))
        d_x = (g - sum_g / n - normalized * (sum_gn / n)) * scale
    if weight is not None:
        d_x = d_x * computing(weight).reshape(shape)
    like = weight if weight is not None else x
    d_weight = sum_gn.reshape(-1).to(like.dtype) if output_mask[1] else None
    d_bias = sum_g.reshape(-1).to(like.dtype) if output_mask[2] else None
    return (d_x.to(x.dtype) if output_mask[0] else None), d_weight, d_bias


decompose(aten.native_batch_norm_backward.default)(_batch_norm_backward)


@decompose(aten.batch_norm_backward.default)
def batch_norm_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    save_mean: Tensor | None,
    save_var: Tensor | None,
    update: bool,
    eps: float,
    output_mask: list[bool],
    reserve: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    return _batch_norm_backward(
        grad, x, weight, running_mean, running_var, save_mean, save_var, update, eps, output_mask
    )


@decompose(aten._weight_norm_interface_backward.default)
def weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Gradients of v and g for weight = g * v / norms (Salimans and Kingma 2016, equation 3)."""
    d_weight, direction, scale = computing(grad), computing(v), computing(norms)
    along = (d_weight * direction).sum([d for d in range(v.ndim) if d != dim % v.ndim], True) / scale
    d_v = computing(g) / scale * (d_weight - direction * (along / scale))
    return d_v.to(v.dtype), along.to(g.dtype)
