"""Running one kernel from the command line: ``mlirstitch emulate`` and ``python -m mlirstitch.runtime.emulator``."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlirstitch.errors import LaunchError
from mlirstitch.runtime.emulator.module import DEFAULT_BUDGET, EmulatedModule, KernelInfo, ParameterInfo, load

_FLOATS = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_INTEGERS = {f"{sign}{8 * size}": np.dtype(f"{kind}{size}") for sign, kind in (("i", "i"), ("s", "i"), ("u", "u"))
             for size in (1, 2, 4, 8)}  # fmt: skip
_WAYS = "FILE.npz:NAME, FILE.npy, zeros:DTYPE:4x8, empty:DTYPE:4x8, int:5, f32:1.5"


@dataclass(frozen=True)
class Request:
    """What to run, as given on the command line.

    ``grid``, ``block`` and ``cluster`` are ``X[,Y[,Z]]``; ``entry`` None takes the only kernel of the module; the other
    fields are those of :meth:`EmulatedModule.launch`.
    """

    ptx: str
    block: str
    args: Sequence[str] = ()
    entry: str | None = None
    grid: str = "1"
    cluster: str | None = None
    shared_bytes: int = 0
    output: str | None = None
    counters: bool = False
    sanitize: bool = False
    seed: int | None = None
    cooperative: bool = False
    budget: int | None = None
    engine: str = "auto"


@dataclass(frozen=True)
class _Argument:
    """A value for a parameter, the name of an array in the output, and whether its bytes count as written."""

    name: str
    value: Any
    written: bool = True


def run(request: Request) -> list[str]:
    """Run the kernel; lines for stdout: the counters, and without an output file one for every array.

    Raises :class:`LaunchError` for a file or an argument that does not fit, and for every finding.
    """
    module = load(_read_text(request.ptx), request.engine)
    info = _kernel(module, request.entry)
    if len(request.args) != len(info.parameters):
        names = ", ".join(f"{p.name} ({p.kind}, {p.bytes} bytes)" for p in info.parameters) or "none"
        raise LaunchError(
            f"kernel {info.name!r} takes {len(info.parameters)} arguments, not {len(request.args)}",
            hint=f"one --arg for each of its parameters: {names}",
        )
    arguments = [
        _argument(position, text, parameter)
        for position, (text, parameter) in enumerate(zip(request.args, info.parameters, strict=True))
    ]
    counters = module.launch(
        info.name,
        _extent("grid", request.grid),
        _extent("block", request.block),
        [argument.value for argument in arguments],
        request.shared_bytes,
        cooperative=request.cooperative,
        cluster=None if request.cluster is None else _extent("cluster", request.cluster),
        sanitize=request.sanitize,
        seed=request.seed,
        budget=DEFAULT_BUDGET if request.budget is None else request.budget,
        defined=[None if a.written else np.zeros(a.value.nbytes, bool) for a in arguments],
    )
    arrays = {argument.name: argument.value for argument in arguments if isinstance(argument.value, np.ndarray)}
    lines = [json.dumps(counters.to_dict(), indent=1)] if request.counters else []
    if request.output is None:
        return [*lines, *(_describe(name, array) for name, array in arrays.items())]
    _write(request.output, arrays)
    return lines


def _read_text(path: str) -> str:
    try:
        return Path(path).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _kernel(module: EmulatedModule, entry: str | None) -> KernelInfo:
    if entry is None and len(module.entries) == 1:
        return next(iter(module.entries.values()))
    if entry is None or entry not in module.entries:
        names = ", ".join(sorted(module.entries)) or "none"
        missing = "which kernel?" if entry is None else f"no kernel {entry!r} in this module"
        raise LaunchError(missing, hint=f"--entry NAME; it has {names}")
    return module.entries[entry]


def _extent(what: str, text: str) -> tuple[int, ...]:
    if not re.fullmatch(r"\d+([,x]\d+){0,2}", text):
        raise LaunchError(f"--{what} must be one to three numbers such as 8,4, not {text!r}")
    return tuple(int(part) for part in re.split("[,x]", text))


def _argument(position: int, text: str, parameter: ParameterInfo) -> _Argument:
    kind, _, rest = text.partition(":")
    name = f"arg{position}"
    if kind in ("zeros", "empty"):
        return _Argument(name, _new_array(text, rest), written=kind == "zeros")
    if kind == "int":
        return _Argument(name, _integer(text, rest, _INTEGERS[f"i{8 * _width(text, parameter)}"]))
    if kind in _INTEGERS:
        return _Argument(name, _integer(text, rest, _INTEGERS[kind]))
    if kind in _FLOATS:
        try:
            return _Argument(name, _FLOATS[kind](rest))
        except ValueError as error:
            raise _unfit(text, f"{rest!r} is no number") from error
    path, separator, member = text.rpartition(":")
    if separator and path.endswith(".npz"):
        return _Argument(member, _member(path, member))
    if text.endswith(".npy"):
        return _Argument(name, _load(text))
    raise _unfit(text, "is no argument")


def _unfit(text: str, reason: str) -> LaunchError:
    return LaunchError(f"--arg {text}: {reason}", hint=f"arguments are {_WAYS}")


def _width(text: str, parameter: ParameterInfo) -> int:
    if parameter.bytes not in (1, 2, 4, 8):
        raise _unfit(text, f"parameter {parameter.name} has {parameter.bytes} bytes")
    return parameter.bytes


def _integer(text: str, digits: str, dtype: np.dtype[Any]) -> Any:
    """An integer of the type; one past the signed range wraps, so that ``int:0xffffffff`` is -1."""
    try:
        value = int(digits, 0)
    except ValueError as error:
        raise _unfit(text, f"{digits!r} is no integer") from error
    bits = 8 * dtype.itemsize
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise _unfit(text, f"does not fit into {bits} bits")
    return np.array(value % (1 << bits), f"u{dtype.itemsize}").view(dtype)[()]


def _new_array(text: str, rest: str) -> Any:
    name, _, shape = rest.partition(":")
    if not re.fullmatch(r"\d+(x\d+)*", shape):
        raise _unfit(text, "needs a type and a shape")
    try:
        return np.zeros([int(size) for size in shape.split("x")], np.dtype(name))
    except (TypeError, ValueError, MemoryError) as error:
        raise _unfit(text, str(error)) from error


def _load(path: str) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise LaunchError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error


def _member(path: str, name: str) -> Any:
    with _load(path) as archive:
        if name not in archive.files:
            raise LaunchError(f"{path} has no array {name!r}", hint=f"it has {', '.join(archive.files) or 'none'}")
        return np.ascontiguousarray(archive[name])


def _write(path: str, arrays: dict[str, Any]) -> None:
    try:
        np.savez(path, **arrays)
    except OSError as error:
        raise LaunchError(f"cannot write {path}: {error.strerror or error}") from error


def _describe(name: str, array: Any) -> str:
    text = f"{name}: {array.dtype}{list(array.shape)}"
    if not array.size or array.dtype.kind not in "fiu":
        return text
    wide = array.astype(np.float64)
    return f"{text}, min {wide.min():.6g}, mean {wide.mean():.6g}, max {wide.max():.6g}"
