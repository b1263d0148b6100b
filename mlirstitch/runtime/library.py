"""Library steps: the contractions and convolutions that a compilation with ``--library auto`` leaves to the device.

A routine is named after the linalg op it stands for. On the emulated device numpy (and its BLAS) computes them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.lib.stride_tricks import as_strided, sliding_window_view

from mlirstitch.runtime.dtypes import Array, numpy_dtype
from mlirstitch.runtime.library_checks import adjacent_dim, why_not_in_table
from mlirstitch.runtime.program import Epilogue, LibraryCall, Operand

M_contra = TypeVar("M_contra", contravariant=True)


class Library(Protocol[M_contra]):
    """A provider of library routines for one kind of device memory."""

    def refuses(self, call: LibraryCall) -> str | None:
        """None if the provider can compute the call, else the reason why not."""
        ...

    def run(self, call: LibraryCall, operands: Sequence[M_contra]) -> None:
        """Compute the call; the operand that it writes is overwritten."""
        ...


# linalg's contractions as loop dims of left operand, right operand, result. LLVM 22, LinalgStructuredOps.
_CONTRACTIONS: dict[str, tuple[str, str, str]] = {
    "matmul": ("mk", "kn", "mn"),
    "matmul_transpose_a": ("km", "kn", "mn"),
    "matmul_transpose_b": ("mk", "nk", "mn"),
    "batch_matmul": ("bmk", "bkn", "bmn"),
    "batch_matmul_transpose_a": ("bkm", "bkn", "bmn"),
    "batch_matmul_transpose_b": ("bmk", "bnk", "bmn"),
    "batch_reduce_matmul": ("bmk", "bkn", "mn"),
    "matvec": ("mk", "k", "m"),
    "vecmat": ("k", "kn", "n"),
    "batch_matvec": ("bmk", "bk", "bm"),
    "batch_vecmat": ("bk", "bkn", "bn"),
    "dot": ("k", "k", ""),
}
# Image and filter layouts of convolutions; g: group, c: input channel, f: filter, m: multiplier, d h w: space.
_CONVOLUTION = re.compile(r"(depthwise_)?conv_([123])d_([ngcdhw]+)_([gfcmdhw]+)")


@dataclass(frozen=True)
class _Contraction:
    """Loop dims, one letter each, of the two operands and the result, and how windows slide over the left operand."""

    left: str
    right: str
    result: str
    strides: tuple[int, ...] = ()
    dilations: tuple[int, ...] = ()
    space: str = ""


class NumpyLibrary:
    """Contractions and convolutions on host memory.

    f16 and bf16 are computed in f32 and rounded once; every other type is computed in the type of the result, so that
    integers wrap as they do on the device.
    """

    def refuses(self, call: LibraryCall) -> str | None:
        plan = _plan(call)
        return plan if isinstance(plan, str) else _misfit(plan, call) or why_not_in_table(call)

    def run(self, call: LibraryCall, operands: Sequence[Array]) -> None:
        plan = _plan(call)
        assert isinstance(plan, _Contraction), "refuses() was asked before"
        tensors = [_tensor(memory, o) for memory, o in zip(operands, call.operands, strict=True)]
        result = tensors[-1]
        dtype = np.dtype(np.float32) if result.dtype.itemsize == 2 and result.dtype.kind != "i" else result.dtype
        left, right = (tensor.astype(dtype, copy=False) for tensor in tensors[:2])
        if plan.space:
            left = _windows(left, right, plan)
        # Overflow to inf and NaN operands are results here, not warnings.
        with np.errstate(all="ignore"):
            product = _contract(left, right, plan)
            if call.epilogue is not None:
                product = _finished(product, call.epilogue, tensors, adjacent_dim(call, call.operands[-1]))
            result[...] = product.astype(result.dtype, copy=False)


def _finished(product: Array, epilogue: Epilogue, tensors: Sequence[Array], adjacent: int) -> Array:
    """``activation(alpha * product + beta * addend + bias)`` in the product's type.

    A bias lies along dim ``adjacent`` of the result; NaN goes through a ReLU.
    """
    dtype = product.dtype
    total = product * dtype.type(epilogue.alpha)
    if epilogue.addend is not None:
        total += dtype.type(epilogue.beta) * tensors[epilogue.addend].astype(dtype, copy=False)
    if epilogue.bias is not None:
        shape = [1] * total.ndim
        shape[adjacent] = -1
        total += tensors[epilogue.bias].astype(dtype, copy=False).reshape(shape)
    if epilogue.activation == "relu":
        return np.where(total < 0, dtype.type(0), total)
    if epilogue.activation == "gelu_tanh":
        inside = dtype.type(math.sqrt(2 / math.pi)) * (total + dtype.type(0.044715) * total**3)
        return dtype.type(0.5) * total * (1 + np.tanh(inside))
    return total


def _tensor(memory: Array, operand: Operand) -> Array:
    elements = memory.view(numpy_dtype(operand.dtype))
    if operand.strides is None and not operand.offset:
        return elements.reshape(operand.shape)
    if not math.prod(operand.shape):
        return np.empty(operand.shape, elements.dtype)
    steps = [step * elements.itemsize for step in operand.steps]
    return as_strided(elements[operand.offset or 0 :], operand.shape, steps)


def _plan(call: LibraryCall) -> _Contraction | str:
    """What a call computes, or why it is unknown."""
    accesses = [operand.access for operand in call.operands]
    added = 0 if call.epilogue is None else sum(p is not None for p in (call.epilogue.addend, call.epilogue.bias))
    if accesses != ["read"] * (2 + added) + ["write"]:
        return f"expected two operands to read, what an epilogue adds, and one to write, got {accesses}"
    if any(operand.dtype == "bool" for operand in call.operands):
        return "operands of type bool are not supported"
    if "indexing_maps" in call.attributes:
        return _mapped(call.attributes["indexing_maps"])
    if call.routine in _CONTRACTIONS:
        left, right, result = _CONTRACTIONS[call.routine]
        return _Contraction(left, right, result)
    match = _CONVOLUTION.fullmatch(call.routine)
    if match is None:
        known = ", ".join(_CONTRACTIONS)
        return f"unknown routine {call.routine!r} (known: {known}, contract with indexing maps, and convolutions)"
    return _convolution(match, call.attributes)


def _mapped(maps: Any) -> _Contraction | str:
    if not isinstance(maps, list | tuple) or len(maps) != 3:
        return "indexing_maps must be three lists of loop dims"
    letters: list[str] = []
    for dims in maps:
        if not isinstance(dims, list | tuple) or not all(type(dim) is int and 0 <= dim < 1000 for dim in dims):
            return "indexing_maps must be three lists of loop dims"
        if len(set(dims)) != len(dims):
            return f"indexing map {list(dims)} uses a loop dim twice"
        letters.append("".join(chr(0x4E00 + dim) for dim in dims))
    left, right, result = letters
    return _Contraction(left, right, result)


def _convolution(match: re.Match[str], attributes: Any) -> _Contraction | str:
    depthwise, rank, image, kernel = match.groups()
    space = "".join(letter for letter in image if letter in "dhw")
    wanted = sorted(letter for letter in kernel if letter in "dhw")
    letters_fit = ("f" in kernel) != bool(depthwise) and ("m" not in kernel or depthwise)
    if len(space) != int(rank) or sorted(space) != wanted or len(set(image)) != len(image) or not letters_fit:
        return f"unknown convolution layout {match.group(0)!r}"
    strides = _steps(attributes, "strides", len(space))
    dilations = _steps(attributes, "dilations", len(space))
    if strides is None or dilations is None:
        return f"strides and dilations must be {len(space)} positive integers each"
    result = image + ("m" if "m" in kernel else "") if depthwise else image.replace("c", "f")
    # Positions inside a window are loop dims of their own, written in capitals.
    windows = "".join(letter.upper() if letter in space else letter for letter in kernel)
    return _Contraction(image, windows, result, strides, dilations, space)


def _steps(attributes: Any, name: str, rank: int) -> tuple[int, ...] | None:
    """A step a spatial dim, 1 where the attribute is missing; None if it is malformed."""
    steps = attributes.get(name, [1] * rank)
    if not isinstance(steps, list | tuple) or len(steps) != rank:
        return None
    return tuple(steps) if all(type(step) is int and step > 0 for step in steps) else None


def _misfit(plan: _Contraction, call: LibraryCall) -> str | None:
    """Why the operands' shapes do not fit the plan, or None."""
    extents: dict[str, int] = {}
    product = (*call.operands[:2], call.operands[-1])
    for letters, operand in zip((plan.left, plan.right, plan.result), product, strict=True):
        if len(letters) != len(operand.shape):
            return f"operand of shape {list(operand.shape)} has rank {len(operand.shape)}, expected {len(letters)}"
        for letter, extent in zip(letters, operand.shape, strict=True):
            if letter not in plan.space and extents.setdefault(letter, extent) != extent:
                return f"operand shapes {[list(o.shape) for o in call.operands]} disagree"
    if not set(plan.result) <= set(plan.left) | set(plan.right):
        return "the result has a loop dim that no operand has"
    for letter, stride, dilation in zip(plan.space, plan.strides, plan.dilations, strict=True):
        held = call.operands[0].shape[plan.left.index(letter)]
        reach = (extents[letter.upper()] - 1) * dilation + 1
        expected = (held - reach) // stride + 1
        if call.operands[-1].shape[plan.result.index(letter)] != expected:
            return f"dim {letter} of the result should be {expected}"
    return None


def _windows(image: Array, kernel: Array, plan: _Contraction) -> Array:
    """View of the image with one trailing axis a spatial dim for the position inside the window."""
    axes = [plan.left.index(letter) for letter in plan.space]
    extents = [kernel.shape[plan.right.index(letter.upper())] for letter in plan.space]
    reach = [(extent - 1) * step + 1 for extent, step in zip(extents, plan.dilations, strict=True)]
    view = sliding_window_view(image, reach, axis=tuple(axes))
    select = [slice(None)] * view.ndim
    for k, axis in enumerate(axes):
        select[axis] = slice(None, None, plan.strides[k])
        select[image.ndim + k] = slice(None, None, plan.dilations[k])
    return view[tuple(select)]


def _contract(left: Array, right: Array, plan: _Contraction) -> Array:
    """Sum of products over the dims missing from the result, as one (batched) matrix product."""
    left_dims = plan.left + plan.space.upper()
    left, left_dims = _sum_private(left, left_dims, plan.right + plan.result)
    right, right_dims = _sum_private(right, plan.right, left_dims + plan.result)
    shared = [d for d in left_dims if d in right_dims]
    batch = [d for d in shared if d in plan.result]
    inner = [d for d in shared if d not in plan.result]
    rows = [d for d in left_dims if d not in right_dims]
    columns = [d for d in right_dims if d not in left_dims]
    extent = dict(zip(left_dims, left.shape, strict=True)) | dict(zip(right_dims, right.shape, strict=True))

    def matrix(array: Array, dims: str, *groups: list[str]) -> Array:
        order = [dims.index(d) for group in groups for d in group]
        return array.transpose(order).reshape([int(np.prod([extent[d] for d in g], dtype=np.int64)) for g in groups])

    product = np.matmul(matrix(left, left_dims, batch, rows, inner), matrix(right, right_dims, batch, inner, columns))
    order = [*batch, *rows, *columns]
    return product.reshape([extent[d] for d in order]).transpose([order.index(d) for d in plan.result])


def _sum_private(array: Array, dims: str, others: str) -> tuple[Array, str]:
    """Sum away the dims that only this operand has."""
    private = tuple(k for k, d in enumerate(dims) if d not in others)
    if not private:
        return array, dims
    return array.sum(axis=private, dtype=array.dtype), "".join(d for d in dims if d in others)
