"""Element types by name, as the manifest spells them, and the numpy types that hold them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from mlirstitch.errors import BundleError

DtypeName = Literal["float16", "bfloat16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"]
DTYPES: tuple[str, ...] = get_args(DtypeName)

Array = np.ndarray[Any, np.dtype[Any]]
"""A numpy array of any rank and element type."""


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy type of an element type. ``bfloat16`` needs ml_dtypes; without it :class:`BundleError`."""
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise BundleError("element type bfloat16 needs ml_dtypes", hint="pip install ml_dtypes") from error
        return np.dtype(ml_dtypes.bfloat16)
    if name not in DTYPES:
        raise BundleError(f"unknown element type {name!r}", hint="known: " + ", ".join(DTYPES))
    return np.dtype(name)


def item_bytes(name: str) -> int:
    """Bytes of one element in memory (a bool takes one)."""
    return {"bfloat16": 2, "bool": 1}.get(name) or np.dtype(name).itemsize


def tensor_bytes(shape: Sequence[int], dtype: str) -> int:
    """Bytes of a contiguous tensor."""
    return math.prod(shape) * item_bytes(dtype)


def describe(dtype: str, shape: Sequence[int]) -> str:
    """``float32 [4, 8]``, the way messages name a tensor type."""
    return f"{dtype} [{', '.join(str(int(extent)) for extent in shape)}]"


def describe_array(array: Array) -> str:
    """The type of an array as :func:`describe` prints it; foreign byte orders are shown."""
    dtype = array.dtype
    return describe(dtype.name if dtype.isnative else f"{dtype.name} (byte-swapped)", array.shape)


def contiguous(array: Array) -> Array:
    """The array itself if it is row-major contiguous, else a copy that is. Keeps rank 0."""
    return array if array.flags.c_contiguous else array.copy(order="C")


def aligned_bytes(count: int, alignment: int = 256) -> Array:
    """Uninitialised uint8 [count] whose first byte stands at a multiple of ``alignment``."""
    raw = np.empty(count + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + count]


def aligned_copy(array: Array) -> Array:
    """A row-major copy that starts at a multiple of 256 bytes."""
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy
