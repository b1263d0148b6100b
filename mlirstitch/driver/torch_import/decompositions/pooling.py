"""Gradients of pooling: every position of the input looks at the windows it lies in, nothing is scattered."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose
from mlirstitch.driver.torch_import.decompositions.spreading import repeated, spread

aten = torch.ops.aten


class _Windows:
    """Windows over the last two dims of a tensor ``[..., height, width]``."""

    def __init__(self, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any) -> None:
        self.size = (x.shape[-2], x.shape[-1])
        self.first = x.ndim - 2
        self.kernel, self.padding, self.dilation = _pair(kernel), _pair(padding), _pair(dilation)
        self.stride = _pair(stride) if len(stride) else self.kernel

    @property
    def apart(self) -> bool:
        """Whether they tile the tensor from its corner, so that no position lies in two of them."""
        return self.stride == self.kernel and self.padding == (0, 0) and self.dilation == (1, 1)

    def offsets(self) -> list[tuple[int, int]]:
        """Where the elements of the first window lie; outside of the tensor means in the padding."""
        rows, columns = ([k * self.dilation[d] - self.padding[d] for k in range(self.kernel[d])] for d in (0, 1))
        return [(row, column) for row in rows for column in columns]

    def places(self, offset: tuple[int, int], windows: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Of one element of every window: its number in row-major order, and whether it lies inside; [*windows]."""
        rows, columns = (torch.arange(windows[d]) * self.stride[d] + offset[d] for d in (0, 1))
        rows = rows.unsqueeze(1)
        inside = (rows >= 0) & (rows < self.size[0]) & (columns >= 0) & (columns < self.size[1])
        return rows * self.size[1] + columns, inside

    def put(self, x: Tensor, offset: tuple[int, int]) -> Tensor:
        """x [..., *windows] at the places of one element of every window, zeros elsewhere: [..., height, width]."""
        for d in (0, 1):
            x = spread(x, self.first + d, self.stride[d], offset[d], self.size[d])
        return x

    def look(self, x: Tensor, offset: tuple[int, int], windows: tuple[int, int], outside: float) -> Tensor:
        """One element of every window of x [..., height, width]: [..., *windows]."""
        for d in (0, 1):
            dim, reach = self.first + d, (windows[d] - 1) * self.stride[d] + 1
            behind = [0, 0] * (1 - d)
            before, after = max(-offset[d], 0), max(offset[d] + reach - self.size[d], 0)
            if before or after:
                x = functional.pad(x, [*behind, before, after], value=outside)
            start = max(offset[d], 0)
            x = x[(slice(None),) * dim + (slice(start, start + reach, self.stride[d]),)]
        return x

    def repeat(self, x: Tensor) -> Tensor:
        """x [..., *windows] at all places of every window: [..., height, width]. The windows are apart."""
        for d in (0, 1):
            x = repeated(x, self.first + d, self.kernel[d], self.size[d])
        return x


def _pair(values: Sequence[int]) -> tuple[int, int]:
    return (values[0], values[0]) if len(values) == 1 else (values[0], values[1])


def max_pool2d_with_positions(
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    ceil_mode: bool = False,
) -> tuple[Tensor, Tensor]:
    """``aten.max_pool2d_with_indices``, with positions that come of comparisons: the first one that holds the maximum.

    The importer's own positions look the whole tensor up, which no split of the batch gets through.
    """
    values = aten.max_pool2d_with_indices.default(x, kernel_size, stride, padding, dilation, ceil_mode)[0]
    windows = _Windows(x, kernel_size, stride, padding, dilation)
    count = (values.shape[-2], values.shape[-1])
    nowhere = torch.full((), x.shape[-2] * x.shape[-1], dtype=torch.int64)
    found: Tensor | None = None
    for offset in windows.offsets():
        place, inside = windows.places(offset, count)
        seen = windows.look(x, offset, count, 0.0)
        here = torch.where(((seen == values) | (seen != seen)) & inside, place, nowhere)
        found = here if found is None else torch.minimum(found, here)
    assert found is not None
    return values, found


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
    """grad, indices [..., h, w] of the windows, indices into the H x W positions of x [..., H, W]; gives x's shape."""
    windows = _Windows(x, kernel_size, stride, padding, dilation)
    wide = computing(grad)
    zero = torch.zeros((), dtype=wide.dtype)
    count = (grad.shape[-2], grad.shape[-1])
    if windows.apart and count[0] * windows.stride[0] <= x.shape[-2] and count[1] * windows.stride[1] <= x.shape[-1]:
        own = torch.arange(x.shape[-2] * x.shape[-1]).reshape(x.shape[-2:])
        return torch.where(windows.repeat(indices) == own, windows.repeat(wide), zero).to(grad.dtype)
    total: Tensor | None = None
    for offset in windows.offsets():
        # A place in the padding is no maximum, but might have the number of another place.
        place, inside = windows.places(offset, count)
        part = windows.put(torch.where((indices == place) & inside, wide, zero), offset)
        total = part if total is None else total + part
    assert total is not None
    return total.to(grad.dtype)


@decompose(aten.avg_pool2d_backward.default)
def avg_pool2d_backward(
    grad: Tensor,
    x: Tensor,
    kernel_size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Tensor:
    """grad [..., h, w] of the windows shared out to the positions of x [..., H, W]."""
    windows = _Windows(x, kernel_size, stride, padding, (1, 1))
    count = (grad.shape[-2], grad.shape[-1])
    share = computing(grad) / _divisor(windows, count, count_include_pad, divisor_override)
    if windows.apart and count[0] * windows.stride[0] <= x.shape[-2] and count[1] * windows.stride[1] <= x.shape[-1]:
        return windows.repeat(share).to(grad.dtype)
    total: Tensor | None = None
    for offset in windows.offsets():
        part = windows.put(share, offset)
        total = part if total is None else total + part
    assert total is not None
    return total.to(grad.dtype)


def _divisor(
    windows: _Windows, count: tuple[int, int], count_include_pad: bool, override: int | None
) -> Tensor | float:
    """How many elements the mean of every window is over: windows that reach over the end have fewer."""
    if override is not None:
        return float(override)
    extents: list[Tensor] = []
    for d in (0, 1):
        start = torch.arange(count[d]) * windows.stride[d] - windows.padding[d]
        end = torch.minimum(
            start + windows.kernel[d], torch.full((), windows.size[d] + windows.padding[d], dtype=torch.int64)
        )
        if not count_include_pad:
            start, end = start.clamp_min(0), end.clamp_max(windows.size[d])
        extents.append(end - start)
    return (extents[0].unsqueeze(1) * extents[1]).to(torch.float32)


@decompose(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool2d_backward(grad: Tensor, x: Tensor) -> Tensor:
    """grad [..., h, w] shared out to x [..., H, W], by a matrix of shares in each dim."""
    wide = computing(grad)
    rows, columns = (_shares(grad.shape[d], x.shape[d], wide.dtype) for d in (-2, -1))
    return (rows.transpose(0, 1) @ wide @ columns).to(grad.dtype)


def _shares(windows: int, size: int, dtype: torch.dtype) -> Tensor:
    """[windows, size]: 1 / extent where a window of adaptive pooling covers a position, else 0."""
    number, place = torch.arange(windows).unsqueeze(1), torch.arange(size)
    start = torch.div(number * size, windows, rounding_mode="floor")
    end = torch.div((number + 1) * size + windows - 1, windows, rounding_mode="floor")
    covered = ((place >= start) & (place < end)).to(dtype)
    return covered / (end - start).to(dtype)
