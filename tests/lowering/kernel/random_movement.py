"""Ops of random programs that move elements: they have no rounding, and errors move along."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from random_pointwise import map_of, write_pointwise
from random_program import DTYPES, Body, Dtype, Known, Step, TensorType, Text, exactly
from torch import Tensor

Names = Sequence[str]
Types = Sequence[TensorType]


def _moved(known: Known, move: Callable[[Tensor], Tensor]) -> list[Known]:
    truth = move(known.truth)
    error = move(known.error) if known.type.dtype.is_float else known.error
    return [Known(TensorType(tuple(truth.shape), known.type.dtype), truth, error)]


def _numbers(values: Sequence[int]) -> str:
    return f"[{', '.join(map(str, values))}]"


def _places(offsets: Sequence[int], sizes: Sequence[int], strides: Sequence[int]) -> tuple[slice, ...]:
    """Where a slice lies in its tensor."""
    return tuple(
        slice(low, low + (size - 1) * stride + 1 if size else low, stride)
        for low, size, stride in zip(offsets, sizes, strides, strict=True)
    )


class TransposeOp:
    """``details``: permutation. ``linalg.transpose``."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        (order,) = step.details
        return _moved(operands[0], lambda x: x.permute(order))

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        (order,) = step.details
        kind = TensorType(tuple(types[0].shape[d] for d in order), types[0].dtype)
        out = text.empty(kind)
        return [
            text.emit(
                f"linalg.transpose ins({names[0]} : {types[0].text}) outs({out} : {kind.text}) "
                f"permutation = {_numbers(order)}"
            )
        ]


class SliceOp:
    """``details``: offsets, sizes, strides, dims that are dropped (of size 1). ``tensor.extract_slice``."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        offsets, sizes, strides, dropped = step.details
        places = _places(offsets, sizes, strides)
        kept = [size for d, size in enumerate(sizes) if d not in dropped]
        return _moved(operands[0], lambda x: x[places].reshape(kept))

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        offsets, sizes, strides, dropped = step.details
        kind = TensorType(tuple(size for d, size in enumerate(sizes) if d not in dropped), types[0].dtype)
        return [
            text.emit(
                f"tensor.extract_slice {names[0]}{_numbers(offsets)} {_numbers(sizes)} {_numbers(strides)} : "
                f"{types[0].text} to {kind.text}"
            )
        ]


class InsertOp:
    """``details``: offsets, strides. Writes the first operand into the second. ``tensor.insert_slice``."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        offsets, strides = step.details
        source, target = operands
        places = _places(offsets, source.type.shape, strides)
        truth, error = target.truth.clone(), target.error.clone()
        truth[places] = source.truth
        if target.type.dtype.is_float:
            error[places] = source.error
        return [Known(target.type, truth, error)]

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        offsets, strides = step.details
        return [
            text.emit(
                f"tensor.insert_slice {names[0]} into {names[1]}{_numbers(offsets)} {_numbers(types[0].shape)} "
                f"{_numbers(strides)} : {types[0].text} into {types[1].text}"
            )
        ]


class ConcatOp:
    """``details``: dim. ``tensor.concat``."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        (dim,) = step.details
        truth = torch.cat([known.truth for known in operands], dim)
        dtype = operands[0].type.dtype
        error = torch.cat([known.error for known in operands], dim) if dtype.is_float else operands[0].error
        return [Known(TensorType(tuple(truth.shape), dtype), truth, error)]

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        (dim,) = step.details
        shape = list(types[0].shape)
        shape[dim] = sum(kind.shape[dim] for kind in types)
        kind = TensorType(tuple(shape), types[0].dtype)
        listed = ", ".join(t.text for t in types)
        return [text.emit(f"tensor.concat dim({dim}) {', '.join(names)} : ({listed}) -> {kind.text}")]


class PadOp:
    """``details``: low, high, value. ``tensor.pad`` with a constant."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        low, high, value = step.details
        (known,) = operands
        shape = [a + n + b for a, n, b in zip(low, known.type.shape, high, strict=True)]
        places = tuple(slice(a, a + n) for a, n in zip(low, known.type.shape, strict=True))
        truth = torch.full(shape, value, dtype=known.truth.dtype)
        truth[places] = known.truth
        error = known.error
        if known.type.dtype.is_float:
            error = torch.zeros(shape, dtype=torch.float64)
            error[places] = known.error
        return [Known(TensorType(tuple(shape), known.type.dtype), truth, error)]

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        low, high, value = step.details
        dtype = types[0].dtype
        shape = tuple(a + n + b for a, n, b in zip(low, types[0].shape, high, strict=True))
        scalar = text.constant(value, dtype)
        block = ", ".join(f"%a{d}: index" for d in range(len(shape)))
        return [
            text.emit(
                f"tensor.pad {names[0]} low{_numbers(low)} high{_numbers(high)} {{\n  ^bb0({block}):\n"
                f"    tensor.yield {scalar} : {dtype.element}\n"
                f"  }} : {types[0].text} to {TensorType(shape, dtype).text}"
            )
        ]


