"""Reductions of random programs: over any dims, in loops of any order; and products of matrices."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from random_pointwise import map_text
from random_program import DTYPES, Body, Dtype, Known, Step, TensorType, Text, exactly, rounded
from torch import Tensor

SHORT_CHAIN = 64
"""Longest chain of additions of one thread; above it sums are trees (docs/numerics.md)."""
_GRID = 2.0**10
"""Multiples of 1 / _GRID whose magnitudes sum up to less than the accumulator can hold are added exactly."""


def summed(truth: Tensor, error: Tensor, dims: Sequence[int], dtype: Dtype) -> tuple[Tensor, Tensor]:
    """A sum over ``dims`` in any order of ``dtype``'s accumulator, before the last rounding, and its error."""
    total, size = truth.sum(dims), (truth.abs() + error).sum(dims)
    count = math.prod(truth.shape[d] for d in dims)
    depth = min(count, SHORT_CHAIN + math.log2(max(count, 1)))
    accumulator = dtype.accumulator
    grid = (truth * _GRID == (truth * _GRID).round()) & (error == 0)
    exact = (grid | ~truth.isfinite()).flatten().all() & (size * _GRID < 1 / accumulator.unit)
    exact = exact | ((grid | ~truth.isfinite()).flatten().all() & ~size.isfinite())
    carried = error.sum(dims) + torch.where(exact, 0.0, depth * accumulator.unit * size)
    return total, carried


class ReduceOp:
    """``details``: kind, dims, whether reduced dims stay with extent 1, loop of every dim.

    Kinds: sum, sum_of_squares, onto (a sum that starts from the second operand), product, maximum, minimum; of bools
    any and all; of integers also and, or, xor.
    """

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        kind, dims, keep, _ = step.details
        known, dtype = operands[0], operands[0].type.dtype
        shape = _result_shape(known.type.shape, dims, keep)
        if not dtype.is_float:
            truth = _whole(kind, known.truth, dims).reshape(shape)
            if kind == "onto":
                truth = (truth.long() + operands[1].truth.long()).to(dtype.torch)
            return [exactly(truth.to(dtype.torch), dtype)]
        truth, error = known.truth, known.error
        if kind == "sum_of_squares":
            square = rounded(truth * truth, 2 * torch.nan_to_num(truth.abs() * error) + error**2, dtype)
            truth, error = square.truth, square.error
        if kind in ("sum", "sum_of_squares", "onto"):
            total, carried = summed(truth, error, dims, dtype)
            total, carried = total.reshape(shape), carried.reshape(shape)
            if kind == "onto":
                first = rounded(total + operands[1].truth, carried + operands[1].error, dtype.accumulator)
                total, carried = first.truth, first.error
            return [rounded(total, carried, dtype)]
        if kind == "product":
            if not is_moderate_product(truth, dims):
                return None
            total = _reduced(torch.ones((), dtype=torch.float64), truth, dims, torch.prod)
            most = _reduced(torch.ones((), dtype=torch.float64), truth.abs() + error, dims, torch.prod)
            steps = math.prod(known.type.shape[d] for d in dims)
            carried = most - total.abs() + most * steps * dtype.accumulator.unit
            return [rounded(total.reshape(shape), torch.nan_to_num(carried).reshape(shape), dtype)]
        best = _extreme(kind, truth, dims).reshape(shape)
        worst = _reduced(torch.zeros((), dtype=torch.float64), error, dims, torch.amax)
        return [Known(TensorType(shape, dtype), best, worst.reshape(shape))]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        kind, dims, keep, loops = step.details
        dtype = types[0].dtype
        body = Body()
        element = body.op("arith.mulf", dtype, "%a0", "%a0") if kind == "sum_of_squares" else "%a0"
        result = body.op(combining_op(kind, dtype), dtype, element, "%a1")
        out = TensorType(_result_shape(types[0].shape, dims, keep), dtype)
        init = names[1] if kind == "onto" else text.filled(neutral_value(kind, dtype), out)
        maps = [map_text(loops), _result_map(loops, dims, keep)]
        reduced = [loops.index(loop) in dims for loop in range(len(loops))]
        return text.generic(maps, reduced, [(names[0], types[0])], [(init, out)], body, [result])


