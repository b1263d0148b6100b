"""``mlirstitch calibrate``: measure a bounded set of kernels, fit the constants of the chip, write a target file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlirstitch.lowering  # registers the kernel templates
from mlirstitch.driver.calibration.fit import FITTED, TIED, Fit, fit
from mlirstitch.driver.calibration.measure import Measurement, Meter, ModelMeter, measure, open_meter
from mlirstitch.driver.calibration.probes import probes
from mlirstitch.driver.console import bar, progress
from mlirstitch.errors import MlirstitchError
from mlirstitch.target import Target
from mlirstitch.target_file import FORMAT, RANGES, VERSION, constants_of, with_constants

START = 0.75
"""On the emulated device, whose constants are known, the fit starts at this part of each: it has to find them."""

_DIGITS = 6
"""Of what is written: more than any measurement has, few enough that equal fits are equal text."""


@dataclass(frozen=True)
class Calibration:
    """What was measured on a device, and the constants that fit it best.

    Attributes:
        device: its name.
        table: the chip by ``mlirstitch/target.py``.
        measurements: of all kernels, in order.
        fit: the result.
    """

    device: str
    table: Target
    measurements: tuple[Measurement, ...]
    fit: Fit

    @property
    def errors(self) -> tuple[float, ...]:
        """Of every kernel: fitted over measured seconds, less 1."""
        pairs = zip(self.fit.predicted, self.measurements, strict=True)
        return tuple(predicted / measured.seconds - 1 for predicted, measured in pairs)

    def to_json(self) -> dict[str, Any]:
        """The target file (docs/calibration.md)."""
        worst = max(range(len(self.errors)), key=lambda number: abs(self.errors[number]))
        constants = constants_of(self.fit.target)
        return {
            "format": FORMAT,
            "version": VERSION,
            "chip": self.table.chip,
            "device": self.device,
            "producer": {"name": "mlirstitch", "version": mlirstitch.__version__},
            "constants": {name: _rounded(constants[name]) for name in self.fit.fitted},
            "kept": [name for name in RANGES if name not in self.fit.fitted],
            "fit": {
                "kernels": len(self.measurements),
                "steps": self.fit.steps,
                "rms_error": _rounded(math.sqrt(math.fsum(error**2 for error in self.errors) / len(self.errors))),
                "largest_error": {"kernel": self.measurements[worst].name, "error": _rounded(self.errors[worst])},
            },
            "measured": [_kernel(*entry) for entry in zip(self.measurements, self.fit.predicted, strict=True)],
        }

    def lines(self) -> Iterator[str]:
        """For a person: every constant in the table and as measured, and how well they fit."""
        table, found = constants_of(self.table), constants_of(self.fit.target)
        width = max(map(len, RANGES))
        yield f"{'constant':<{width}}  {'table':>10}  {'measured':>10}"
        for name, allowed in RANGES.items():
            shown = f"{found[name]:>10.4g}" if name in self.fit.fitted else f"{'kept':>10}"
            yield f"{name:<{width}}  {table[name]:>10.4g}  {shown}  {allowed.unit}"
        result = self.to_json()["fit"]
        worst = result["largest_error"]
        yield (
            f"{result['kernels']} kernels on {self.device}: root mean square error {result['rms_error']:.2%}, "
            f"largest {worst['error']:+.2%} ({worst['kernel']})"
        )


def calibrate(table: Target, meter: Meter, on_kernel: Callable[[int, int, str], None]) -> Calibration:
    """Measure all kernels and fit the constants of a chip.

    ``on_kernel`` is called with number, how many there are, and name before each. Raises MlirstitchError if a kernel
    does not compile or run, or a time is none.
    """
    found = probes(table.chip)
    measurements: list[Measurement] = []
    for number, probe in enumerate(found):
        on_kernel(number, len(found), probe.name)
        measurements.append(measure(probe, table, meter))
    start = displaced(table, START) if isinstance(meter, ModelMeter) else table
    return Calibration(meter.name, table, tuple(measurements), fit(measurements, start))


def displaced(target: Target, factor: float) -> Target:
    """The chip with all constants that a fit may change multiplied by ``factor``."""
    values = constants_of(target)
    return with_constants(target, {name: values[name] * factor for name in (*FITTED, *TIED)})


def calibrate_to_file(chip: str, device: str, output: str) -> list[str]:
    """Calibrate, write the target file, and return lines for stdout.

    Raises TargetError for an unknown chip, LaunchError for a device that is not there, and MlirstitchError as
    :func:`calibrate` does, or if the file cannot be written.
    """
    table = Target.parse(chip)
    meter = open_meter(device, table)
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise MlirstitchError(f"cannot write {path}: there is no folder {path.absolute().parent}")
    with progress(f"calibrating {table.chip} on {meter.name}") as show:
        found = calibrate(table, meter, lambda number, count, name: show(f"{bar(number, count)} {name}"))
    try:
        path.write_text(json.dumps(found.to_json(), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise MlirstitchError(f"cannot write {path}: {error.strerror or error}") from error
    return list(found.lines())


def _kernel(measured: Measurement, predicted: float) -> dict[str, Any]:
    figures = measured.figures
    return {
        "kernel": measured.name,
        "blocks": figures.blocks,
        "threads": figures.threads,
        "instructions": {name: round(count) for name, count in sorted(figures.instructions.items())},
        "sectors": round(figures.sectors),
        "seconds": _rounded(measured.seconds),
        "fitted_seconds": _rounded(predicted),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
