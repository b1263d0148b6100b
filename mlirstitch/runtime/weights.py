"""Weights on disk: one safetensors file. Never pickle; bfloat16 through ml_dtypes; shared storage is stored once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mlirstitch.errors import BundleError
from mlirstitch.runtime.dtypes import DTYPES, Array, aligned_copy, contiguous, numpy_dtype

# safetensors' names of the element types we use. https://github.com/huggingface/safetensors, "Format".
_SAFETENSORS = {
    "F16": "float16",
    "BF16": "bfloat16",
    "F32": "float32",
    "F64": "float64",
    "I8": "int8",
    "U8": "uint8",
    "I16": "int16",
    "I32": "int32",
    "I64": "int64",
    "BOOL": "bool",
}


def find_aliases(weights: Mapping[str, Array]) -> dict[str, str]:
    """Names whose array is exactly the storage of an earlier name (sorted order): tied weights."""
    first: dict[tuple[int, str, tuple[int, ...], tuple[int, ...]], str] = {}
    aliases: dict[str, str] = {}
    for name in sorted(weights):
        array = weights[name]
        key = (array.ctypes.data, array.dtype.name, array.shape, array.strides)
        if array.nbytes and first.setdefault(key, name) != name:
            aliases[name] = first[key]
    return aliases


def write_weights(path: Path, weights: Mapping[str, Array]) -> dict[str, str]:
    """Write ``weights`` and return their aliases, which the manifest keeps. Equal weights give equal bytes."""
    try:
        from safetensors.numpy import save_file
    except ImportError as error:
        raise BundleError("writing weights needs safetensors", hint="pip install safetensors") from error
    for name, array in weights.items():
        if array.dtype.name not in DTYPES or not array.dtype.isnative:
            raise BundleError(f"weight {name!r}: element type {array.dtype} cannot be stored")
    aliases = find_aliases(weights)
    save_file({name: contiguous(weights[name]) for name in sorted(weights) if name not in aliases}, path)
    return aliases


def decode_weights(data: bytes, aliases: Mapping[str, str], file: str) -> dict[str, Array]:
    """Writable, aligned arrays by name. Damage is a :class:`BundleError` naming ``file``."""
    try:
        from safetensors import SafetensorError, deserialize
    except ImportError as error:
        raise BundleError(f"{file}: reading weights needs safetensors", hint="pip install safetensors") from error
    try:
        entries = deserialize(data)
    except (SafetensorError, ValueError, OverflowError) as error:
        raise BundleError(f"{file}: {error}") from error
    del data
    weights: dict[str, Array] = {}
    while entries:
        name, entry = entries.pop()
        if entry["dtype"] not in _SAFETENSORS:
            raise BundleError(f"{file}: weight {name!r} has element type {entry['dtype']}, which is not supported")
        flat = np.frombuffer(entry["data"], numpy_dtype(_SAFETENSORS[entry["dtype"]]))
        weights[name] = aligned_copy(flat.reshape(entry["shape"]))
    for name, target in aliases.items():
        if target not in weights or name in weights:
            raise BundleError(f"{file}: {name!r} is declared to be the same weight as {target!r}, which does not fit")
    weights.update({name: weights[target] for name, target in aliases.items()})
    return dict(sorted(weights.items()))
