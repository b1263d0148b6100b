"""Writing through indices: every form as rows of updates that are combined into the rows that an index names.

Updates of one place are combined in float32 for half types; of several that overwrite one place the last one stays, as
in eager on the CPU. Eager refuses indices outside the destination; here their updates are dropped, and nothing outside
is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mlirstitch.driver.torch_import.decompositions.promotion import SMALL_INTEGERS
from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose
from mlirstitch.driver.torch_import.lifted_ops import combine_at

aten = torch.ops.aten

_REDUCTIONS = {"sum": "add", "add": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}
_NOWHERE = -1
"""An index that names no row."""


# Along one dim --------------------------------------------------------------------------------------------------


def _combine(x: Tensor, dim: int, index: Tensor, source: Tensor, combine: str) -> Tensor:
    """x with source combined in, in the type that it is computed in; index [N], or of source's shape."""
    if x.numel() == 0 or index.numel() == 0:
        return x.clone()
    wide = torch.int32 if x.dtype == torch.bool or x.dtype in SMALL_INTEGERS else computing(x).dtype
    index = index.to(torch.int64)
    return combine_at(x.to(wide), dim, index, source.to(wide), combine).to(x.dtype)


def _last_writer(size: Sequence[int], dim: int, index: Tensor) -> Tensor:
    """For every place of a destination of shape ``size`` the last position along ``dim`` whose index names it, or -1.

    index: [N], for which ``size`` is [D], or of the rank of ``size``.
    """
    count = index.shape[dim]
    shape = [-1 if d == dim else 1 for d in range(index.ndim)]
    positions = torch.arange(count).reshape(shape).expand(index.shape)
    return combine_at(torch.full(list(size), -1, dtype=torch.int64), dim, index.to(torch.int64), positions, "max")


def _along(vector: Tensor, dim: int, rank: int) -> Tensor:
    """A vector that runs along ``dim`` of a tensor of ``rank`` dims."""
    return vector.reshape([-1 if d == dim else 1 for d in range(rank)])


def _write(x: Tensor, dim: int, index: Tensor, source: Tensor | None, value: Any = None) -> Tensor:
    """x with the source's rows, or one value, written to the rows that index [N] names, or element by element."""
    if x.numel() == 0 or index.numel() == 0:
        return x.clone()
    by_row = index.ndim == 1 and x.ndim != 1
    last = _last_writer([x.shape[dim]] if by_row else x.shape, 0 if by_row else dim, index)
    if source is None:
        number = torch.full((), value, dtype=x.dtype) if not isinstance(value, Tensor) else value.to(x.dtype)
        return torch.where(_along(last >= 0, dim, x.ndim) if by_row else last >= 0, number, x)
    places = last.clamp_min(0)
    taken = source.index_select(dim, places) if by_row else source.gather(dim, places)
    return torch.where(_along(last >= 0, dim, x.ndim) if by_row else last >= 0, taken.to(x.dtype), x)


def _reduce_into(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduction: str, include_self: bool
) -> Tensor | None:
    """x combined with what its places are named for; places that nothing names stay. None for an unknown reduction."""
    if reduction == "mean":
        return _mean_into(x, dim, index, source, include_self)
    combine = _REDUCTIONS.get(reduction)
    if combine is None:
        return None
    if include_self or x.numel() == 0 or index.numel() == 0:
        return _combine(x, dim, index, source, combine)
    by_row = index.ndim == 1 and x.ndim != 1
    last = _last_writer([x.shape[dim]] if by_row else x.shape, 0 if by_row else dim, index)
    named = _along(last >= 0, dim, x.ndim) if by_row else last >= 0
    start = torch.where(named, torch.full((), _neutral(combine, x.dtype), dtype=x.dtype), x)
    return _combine(start, dim, index, source, combine)


def _neutral(combine: str, dtype: torch.dtype) -> Any:
    if combine in ("add", "mul"):
        return 0 if combine == "add" else 1
    if dtype == torch.bool:
        return combine == "min"
    if dtype.is_floating_point:
        return -math.inf if combine == "max" else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if combine == "max" else limits.max


def _mean_into(x: Tensor, dim: int, index: Tensor, source: Tensor, include_self: bool) -> Tensor:
    if x.numel() == 0 or index.numel() == 0:
        return x.clone()
    by_row = index.ndim == 1 and x.ndim != 1
    size = [x.shape[dim]] if by_row else list(x.shape)
    ones = torch.ones(index.shape, dtype=torch.int64)
    named = combine_at(torch.zeros(size, dtype=torch.int64), 0 if by_row else dim, index, ones, "add")
    named = _along(named, dim, x.ndim) if by_row else named
    wide = computing(x)
    start = wide if include_self else torch.where(named > 0, torch.zeros((), dtype=wide.dtype), wide)
    total = _combine(start, dim, index, source.to(wide.dtype), "add")
    count = named + 1 if include_self else named.clamp_min(1)
    if x.is_floating_point():
        return (total / count.to(wide.dtype)).to(x.dtype)
    return torch.div(total, count.to(x.dtype), rounding_mode="floor")


