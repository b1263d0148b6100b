"""Element types: how IR types and constants appear as numpy values."""

from __future__ import annotations

import re
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from mlir import ir

from mlirstitch.errors import PassError

_FLOATS: dict[str, np.dtype] = {
    "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16),
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f8E4M3FN": np.dtype(ml_dtypes.float8_e4m3fn),
    "f8E5M2": np.dtype(ml_dtypes.float8_e5m2),
}
_INTEGERS: dict[str, np.dtype] = {
    "i1": np.dtype(np.bool_),
    "i8": np.dtype(np.int8),
    "i16": np.dtype(np.int16),
    "i32": np.dtype(np.int32),
    "i64": np.dtype(np.int64),
    "index": np.dtype(np.int64),
}
NAMED_DTYPES: dict[str, np.dtype] = {
    "bool": np.dtype(np.bool_),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float8_e4m3fn": np.dtype(ml_dtypes.float8_e4m3fn),
    "float8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    **{n: np.dtype(n) for n in ("float16", "float32", "float64", "int8", "uint8", "int16", "int32", "int64")},
}
"""Values of ``stitch.dtype`` and the numpy type each one means."""


def is_float(dtype: np.dtype) -> bool:
    """Whether the type is a floating-point one, ml_dtypes included."""
    return dtype in _FLOATS.values()


def is_narrow_float(dtype: np.dtype) -> bool:
    """Whether the type is a float of fewer than 32 bits: sums in it must be evaluated serially."""
    return is_float(dtype) and dtype.itemsize < 4


@dataclass(frozen=True)
class Elements:
    """Maps IR element types to numpy types; ``widen`` evaluates all floats as float64."""

    widen: bool = False

    def dtype(self, type_: ir.Type) -> np.dtype:
        """The numpy type of a scalar type, or of a tensor's elements. Raises PassError for a type it cannot hold."""
        if isinstance(type_, ir.ShapedType):
            type_ = type_.element_type
        text = str(type_)
        if text in _FLOATS:
            return np.dtype(np.float64) if self.widen else _FLOATS[text]
        if text in _INTEGERS:
            return _INTEGERS[text]
        raise PassError(
            f"the reference cannot hold values of type {text}",
            hint=f"it knows {', '.join((*_FLOATS, *_INTEGERS))}",
        )

    def constant(self, attribute: ir.Attribute, type_: ir.Type) -> np.ndarray:
        """The value of an ``arith.constant``: a 0-d array for scalars, else an array of the tensor's shape."""
        dtype = self.dtype(type_)
        if isinstance(attribute, (ir.FloatAttr, ir.IntegerAttr)):
            return np.asarray(_scalar(attribute), dtype=dtype)
        if isinstance(attribute, ir.BoolAttr):
            return np.asarray(attribute.value, dtype=dtype)
        shape = tuple(ir.ShapedType(type_).shape)
        if isinstance(attribute, (ir.DenseFPElementsAttr, ir.DenseIntElementsAttr)):
            if attribute.is_splat:
                return np.full(shape, _scalar(attribute.get_splat_value()), dtype=dtype)
            return _dense(attribute, ir.ShapedType(type_).element_type).astype(dtype).reshape(shape)
        raise PassError(
            f"the reference cannot read a constant of type {type_} kept as {type(attribute).__name__}",
            hint="write it as dense<...>; contents of dense_resource and elided constants are not in the text",
        )


def _scalar(attribute: ir.Attribute) -> float | int | bool:
    if isinstance(attribute, (ir.FloatAttr, ir.BoolAttr, ir.IntegerAttr)):
        return attribute.value
    raise PassError(f"the reference cannot read the constant {attribute}")


def _dense(attribute: ir.Attribute, element: ir.Type) -> np.ndarray:
    """Contents of a non-splat dense attribute, flat, in its own type."""
    text = str(element)
    if text not in ("bf16", "f8E4M3FN", "f8E5M2"):
        return np.array(memoryview(attribute)).reshape(-1)  # type: ignore[arg-type]
    # These types have no Python buffer: read the printed form, decimal numbers or (when long) one string of bytes.
    body = str(attribute)
    raw = re.search(r'dense<"0x([0-9A-Fa-f]*)">', body)
    dtype = _FLOATS[text]
    if raw:
        return np.frombuffer(bytes.fromhex(raw.group(1)), dtype=dtype)
    numbers = re.findall(r"0x[0-9A-Fa-f]+|[-+]?\d[\d.]*(?:[eE][-+]?\d+)?", body[body.index("<") : body.index(">")])
    unsigned = np.dtype(f"u{dtype.itemsize}")
    patterns = [
        np.array(int(n, 16), unsigned).view(dtype) if n.startswith("0x") else np.array(float(n), dtype) for n in numbers
    ]
    return np.array(patterns, dtype=dtype)
