"""Constants of a chip that were measured: their names, ranges, and the file that holds them (docs/calibration.md)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from mlirstitch.errors import TargetError
from mlirstitch.target import IssueCycles, Target

FORMAT = "mlirstitch-target"
VERSION = 1
CYCLES = "cycles."
"""Beginning of the names of issue costs: ``cycles.float`` is ``Target.cycles.float``."""


@dataclass(frozen=True)
class Range:
    """What a constant may be: from ``low`` to ``high``, in ``unit``."""

    low: float
    high: float
    unit: str

    def __str__(self) -> str:
        return f"between {self.low:g} and {self.high:g} {self.unit}"


_PER_SECOND = Range(1e6, 1e16, "bytes a second")

RANGES: Mapping[str, Range] = {
    "bandwidth": _PER_SECOND,
    "l2_bandwidth": _PER_SECOND,
    "matrix_flops": Range(1e6, 1e20, "operations a second"),
    "clock": Range(1e6, 1e11, "cycles a second"),
    "memory_seconds": Range(1e-12, 1.0, "seconds"),
    "launch_seconds": Range(0.0, 1.0, "seconds"),
    "barrier_seconds": Range(0.0, 1.0, "seconds"),
    **{CYCLES + field.name: Range(0.0, 1e6, "cycles") for field in fields(IssueCycles)},
}
"""Every constant of :class:`~mlirstitch.target.Target` that a file may hold. Limits of a chip are not among them."""

_FIELDS = {"format", "version", "chip", "constants", "device", "producer", "kept", "fit", "measured"}
_REQUIRED = ("format", "version", "chip", "constants")


@dataclass(frozen=True)
class TargetFile:
    """What a target file says about a chip.

    Attributes:
        chip: the chip it holds for; ``sm_90`` stands for ``sm_90a`` too, and the other way round.
        constants: by name, those of :data:`RANGES` that it holds.
    """

    chip: str
    constants: Mapping[str, float]


def constants_of(target: Target) -> dict[str, float]:
    """All constants of a chip by name, in the order of :data:`RANGES`."""
    return {
        name: float(target.cycles.of(name.removeprefix(CYCLES)) if name.startswith(CYCLES) else getattr(target, name))
        for name in RANGES
    }


def with_constants(target: Target, constants: Mapping[str, float]) -> Target:
    """The same chip with some constants replaced. Raises :class:`TargetError` as :func:`check_constants` does."""
    check_constants(constants)
    rates = {name: value for name, value in constants.items() if not name.startswith(CYCLES)}
    cycles = {name.removeprefix(CYCLES): value for name, value in constants.items() if name.startswith(CYCLES)}
    return target.override(**rates, cycles=replace(target.cycles, **cycles))


def check_constants(constants: Mapping[str, Any]) -> None:
    """Raise :class:`TargetError` naming a constant that does not exist, is no finite number or out of its range."""
    for name, value in constants.items():
        if name not in RANGES:
            raise TargetError(f"there is no constant {name!r}", hint=f"constants: {', '.join(RANGES)}")
        if type(value) not in (int, float) or not math.isfinite(value):
            raise TargetError(f"{name} is {value!r}, not a finite number", hint=f"give a number {RANGES[name]}")
        if not RANGES[name].low <= value <= RANGES[name].high:
            raise TargetError(f"{name} = {value:g} is not {RANGES[name]}", hint="give base units: bytes, seconds, Hz")


def constants_digest(constants: Mapping[str, float]) -> str:
    """SHA-256 of constants, which tells whether two programs were compiled with the same."""
    return hashlib.sha256(json.dumps(dict(constants), sort_keys=True).encode()).hexdigest()


def read_target_file(path: str | Path) -> TargetFile:
    """Read and check a target file. Raises :class:`TargetError` naming the file and what is wrong with it."""
    try:
        text = Path(path).read_text(encoding="utf-8")
        data = json.loads(text, object_pairs_hook=_without_repeats)
        return _decode(data)
    except OSError as error:
        hint = "mlirstitch calibrate writes target files"
        raise TargetError(f"cannot read the target file {path}: {error.strerror or error}", hint=hint) from error
    except (ValueError, RecursionError) as error:
        raise TargetError(f"target file {path} is not JSON: {error}") from error
    except TargetError as error:
        raise TargetError(f"target file {path}: {error.message}", hint=error.hint) from error


def target_from(chip: str, path: str) -> Target:
    """The chip of that name, with the constants of the target file at ``path``, if that is not "".

    Raises :class:`TargetError` for an unknown chip, a wrong file, or one that was made for another chip.
    """
    target = Target.parse(chip)
    if not path:
        return target
    found = read_target_file(path)
    check_chip(found, target.chip)
    return with_constants(target, found.constants)


def check_chip(found: TargetFile, chip: str) -> None:
    """Raise :class:`TargetError` unless a target file holds for the chip."""
    if _generation(found.chip) != _generation(chip):
        raise TargetError(
            f"the constants of the target file are those of {found.chip}, and the program is compiled for {chip}",
            hint=f"compile with --target {found.chip}, or calibrate for {chip}",
        )


def _generation(chip: str) -> str:
    """The chip without the letter that asks for instructions of one generation alone: the part is the same."""
    return chip.rstrip("af")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise TargetError(f"{name!r} is given twice")
        found[name] = value
    return found


def _decode(data: Any) -> TargetFile:
    if type(data) is not dict or data.get("format") != FORMAT:
        raise TargetError(f"is not a target file (format {FORMAT!r})", hint="mlirstitch calibrate writes target files")
    if data.get("version") != VERSION:
        raise TargetError(f"version {data.get('version')!r} is unknown, this compiler reads version {VERSION}")
    for name in data:
        if name not in _FIELDS:
            raise TargetError(f"unknown field {name!r}", hint=f"fields: {', '.join(sorted(_FIELDS))}")
    for name in _REQUIRED:
        if name not in data:
            raise TargetError(f"field {name!r} is missing")
    if type(data["chip"]) is not str:
        raise TargetError(f"chip is {data['chip']!r}, not the name of a chip")
    if type(data["constants"]) is not dict:
        raise TargetError("constants is not an object of numbers by name")
    check_constants(data["constants"])
    chip = Target.parse(data["chip"]).chip
    return TargetFile(chip, {name: float(value) for name, value in sorted(data["constants"].items())})