# Indices of the rank of the source ------------------------------------------------------------------------------


def _rows(index: Tensor, dim: int) -> Tensor:
    """index [N] where an index of full rank is the same in every other dim, which broadcasting (stride 0) shows."""
    others = [d for d in range(index.ndim) if d != dim]
    if index.ndim > 1 and all((index.stride(d) == 0 and index.shape[d] > 1) or index.shape[d] == 1 for d in others):
        return index[tuple(slice(None) if d == dim else 0 for d in range(index.ndim))]
    return index


def _by_element(x: Tensor, dim: int, index: Tensor, source: Tensor | None, rule: Any) -> Tensor:
    """``rule(part of x, dim, index, source)`` for the part of x that an index with smaller other dims covers."""
    if x.ndim == 0:
        flat = None if source is None else source.reshape(1)
        return _by_element(x.reshape(1), 0, index.reshape(1), flat, rule).reshape(())
    dim %= x.ndim
    if index.numel() == 0:
        return x.clone()
    if source is not None:
        source = source[tuple(slice(0, n) for n in index.shape)]
    part = x[tuple(slice(None) if d == dim else slice(0, n) for d, n in enumerate(index.shape))]
    done = rule(part, dim, _rows(index, dim), source)
    for d in range(x.ndim):  # the rest of x around the part, dim by dim
        if d != dim and done.shape[d] < x.shape[d]:
            box = [slice(None) if e == dim else slice(0, done.shape[e]) for e in range(x.ndim)]
            box[d] = slice(done.shape[d], None)
            done = torch.cat([done, x[tuple(box)]], d)
    return done


