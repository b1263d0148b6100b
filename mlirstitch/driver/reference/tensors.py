"""The tensor dialect on numpy arrays: data movement."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from mlir import ir

from mlirstitch.driver.reference.elements import Elements, is_float
from mlirstitch.errors import LaunchError

Array = np.ndarray
Lookup = Callable[[ir.Value], Array]


def mixed(op: ir.Operation, static: str, dynamic: Sequence[ir.Value], get: Lookup) -> list[int]:
    """Offsets, sizes, strides and paddings: static numbers with the dynamic operands put where they belong."""
    values = iter(dynamic)
    marker = ir.ShapedType.get_dynamic_size()
    return [int(get(next(values))) if n == marker else n for n in ir.DenseI64ArrayAttr(op.attributes[static])]


def empty(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    """Unset contents: NaN or a conspicuous integer, so that reading them shows."""
    dynamic = iter(op.operands)
    shape = [int(get(next(dynamic))) if n < 0 else n for n in ir.ShapedType(op.results[0].type).shape]
    dtype = elements.dtype(op.results[0].type)
    poison = np.nan if is_float(dtype) else True if dtype == np.bool_ else 0x55
    return np.broadcast_to(np.asarray(poison, dtype=dtype), shape)


def _segments(op: ir.Operation) -> list[list[ir.Value]]:
    operands = iter(op.operands)
    return [[next(operands) for _ in range(n)] for n in ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])]


def _window(op: ir.Operation, groups: list[list[ir.Value]], shape: Sequence[int], get: Lookup) -> tuple[slice, ...]:
    offsets, sizes, strides = (
        mixed(op, f"static_{name}", group, get)
        for name, group in zip(("offsets", "sizes", "strides"), groups, strict=True)
    )
    for axis, (o, n, s, extent) in enumerate(zip(offsets, sizes, strides, shape, strict=True)):
        if o < 0 or n < 0 or (n and o + (n - 1) * s >= extent):
            raise LaunchError(f"slice {o}:{n}:{s} leaves dim {axis} of {extent} elements")
    return tuple(slice(o, o + (n - 1) * s + 1 if n else o, s) for o, n, s in zip(offsets, sizes, strides, strict=True))


def extract_slice(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    source, *groups = _segments(op)
    array = get(source[0])
    return array[_window(op, groups, array.shape, get)].reshape(_shape(op, array, groups, get))


def _shape(op: ir.Operation, array: Array, groups: list[list[ir.Value]], get: Lookup) -> list[int]:
    """Shape of an extract_slice result: the static one, with dynamic extents taken from the sizes in order."""
    shape = list(ir.ShapedType(op.results[0].type).shape)
    if all(n >= 0 for n in shape):
        return shape
    sizes = mixed(op, "static_sizes", groups[1], get)
    return sizes if len(sizes) == len(shape) else [n for n in sizes if n != 1]


def insert_slice(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    source, target, *groups = _segments(op)
    result = get(target[0]).copy()
    window = _window(op, groups, result.shape, get)
    result[window] = get(source[0]).reshape(result[window].shape)
    return result


def reshape(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    """expand_shape, collapse_shape: row-major order is kept."""
    array = get(op.operands[0])
    shape = list(ir.ShapedType(op.results[0].type).shape)
    if op.name == "tensor.expand_shape":
        shape = mixed(op, "static_output_shape", list(op.operands)[1:], get)
    elif any(n < 0 for n in shape):
        groups = [
            [ir.IntegerAttr(d).value for d in ir.ArrayAttr(g)] for g in ir.ArrayAttr(op.attributes["reassociation"])
        ]
        shape = [int(np.prod([array.shape[d] for d in g])) for g in groups]
    return array.reshape(shape)


def cast(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    array = get(op.operands[0])
    for axis, (have, want) in enumerate(zip(array.shape, ir.ShapedType(op.results[0].type).shape, strict=True)):
        if want >= 0 and have != want:
            raise LaunchError(f"tensor.cast to {op.results[0].type}: dim {axis} has {have} elements")
    return array


def concat(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    return np.concatenate([get(v) for v in op.operands], axis=ir.IntegerAttr(op.attributes["dim"]).value)


def extract(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    """One element, or, inside a body, one element a point of the iteration space."""
    array, *index = (np.asarray(get(v)) for v in op.operands)
    for axis, (i, size) in enumerate(zip(index, array.shape, strict=True)):
        if i.size and (i.min() < 0 or i.max() >= size):
            raise LaunchError(f"index {int(i.min())}..{int(i.max())} leaves dim {axis} of {size} elements")
    return np.asarray(array[tuple(index)])


def insert(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    value, target, *index = (get(v) for v in op.operands)
    result = target.copy()
    result[tuple(int(i) for i in index)] = value
    return result


def splat(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    return np.full(list(ir.ShapedType(op.results[0].type).shape), get(op.operands[0]))


def from_elements(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    shape = list(ir.ShapedType(op.results[0].type).shape)
    return np.array([get(v) for v in op.operands], dtype=elements.dtype(op.results[0].type)).reshape(shape)


def dim(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    return np.asarray(get(op.operands[0]).shape[int(get(op.operands[1]))], dtype=np.int64)


def rank(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    return np.asarray(get(op.operands[0]).ndim, dtype=np.int64)


def tensor_reshape(op: ir.Operation, elements: Elements, get: Lookup) -> Array:
    return get(op.operands[0]).reshape([int(n) for n in get(op.operands[1])])


TENSOR_OPS: dict[str, Callable[[ir.Operation, Elements, Lookup], Array]] = {
    "tensor.empty": empty,
    "tensor.extract_slice": extract_slice,
    "tensor.insert_slice": insert_slice,
    "tensor.expand_shape": reshape,
    "tensor.collapse_shape": reshape,
    "tensor.cast": cast,
    "tensor.concat": concat,
    "tensor.extract": extract,
    "tensor.insert": insert,
    "tensor.splat": splat,
    "tensor.from_elements": from_elements,
    "tensor.dim": dim,
    "tensor.rank": rank,
    "tensor.reshape": tensor_reshape,
}
"""Op name to evaluator; tensor.pad and tensor.generate have bodies and live in the interpreter."""


def padding(op: ir.Operation, get: Lookup) -> tuple[list[int], list[int]]:
    """Low and high padding of a ``tensor.pad``."""
    _, low, high = _segments(op)
    return mixed(op, "static_low", low, get), mixed(op, "static_high", high, get)