class ReshapeOp:
    """``details``: result shape, groups of dims of the longer shape. Expands or collapses."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        shape, _ = step.details
        return _moved(operands[0], lambda x: x.reshape(shape))

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        shape, groups = step.details
        kind = TensorType(tuple(shape), types[0].dtype)
        groups_text = f"[{', '.join(_numbers(group) for group in groups)}]"
        if len(shape) <= len(types[0].shape):
            return [text.emit(f"tensor.collapse_shape {names[0]} {groups_text} : {types[0].text} into {kind.text}")]
        return [
            text.emit(
                f"tensor.expand_shape {names[0]} {groups_text} output_shape {_numbers(shape)} : "
                f"{types[0].text} into {kind.text}"
            )
        ]


class FlipOp:
    """``details``: dims. Reads backwards by computed indices."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        (dims,) = step.details
        return _moved(operands[0], lambda x: x.flip(dims))

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        (dims,) = step.details
        body = Body()
        places = []
        for d, extent in enumerate(types[0].shape):
            place = body.index(d)
            if d in dims:
                last = body.emit(f"arith.constant {extent - 1} : index")
                place = body.emit(f"arith.subi {last}, {place} : index")
            places.append(place)
        element = body.emit(f"tensor.extract {names[0]}[{', '.join(places)}] : {types[0].text}")
        return write_pointwise(text, types[0].shape, [], [], [], types[0].dtype, body, element)


class GatherOp:
    """``details``: dim. Elements of the first operand along ``dim`` at positions that the second holds, clamped."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        (dim,) = step.details
        table, places = operands
        at = places.truth.long().clamp(0, table.type.shape[dim] - 1)
        before, after = table.type.shape[:dim], table.type.shape[dim + 1 :]
        shape = (*before, *places.type.shape, *after)
        return _moved(table, lambda x: x.index_select(dim, at.reshape(-1)).reshape(shape))

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        (dim,) = step.details
        table, places = types
        shape = (*table.shape[:dim], *places.shape, *table.shape[dim + 1 :])
        body = Body()
        wide = "%a0"
        if places.dtype.bits < 64:
            extend = "arith.extsi" if places.dtype.is_signed else "arith.extui"
            wide = body.convert(extend, wide, places.dtype.element, "i64")
        long = DTYPES["int64"]
        inside = body.op("arith.maxsi", long, wide, body.constant(0, long))
        inside = body.op("arith.minsi", long, inside, body.constant(table.shape[dim] - 1, long))
        at = [body.convert("arith.index_cast", inside, "i64", "index")]
        loops = [body.index(loop) for loop in range(len(shape)) if not dim <= loop < dim + len(places.shape)]
        indices = ", ".join((*loops[:dim], *at, *loops[dim:]))
        element = body.emit(f"tensor.extract {names[0]}[{indices}] : {table.text}")
        over = tuple(range(dim, dim + len(places.shape)))
        return write_pointwise(text, shape, [over], names[1:], types[1:], table.dtype, body, element)


class TriangleOp:
    """``details``: diagonal. Zero above it, in the last two dims."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        (diagonal,) = step.details
        rows, cols = operands[0].type.shape[-2:]
        keep = torch.ones(rows, cols, dtype=torch.bool).tril(diagonal)

        def move(x: Tensor) -> Tensor:
            return torch.where(keep, x, torch.zeros((), dtype=x.dtype))

        return _moved(operands[0], move)

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        (diagonal,) = step.details
        rank, dtype = len(types[0].shape), types[0].dtype
        body = Body()
        row, col = body.index(rank - 2), body.index(rank - 1)
        last = body.emit(f"arith.addi {row}, {body.emit(f'arith.constant {diagonal} : index')} : index")
        keep = body.emit(f"arith.cmpi sle, {col}, {last} : index")
        result = body.select(keep, dtype, "%a0", body.constant(0, dtype))
        return write_pointwise(text, types[0].shape, [map_of(rank)], names, types, dtype, body, result)


class IotaOp:
    """``details``: shape, dim, dtype. The position along a dim; reads nothing."""

    def compute(self, step: Step, operands: Sequence[Known]) -> list[Known]:
        shape, dim, name = step.details
        dtype = DTYPES[name]
        line = torch.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)
        return [exactly(line.double() if dtype.is_float else line.to(dtype.torch), dtype)]

    def write(self, text: Text, step: Step, names: Names, types: Types) -> list[str]:
        shape, dim, name = step.details
        dtype: Dtype = DTYPES[name]
        body = Body()
        result = body.convert("arith.index_cast", body.index(dim), "index", "i64")
        if dtype.is_float:
            result = body.convert("arith.sitofp", result, "i64", dtype.element)
        elif dtype.bits < 64:
            result = body.convert("arith.trunci", result, "i64", dtype.element)
        return write_pointwise(text, shape, [], [], [], dtype, body, result)