class PositionOp:
    """``details``: "maximum" or "minimum", dim, whether it stays, loops, type of the position. Two results.

    The extreme value and its first position; the first NaN wins.
    """

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        kind, dim, keep, _, index = step.details
        (known,) = operands
        if not known.is_exact:
            return None
        shape = _result_shape(known.type.shape, (dim,), keep)
        best = _extreme(kind, known.truth, (dim,))
        extent = known.type.shape[dim]
        hits = known.truth == best.unsqueeze(dim)
        if known.type.dtype.is_float:
            nan = known.truth.isnan()
            hits = torch.where(nan.any(dim, keepdim=True), nan, hits)
        line = torch.arange(extent).reshape([-1 if d == dim else 1 for d in range(known.truth.dim())])
        places = torch.where(hits, line, extent)
        first = places.amin(dim) if extent else torch.zeros_like(best, dtype=torch.int64)
        target = DTYPES[index]
        if extent > torch.iinfo(target.torch).max:
            return None
        return [exactly(best.reshape(shape), known.type.dtype), exactly(first.reshape(shape).to(target.torch), target)]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        kind, dim, keep, loops, index = step.details
        dtype, target = types[0].dtype, DTYPES[index]
        body = Body()
        place = body.convert("arith.index_cast", body.index(loops[dim]), "index", "i64")
        if target.bits < 64:
            place = body.convert("arith.trunci", place, "i64", target.element)
        if dtype.is_float:
            better = body.compare("ogt" if kind == "maximum" else "olt", dtype, "%a0", "%a1")
            first_nan = body.emit(
                f"arith.andi {body.compare('uno', dtype, '%a0', '%a0')}, "
                f"{body.compare('ord', dtype, '%a1', '%a1')} : i1"
            )
            better = body.emit(f"arith.ori {better}, {first_nan} : i1")
        else:
            sign = "s" if dtype.is_signed else "u"
            better = body.compare(f"{sign}gt" if kind == "maximum" else f"{sign}lt", dtype, "%a0", "%a1")
        value = body.op(combining_op(kind, dtype), dtype, "%a0", "%a1")
        position = body.select(better, target, place, "%a2")
        shape = _result_shape(types[0].shape, (dim,), keep)
        outs = [TensorType(shape, dtype), TensorType(shape, target)]
        inits = [(text.filled(neutral_value(kind, dtype), outs[0]), outs[0]), (text.filled(0, outs[1]), outs[1])]
        result_map = _result_map(loops, (dim,), keep)
        reduced = [loop == loops[dim] for loop in range(len(loops))]
        maps = [map_text(loops), result_map, result_map]
        return text.generic(maps, reduced, [(names[0], types[0])], inits, body, [value, position])


