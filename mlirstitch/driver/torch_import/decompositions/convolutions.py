"""Gradients of convolutions, as convolutions (Dumoulin and Visin 2016, "A guide to convolution arithmetic")."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose
from mlirstitch.driver.torch_import.decompositions.spreading import spread

aten = torch.ops.aten


@decompose(aten.convolution_backward.default)
def convolution_backward(
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    bias_sizes: Sequence[int] | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """grad [N, O, ...], x [N, C, ...], weight [O, C / groups, ...] (transposed [C, O / groups, ...])."""
    rank = x.ndim - 2
    g, wide, kernel = computing(grad), computing(x), computing(weight)
    stride, padding, dilation = (_each(values, rank) for values in (stride, padding, dilation))
    d_x = d_weight = d_bias = None
    if output_mask[0]:
        if transposed:
            d_x = _convolve(g, kernel, stride, padding, dilation, groups)
        else:
            d_x = _backward_of_input(g, kernel, x.shape[2:], stride, padding, dilation, groups)
        d_x = d_x.to(x.dtype)
    if output_mask[1]:
        big, small = (g, wide) if transposed else (wide, g)
        d_weight = _backward_of_weight(big, small, weight.shape[2:], stride, padding, dilation, groups)
        d_weight = d_weight.to(weight.dtype)
    if output_mask[2]:
        d_bias = g.sum([0, *range(2, g.ndim)]).to(grad.dtype)
    return d_x, d_weight, d_bias


def _each(values: Sequence[int], rank: int) -> list[int]:
    """One number a spatial dim; one alone stands for all of them."""
    return list(values) * rank if len(values) == 1 else list(values)


def _convolve(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    return aten.convolution.default(x, weight, None, stride, padding, dilation, False, [0] * len(stride), groups)


def _backward_of_input(
    grad: Tensor,
    weight: Tensor,
    size: Sequence[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """The mirrored kernel over the gradient, whose elements stand ``stride`` apart: [N, C, *size]."""
    rank = len(stride)
    for d in range(rank):
        # Position 0 of the result sees the kernel's last element at the gradient's position padding - reach.
        reach = (weight.shape[d + 2] - 1) * dilation[d]
        grad = spread(grad, d + 2, stride[d], reach - padding[d], size[d] + reach)
    mirrored = _mirrored(weight)
    outputs, inputs = weight.shape[:2]
    per_group = mirrored.reshape(groups, outputs // groups, *weight.shape[1:]).transpose(1, 2)
    mirrored = per_group.reshape(groups * inputs, outputs // groups, *weight.shape[2:])
    return _convolve(grad, mirrored, [1] * rank, [0] * rank, dilation, groups)


def _mirrored(weight: Tensor) -> Tensor:
    """The kernel backwards in every spatial dim; as slices side by side, which leave the channels alone."""
    for d in range(2, weight.ndim):
        if weight.shape[d] > 1:
            weight = torch.cat([weight.narrow(d, k, 1) for k in reversed(range(weight.shape[d]))], d)
    return weight


def _backward_of_weight(
    x: Tensor,
    grad: Tensor,
    kernel: Sequence[int],
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    groups: int,
) -> Tensor:
    """x [N, C, ...] seen through the gradient [N, O, ...] as a kernel: [O, C / groups, *kernel]."""
    batch, channels, outputs, rank = x.shape[0], x.shape[1], grad.shape[1], len(kernel)
    for d in range(rank):
        # What lies behind the last window would give the result more than the kernel's extent.
        used = (grad.shape[d + 2] - 1) * stride[d] + (kernel[d] - 1) * dilation[d] + 1
        behind = [0, 0] * (rank - 1 - d)
        x = functional.pad(x, [*behind, padding[d], max(used - padding[d] - x.shape[d + 2], 0)])
        x = x.narrow(d + 2, 0, used)
    by_channel = x.reshape(batch, groups, channels // groups, *x.shape[2:]).permute(2, 1, 0, *range(3, rank + 3))
    by_channel = by_channel.reshape(channels // groups, groups * batch, *x.shape[2:])
    done = _convolve(by_channel, grad.transpose(0, 1), dilation, [0] * rank, stride, groups)
    assert math.prod(done.shape) == channels // groups * outputs * math.prod(kernel)
    return done.transpose(0, 1)
