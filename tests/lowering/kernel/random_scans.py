"""Prefix scans and scatters of random programs, written as docs of ``passes/scan.py`` and ``passes/scatter.py`` say."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from random_pointwise import map_of, map_text
from random_program import Body, Dtype, Known, Step, TensorType, Text, exactly, rounded
from random_reductions import combining_op, is_moderate_product, neutral_value, summed
from torch import Tensor


class ScanOp:
    """``details``: kind (sum, product, maximum, minimum), dim, whether an element counts for its own place.

    The total is the op's second result, which no kernel stores and no program reads.
    """

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        kind, dim, inclusive = step.details
        (known,) = operands
        dtype, truth = known.type.dtype, known.truth
        if dtype.is_float and dtype.bits == 16 and kind in ("sum", "product"):
            return None  # the running value of a scan is as wide as the program says
        if dtype.is_bool or (dtype.is_float and kind == "product" and not known.is_exact):
            return None
        if dtype.is_float and kind == "product" and not is_moderate_product(truth, (dim,)):
            return None
        every = torch.cat([_start(kind, dtype, truth, dim), _scanned(kind, truth, dim)], dim)
        extent = known.type.shape[dim]
        places = every.narrow(dim, 1 if inclusive else 0, extent)
        if not dtype.is_float:
            return [exactly(places, dtype)]
        error = torch.zeros_like(every)
        if kind == "sum":
            error = _sum_errors(known, dim)
        elif kind == "product":
            most = torch.cat([torch.ones_like(truth.narrow(dim, 0, 0)), truth], dim).abs().cumprod(dim)
            error = extent * dtype.unit * torch.cat([_start(kind, dtype, truth, dim), most], dim)
            error = torch.where(every.to(torch.float32).double() == every, 0.0, error)
        else:
            worst = known.error.amax(dim, keepdim=True) if extent else torch.zeros(())
            error = error + torch.nan_to_num(worst)
        return [rounded(places, error.narrow(dim, 1 if inclusive else 0, extent), dtype)]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        kind, dim, inclusive = step.details
        full, dtype = types[0], types[0].dtype
        rest = TensorType(tuple(n for d, n in enumerate(full.shape) if d != dim), dtype)
        body = Body()
        total = body.op(combining_op(kind, dtype), dtype, "%a2", "%a0")
        inits = [(text.empty(full), full), (text.filled(neutral_value(kind, dtype), rest), rest)]
        rank = len(full.shape)
        every = map_text(map_of(rank))
        maps = [every, every, map_text(tuple(d for d in range(rank) if d != dim))]
        reduced = [d == dim for d in range(rank)]
        yields = [total if inclusive else "%a2", total]
        return text.generic(maps, reduced, [(names[0], full)], inits, body, yields)[:1]


class ScatterOp:
    """``details``: kind (sum, maximum, minimum), dim. Operands: indices of rank 1, updates, destination.

    Each row of updates along ``dim`` is combined with the row of the destination that its index names, if there is one.
    """

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        kind, dim = step.details
        named, updates, target = operands
        dtype = target.type.dtype
        rows = target.type.shape[dim]
        hits = named.truth.long().unsqueeze(0) == torch.arange(rows).unsqueeze(1)
        moved, error = updates.truth.movedim(dim, 0), updates.error
        if hits.numel() * math.prod(moved.shape[1:]) > 1 << 20:
            return None
        picked = hits.reshape(*hits.shape, *[1] * (moved.dim() - 1))
        terms = torch.where(picked, moved, torch.tensor(neutral_value(kind, dtype), dtype=moved.dtype))
        if kind != "sum":
            every = torch.cat([target.truth.movedim(dim, 0).unsqueeze(1), terms], 1)
            best = (every.amax(1) if kind == "maximum" else every.amin(1)).movedim(0, dim)
            if not dtype.is_float:
                return [exactly(best, dtype)]
            worst = max((known.error.max().item() if known.error.numel() else 0.0) for known in (updates, target))
            return [rounded(best, torch.full_like(best, worst), dtype)]
        if not dtype.is_float:
            total = terms.long().sum(1).movedim(0, dim) + target.truth.long()
            return [exactly(total.to(dtype.torch), dtype)]
        errors = torch.where(picked, error.movedim(dim, 0), torch.zeros(()))
        total, carried = summed(terms, errors, (1,), dtype)
        first = rounded(total.movedim(0, dim) + target.truth, carried.movedim(0, dim) + target.error, dtype.accumulator)
        return [rounded(first.truth, first.error, dtype)]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        kind, dim = step.details
        named, updates, target = types
        rank, dtype = len(target.shape), target.dtype
        body = Body()
        own = body.convert("arith.index_cast", body.index(dim), "index", named.dtype.element)
        hit = body.emit(f"arith.cmpi eq, %a0, {own} : {named.dtype.element}")
        neutral = -0.0 if kind == "sum" and dtype.is_float else neutral_value(kind, dtype)
        term = body.select(hit, dtype, "%a1", body.constant(neutral, dtype))
        result = body.op(combining_op(kind, dtype), dtype, "%a2", term)
        last = (rank,)
        maps = [map_text(last), map_text((*range(dim), rank, *range(dim + 1, rank))), map_text(map_of(rank))]
        reduced = [False] * rank + [True]
        inputs = [(names[0], named), (names[1], updates)]
        return text.generic(maps, reduced, inputs, [(names[2], target)], body, [result])


def _scanned(kind: str, values: Tensor, dim: int) -> Tensor:
    if kind == "sum":
        return values.cumsum(dim, dtype=values.dtype)
    if kind == "product":
        return values.cumprod(dim, dtype=values.dtype)
    if not values.shape[dim]:
        return values
    scan = torch.cummax if kind == "maximum" else torch.cummin
    return scan(values, dim).values


def _start(kind: str, dtype: Dtype, values: Tensor, dim: int) -> Tensor:
    """What comes before the first element."""
    shape = [1 if d == dim else n for d, n in enumerate(values.shape)]
    return torch.full(shape, neutral_value(kind, dtype), dtype=values.dtype)


def _sum_errors(known: Known, dim: int) -> Tensor:
    """Errors of all prefix sums: none if all are exact, else those of a sum of as many elements."""
    total, carried = summed(known.truth, known.error, (dim,), known.type.dtype)
    zero = torch.zeros_like(total).unsqueeze(dim)
    if not bool(carried.any()):
        return torch.cat([zero, torch.zeros_like(known.truth)], dim)
    count = known.type.shape[dim]
    size = (known.truth.abs() + known.error).cumsum(dim)
    error = known.error.cumsum(dim) + (64 + math.log2(max(count, 1))) * known.type.dtype.unit * size
    return torch.cat([zero, error], dim)


SCAN_KINDS = ("sum", "maximum", "minimum", "product")
