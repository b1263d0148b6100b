"""Tensors of a program in numpy's .npz files, by the names of the signature.

numpy files have no bfloat16. It is written as float32, and read from float32 values that bfloat16 represents exactly or
from the two-byte type that numpy makes of arrays of ``ml_dtypes.bfloat16``.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.dtypes import Array, describe, numpy_dtype
from mlirstitch.runtime.program import Value

SEED = 0
_HOW_TO_WRITE = "write inputs with numpy.savez(file, name=array, ...)"


def read_inputs(path: str | Path, wanted: Sequence[Value]) -> list[Array]:
    """The arrays of an .npz file in the order of ``wanted``. Raises LaunchError for a bad file or wrong names."""
    arrays = _read(Path(path))
    names = [value.name for value in wanted]
    missing = [name for name in names if name not in arrays]
    extra = [name for name in arrays if name not in names]
    if missing or extra:
        what = f"lacks {', '.join(missing)}" if missing else f"holds {', '.join(extra)}, which is no input"
        listed = ", ".join(f"{value.name}: {describe(value.dtype, value.shape)}" for value in wanted)
        raise LaunchError(f"{path} {what}", hint=f"inputs of the program: {listed or 'none'}")
    return [_from_file(arrays[value.name], value) for value in wanted]


def _read(path: Path) -> dict[str, Array]:
    try:
        loaded = np.load(path, allow_pickle=False)
        if isinstance(loaded, np.ndarray):
            raise LaunchError(f"{path} holds one unnamed array", hint=_HOW_TO_WRITE)
        with loaded as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise LaunchError(f"there is no file {path}") from None
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise LaunchError(f"{path} is not a readable .npz file: {error}", hint=_HOW_TO_WRITE) from error


def _from_file(array: Array, value: Value) -> Array:
    if value.dtype != "bfloat16":
        return array
    bfloat16 = numpy_dtype("bfloat16")
    if array.dtype == np.dtype("V2"):
        return array.view(bfloat16)
    if array.dtype != np.float32:
        return array  # the executor names what it expected and what came
    narrow = array.astype(bfloat16)
    if not np.array_equal(narrow.astype(np.float32), array, equal_nan=True):
        raise LaunchError(
            f"input {value.name!r} is bfloat16, but its float32 values have more digits",
            hint="round them first, so that what runs is what the file says",
        )
    return narrow


def random_inputs(wanted: Sequence[Value]) -> list[Array]:
    """Inputs from a fixed seed: normal floats, and zeros for integers and bools, which often are indices."""
    generator = np.random.default_rng(SEED)
    arrays: list[Array] = []
    for value in wanted:
        dtype = numpy_dtype(value.dtype)
        if "float" in value.dtype:
            arrays.append(np.asarray(generator.standard_normal(value.shape)).astype(dtype))
        else:
            arrays.append(np.zeros(value.shape, dtype))
    return arrays


def write_outputs(path: str | Path, outputs: Mapping[str, Array]) -> None:
    """Write arrays by name, aside and then renamed, so that no reader sees half a file. Raises LaunchError."""
    path = Path(path)
    aside = path.with_name(path.name + ".part")
    try:
        # Not numpy.savez: its own parameters ("file") would clash with tensors of these names.
        with zipfile.ZipFile(aside, "w") as archive:
            for name, array in outputs.items():
                with archive.open(name + ".npy", "w", force_zip64=True) as entry:
                    np.lib.format.write_array(entry, _to_file(array), allow_pickle=False)
        os.replace(aside, path)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error


def _to_file(array: Array) -> Array:
    return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