class MatmulOp:
    """``linalg.matmul`` into zeros."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known] | None:
        left, right = operands
        dtype = left.type.dtype
        shape = (left.type.shape[0], right.type.shape[1])
        x, y = left.truth.unsqueeze(2), right.truth.unsqueeze(0)
        if x.shape[0] * x.shape[1] * y.shape[2] > 1 << 18:
            return None
        if not dtype.is_float:
            return [exactly((x.long() * y.long()).sum(1).to(dtype.torch), dtype)]
        dx, dy = left.error.unsqueeze(2), right.error.unsqueeze(0)
        product, error = x * y, torch.nan_to_num(x.abs() * dy) + torch.nan_to_num(y.abs() * dx) + dx * dy
        terms = rounded(product, error, dtype.accumulator)
        total, carried = summed(terms.truth, terms.error, (1,), dtype)
        return [rounded(total.reshape(shape), carried.reshape(shape), dtype)]

    def write(self, text: Text, step: Step, names: Sequence[str], types: Sequence[TensorType]) -> list[str]:
        kind = TensorType((types[0].shape[0], types[1].shape[1]), types[0].dtype)
        init = text.filled(0, kind)
        return [
            text.emit(
                f"linalg.matmul ins({', '.join(names)} : {types[0].text}, {types[1].text}) "
                f"outs({init} : {kind.text}) -> {kind.text}"
            )
        ]


def is_moderate_product(values: Tensor, dims: Sequence[int]) -> bool:
    """Whether no product of some of the values, in any order, overflows or vanishes before it meets the others."""
    size = values.abs()
    size = torch.where(size.isfinite() & (size > 0), size, torch.ones(())).log2()
    return bool((size.abs().sum(dims) < 100).all())


def _result_shape(shape: Sequence[int], dims: Sequence[int], keep: bool) -> tuple[int, ...]:
    return tuple(1 if d in dims else n for d, n in enumerate(shape) if keep or d not in dims)


def _result_map(loops: Sequence[int], dims: Sequence[int], keep: bool) -> str:
    return ", ".join("0" if d in dims else f"d{loop}" for d, loop in enumerate(loops) if keep or d not in dims)


def _reduced(empty: Tensor, values: Tensor, dims: Sequence[int], reduce: object) -> Tensor:
    """``reduce`` over several dims as one, which may be empty."""
    kept = [d for d in range(values.dim()) if d not in dims]
    shape = [values.shape[d] for d in kept]
    flat = values.permute(*kept, *dims).reshape(*shape, math.prod(values.shape[d] for d in dims))
    if not flat.shape[-1]:
        return empty.expand(shape)
    return reduce(flat, -1)  # type: ignore[operator]


def _whole(kind: str, values: Tensor, dims: Sequence[int]) -> Tensor:
    """A reduction of integers or bools, wrapping."""
    dtype = values.dtype
    if kind in ("maximum", "minimum"):
        return _extreme(kind, values, dims)
    if dtype == torch.bool:
        if kind == "any":
            return values.sum(dims) > 0
        return (~values).sum(dims) == 0
    wide = values.long()
    if kind == "product":
        return _reduced(torch.ones((), dtype=torch.int64), wide, dims, torch.prod).to(dtype)
    if kind in ("and", "or", "xor"):
        bits = torch.stack([(wide >> b) & 1 for b in range(torch.iinfo(dtype).bits)])
        ones = bits.sum([d + 1 for d in dims])
        count = math.prod(values.shape[d] for d in dims)
        held = {"and": ones == count, "or": ones > 0, "xor": ones % 2 == 1}[kind].long()
        weights = torch.tensor([1 << b if b < 63 else -(1 << 63) for b in range(len(held))])
        return (held * weights.reshape(-1, *[1] * (held.dim() - 1))).sum(0).to(dtype)
    return wide.sum(dims).to(dtype)


def _extreme(kind: str, values: Tensor, dims: Sequence[int]) -> Tensor:
    dtype = values.dtype
    lowest = -math.inf if dtype.is_floating_point else torch.iinfo(dtype).min
    highest = math.inf if dtype.is_floating_point else torch.iinfo(dtype).max
    empty = torch.tensor(lowest if kind == "maximum" else highest, dtype=dtype)
    return _reduced(empty, values, dims, torch.amax if kind == "maximum" else torch.amin)


def combining_op(kind: str, dtype: Dtype) -> str:
    """The op that combines two elements."""
    if dtype.is_float:
        names = {"product": "mulf", "maximum": "maximumf", "minimum": "minimumf"}
        return f"arith.{names.get(kind, 'addf')}"
    sign = "s" if dtype.is_signed else "u"
    names = {"product": "muli", "maximum": f"max{sign}i", "minimum": f"min{sign}i"}
    names |= {"any": "ori", "or": "ori", "all": "andi", "and": "andi", "xor": "xori"}
    return f"arith.{names.get(kind, 'addi')}"


def neutral_value(kind: str, dtype: Dtype) -> float | int | bool:
    """What a reduction starts from."""
    if kind in ("maximum", "minimum"):
        low = kind == "maximum"
        if dtype.is_float:
            return -math.inf if low else math.inf
        bounds = torch.iinfo(dtype.torch)
        return bounds.min if low else bounds.max
    if kind == "and":
        return -1
    return 1 if kind in ("product", "all") else 0


REDUCTION_KINDS = {
    "float": ("sum", "maximum", "sum_of_squares", "minimum", "onto", "product"),
    "integer": ("sum", "maximum", "minimum", "onto", "product", "and", "or", "xor"),
    "bool": ("any", "all"),
}


def kinds_of(dtype: Dtype) -> tuple[str, ...]:
    """Kinds of reductions of an element type."""
    return REDUCTION_KINDS["float" if dtype.is_float else "bool" if dtype.is_bool else "integer"]
