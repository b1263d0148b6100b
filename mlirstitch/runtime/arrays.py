"""Arrays of a call in files: inputs from ``.npz``, outputs to ``.npz``, random inputs.

numpy's own file format knows no bfloat16. An output ``y`` of that type is stored under the key ``y.bfloat16`` as its
bits, uint16; an input is accepted in the same form, as uint16, or as the raw 2-byte void that ``numpy.savez`` makes of
a ``ml_dtypes.bfloat16`` array.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.dtypes import Array, describe, describe_array, numpy_dtype
from mlirstitch.runtime.program import Signature, Value

_BITS = ".bfloat16"


def read_npz(path: str | Path, signature: Signature) -> list[Array]:
    """The inputs of ``signature`` from a file that has them by name, or by position (``arr_0``, ``arr_1``, ...).

    Raises :class:`LaunchError` if the file cannot be read, lacks an input, or has an array that is none.
    """
    arrays = _load(Path(path))
    wanted = signature.inputs
    names = [value.name for value in wanted]
    if len(set(names)) != len(names) or not set(arrays) & set(names):
        names = [f"arr_{k}" for k in range(len(wanted))]
    missing = [value.name for value, name in zip(wanted, names, strict=True) if name not in arrays]
    extra = sorted(set(arrays) - set(names))
    if missing or extra:
        problem = f"has no input {missing[0]!r}" if missing else f"has an array {extra[0]!r} that is no input"
        expected = ", ".join(f"{value.name}: {describe(value.dtype, value.shape)}" for value in wanted)
        raise LaunchError(f"{path}: {problem}", hint=f"inputs: {expected}; or arr_0, arr_1, ... by position")
    return [_restore(arrays[name], value, str(path)) for name, value in zip(names, wanted, strict=True)]


def write_npz(path: str | Path, arrays: Sequence[Array], names: Sequence[str]) -> None:
    """Write arrays under their names, at once. Names that occur twice are told apart by ``_1``, ``_2``, ..."""
    path = Path(path)
    stored: dict[str, Array] = {}
    for array, name in zip(arrays, _distinct(names), strict=True):
        if array.dtype.name == "bfloat16":
            stored[name + _BITS] = array.view(np.uint16)
        else:
            stored[name] = array
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        # Not numpy.savez(path, **stored): an output may be called "file".
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
            for name, array in stored.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)
        os.replace(aside, path)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        aside.unlink(missing_ok=True)


def random_inputs(signature: Signature, seed: int = 0) -> list[Array]:
    """Reproducible inputs: floats are standard normal; integers 0 or 1, which is a legal index almost everywhere."""
    return [_random(value, np.random.default_rng([seed, position])) for position, value in enumerate(signature.inputs)]


def _random(value: Value, generator: np.random.Generator) -> Array:
    dtype = numpy_dtype(value.dtype)
    if value.dtype.startswith(("float", "bfloat")):
        return np.asarray(generator.standard_normal(value.shape)).astype(dtype)
    return np.asarray(generator.integers(0, 2, value.shape)).astype(dtype)


def _load(path: Path) -> dict[str, Array]:
    try:
        if path.is_file() and not zipfile.is_zipfile(path):
            raise LaunchError(f"{path}: is not an .npz file", hint="write one with numpy.savez(path, name=array, ...)")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except LaunchError:
        raise
    except Exception as error:  # numpy and zipfile raise many types on damaged files
        raise LaunchError(f"{path}: cannot be read: {error or type(error).__name__}") from error
    return {name.removesuffix(_BITS): array for name, array in arrays.items()}


def _restore(array: Array, value: Value, path: str) -> Array:
    """Give stored bits of a bfloat16 input their type back."""
    if value.dtype == "bfloat16" and array.dtype in (np.dtype(np.uint16), np.dtype("V2")):
        array = array.view(numpy_dtype("bfloat16"))
    if array.dtype.name != value.dtype or array.shape != value.shape:
        expected = describe(value.dtype, value.shape)
        raise LaunchError(f"{path}: input {value.name!r}: expected {expected}, got {describe_array(array)}")
    return array


def _distinct(names: Sequence[str]) -> list[str]:
    taken = set(names)
    seen: set[str] = set()
    result: list[str] = []
    for name in names:
        fresh, count = name, 0
        while fresh in seen or (count and fresh in taken):
            count += 1
            fresh = f"{name}_{count}"
        seen.add(fresh)
        result.append(fresh)
    return result
