"""Gradient of max pooling: every position of the input looks at the windows it lies in, nothing is scattered."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose

aten = torch.ops.aten


@decompose(aten.max_pool2d_with_indices_backward.default)
def max_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
    indices: Tensor,
) -> Tensor:
    """grad, indices [..., h, w] of the windows, indices into the H x W positions of x [..., H, W]; gives x's shape.

    One term for every position within a window: the windows whose maximum stood there, moved to where that is in x.
    """
    kernel, pads, steps = _pair(kernel_size), _pair(padding), _pair(dilation)
    strides = _pair(stride) if len(stride) else kernel
    wide = computing(grad)
    zero = torch.zeros((), dtype=wide.dtype)
    height, width = x.shape[-2:]
    total: Tensor | None = None
    for i in range(kernel[0]):
        for j in range(kernel[1]):
            top, left = i * steps[0] - pads[0], j * steps[1] - pads[1]
            rows = torch.arange(grad.shape[-2]) * strides[0] + top
            columns = torch.arange(grad.shape[-1]) * strides[1] + left
            # A place in the padding is no maximum, but might have the number of another place.
            inside = ((rows >= 0) & (rows < height)).unsqueeze(1) & ((columns >= 0) & (columns < width))
            hit = (indices == rows.unsqueeze(1) * width + columns) & inside
            part = torch.where(hit, wide, zero)
            part = _spread(part, x.ndim - 2, strides[0], top, height)
            part = _spread(part, x.ndim - 1, strides[1], left, width)
            total = part if total is None else total + part
    assert total is not None
    return total.to(grad.dtype)


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def _spread(x: Tensor, dim: int, stride: int, offset: int, size: int) -> Tensor:
    """x's elements along ``dim`` at the positions ``offset``, ``offset + stride`` ... of ``size``, zeros in between."""
    behind = [0, 0] * (x.ndim - 1 - dim)
    if stride > 1:
        shape = [*x.shape[:dim], x.shape[dim] * stride, *x.shape[dim + 1 :]]
        x = functional.pad(x.unsqueeze(dim + 1), [*behind, 0, stride - 1]).reshape(shape)
    x = functional.pad(x, [*behind, max(offset, 0), max(size - offset - x.shape[dim], 0)])
    return x.narrow(dim, max(-offset, 0), size)
