"""Elements put apart from each other, and repeated side by side: what strides are to gradients."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def spread(x: Tensor, dim: int, stride: int, offset: int, size: int) -> Tensor:
    """x's elements along ``dim`` at the positions ``offset``, ``offset + stride`` ... of ``size``, zeros in between.

    ``dim`` and ``stride`` are not negative; elements at positions outside are dropped.
    """
    behind = [0, 0] * (x.ndim - 1 - dim)
    if stride > 1:
        shape = [*x.shape[:dim], x.shape[dim] * stride, *x.shape[dim + 1 :]]
        x = functional.pad(x.unsqueeze(dim + 1), [*behind, 0, stride - 1]).reshape(shape)
    before, after = max(offset, 0), max(size - offset - x.shape[dim], 0)
    if before or after:
        x = functional.pad(x, [*behind, before, after])
    return x.narrow(dim, max(-offset, 0), size) if x.shape[dim] != size else x


def repeated(x: Tensor, dim: int, times: int, size: int) -> Tensor:
    """Every element along ``dim`` several times in a row, zeros behind them up to ``size``."""
    shape = [*x.shape[:dim], x.shape[dim] * times, *x.shape[dim + 1 :]]
    spaced = [*x.shape[: dim + 1], times, *x.shape[dim + 1 :]]
    x = x.unsqueeze(dim + 1).expand(spaced).reshape(shape)
    rest = size - x.shape[dim]
    return functional.pad(x, [*([0, 0] * (x.ndim - 1 - dim)), 0, rest]) if rest else x