@decompose(aten.scatter_add.default)
def scatter_add(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Any:
    if x.dtype == torch.bool:
        return NotImplemented
    return _by_element(x, dim, index, source, lambda p, d, i, s: _combine(p, d, i, s, "add"))


@decompose(aten.scatter.src)
def scatter(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _by_element(x, dim, index, source, lambda p, d, i, s: _write(p, d, i, s))


@decompose(aten.scatter.value)
def scatter_value(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    return _by_element(x, dim, index, None, lambda p, d, i, s: _write(p, d, i, None, value))


@decompose(aten.scatter.reduce)
def scatter_with(x: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Any:
    return scatter_reduce(x, dim, index, source, reduce)


@decompose(aten.scatter.value_reduce)
def scatter_value_with(x: Tensor, dim: int, index: Tensor, value: Any, *, reduce: str) -> Any:
    source = torch.full(list(index.shape), value, dtype=x.dtype)
    return scatter_reduce(x, dim, index, source, reduce)


@decompose(aten.scatter_reduce.two)
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Any:
    if x.dtype == torch.bool or (reduce not in _REDUCTIONS and reduce != "mean"):
        return NotImplemented
    return _by_element(x, dim, index, source, lambda p, d, i, s: _reduce_into(p, d, i, s, reduce, include_self))


# Rows -----------------------------------------------------------------------------------------------------------


def _by_row(x: Tensor, dim: int, index: Tensor, source: Tensor, rule: Any) -> Tensor:
    """``rule(x, dim, index [N], source)`` where a tensor without dims counts as one of one element."""
    if x.ndim == 0:
        return _by_row(x.reshape(1), 0, index, source.reshape(-1), rule).reshape(())
    dim %= x.ndim
    shape = list(x.shape)
    shape[dim] = index.numel()
    return rule(x, dim, index.reshape(-1), source.reshape(shape))


@decompose(aten.index_add.default)
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Any:
    if x.dtype == torch.bool:
        return NotImplemented
    scaled = source if alpha == 1 else source * alpha
    return _by_row(x, dim, index, scaled, lambda p, d, i, s: _combine(p, d, i, s, "add"))


@decompose(aten.index_copy.default)
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return _by_row(x, dim, index, source, lambda p, d, i, s: _write(p, d, i, s))


@decompose(aten.index_reduce.default)
def index_reduce(x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Any:
    if x.dtype == torch.bool or (reduce not in _REDUCTIONS and reduce != "mean"):
        return NotImplemented
    return _by_row(x, dim, index, source, lambda p, d, i, s: _reduce_into(p, d, i, s, reduce, include_self))


@decompose(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(x: Tensor, dim: int, index: Tensor, value: Any) -> Tensor:
    if x.ndim == 0:
        return index_fill(x.reshape(1), 0, index, value).reshape(())
    dim %= x.ndim
    index = index.reshape(-1)
    return _write(x, dim, torch.where(index < 0, index + x.shape[dim], index), None, value)


@decompose(aten.embedding_dense_backward.default)
def embedding_dense_backward(
    grad: Tensor, indices: Tensor, num_weights: int, padding_idx: int, scale_grad_by_freq: bool
) -> Tensor:
    """Gradient of an embedding table [V, D]: the gradients [N, D] summed into the rows that the indices name."""
    index = indices.reshape(-1).to(torch.int64)
    rows = grad.reshape(index.shape[0], -1)
    if padding_idx >= 0:
        index = torch.where(index == padding_idx, torch.full((), _NOWHERE, dtype=torch.int64), index)
    wide = computing(grad)
    zeros = torch.zeros([num_weights, rows.shape[1]], dtype=wide.dtype)
    total = _combine(zeros, 0, index, rows.to(wide.dtype), "add")
    if scale_grad_by_freq and index.numel():
        ones = torch.ones_like(index)
        counts = combine_at(torch.zeros([num_weights], dtype=torch.int64), 0, index, ones, "add")
        total = total / counts.clamp_min(1).to(wide.dtype).unsqueeze(1)
    return total.to(grad.dtype)


# Indexing -------------------------------------------------------------------------------------------------------


@decompose(aten.index_put.default, aten._unsafe_index_put.default)
def index_put(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, accumulate: bool = False) -> Any:
    """``x[indices] = values`` or ``+= values``; a mask only with a single value."""
    used = [d for d, i in enumerate(indices) if i is not None]
    given = [i for i in indices if i is not None]
    if any(i.dtype in (torch.bool, torch.uint8) for i in given):
        return _put_under_mask(x, used, given, values, accumulate)
    if not used or (accumulate and x.dtype == torch.bool):
        return NotImplemented
    # The indexed dims side by side: where they stand if they are neighbours, in front if not.
    first = used[0] if used == list(range(used[0], used[-1] + 1)) else 0
    rest = [d for d in range(x.ndim) if d not in used]
    order = [*rest[:first], *used, *rest[first:]]
    moved = x.permute(order)
    sizes = moved.shape[first : first + len(used)]
    flat = moved.reshape([*moved.shape[:first], math.prod(sizes), *moved.shape[first + len(used) :]])
    broadcast = torch.broadcast_tensors(*given)
    index = _flat_index(broadcast, sizes)
    window = [*moved.shape[:first], *broadcast[0].shape, *moved.shape[first + len(used) :]]
    source = values.expand(window).reshape([*flat.shape[:first], index.shape[0], *flat.shape[first + 1 :]])
    done = _combine(flat, first, index, source, "add") if accumulate else _write(flat, first, index, source)
    back = [order.index(d) for d in range(x.ndim)]
    return done.reshape(moved.shape).permute(back)


def _flat_index(indices: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """One index [N] over several dims of ``sizes`` in row-major order; negative ones count from the end."""
    flat = torch.zeros((), dtype=torch.int64)
    inside: Tensor | None = None
    for index, size in zip(indices, sizes, strict=True):
        index = index.to(torch.int64)
        index = torch.where(index < 0, index + size, index)
        here = (index >= 0) & (index < size)
        inside = here if inside is None else inside & here
        flat = flat * size + index
    if inside is not None and len(sizes) > 1:  # out of one dim must not be inside another row
        flat = torch.where(inside, flat, torch.full((), _NOWHERE, dtype=torch.int64))
    return flat.reshape(-1)


def _put_under_mask(x: Tensor, used: list[int], given: list[Tensor], values: Tensor, accumulate: bool) -> Any:
    if len(given) != 1 or values.numel() != 1:
        return NotImplemented
    mask = given[0] if given[0].dtype == torch.bool else given[0] != 0
    mask = mask.reshape([1] * used[0] + list(mask.shape) + [1] * (x.ndim - used[0] - mask.ndim))
    number = values.reshape(()).to(x.dtype)
    return torch.where(mask, x + number if accumulate else number, x)


@decompose(aten.put.default)
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Any:
    return index_put(x.reshape(-1), [index.reshape(-1)], source.reshape(-1), accumulate).reshape(x.shape)


@decompose(aten.masked_scatter.default)
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """The places under the mask take the elements of source, one after the other."""
    mask, x = torch.broadcast_tensors(mask, x)
    if x.numel() == 0 or source.numel() == 0:
        return x.clone()
    number = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    taken = source.reshape(-1).index_select(0, number.clamp(0, source.numel() - 1)).reshape(x.shape)
    return torch.where(mask, taken, x)
