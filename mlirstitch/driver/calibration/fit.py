"""Constants of a chip from measured kernels, by non-negative least squares.

The latency evaluator is piecewise linear in launch cost, issue costs, waiting times and reciprocal bandwidths. So the
fit linearises it where it stands, solves for the constants with the least sum of squared relative errors, and repeats
(Gauss-Newton; each step is an NNLS problem). A constant that decides little of every kernel's time, or only together
with others, is not fitted: it keeps its value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mlirstitch.driver.calibration.measure import Measurement
from mlirstitch.driver.calibration.nnls import nnls
from mlirstitch.errors import MlirstitchError
from mlirstitch.passes.stitching.cost import latency_seconds
from mlirstitch.target import Target
from mlirstitch.target_file import RANGES, constants_of, with_constants

Vector = np.ndarray[Any, np.dtype[np.float64]]

FITTED = tuple(name for name in RANGES if name not in ("clock", "matrix_flops", "cycles.store_shared"))
"""Constants that a fit may change, and those tied to them with them.

Of issue costs and clock only the ratio shows, and no kernel of ours uses the matrix units.
"""

RECIPROCAL = frozenset(("bandwidth", "l2_bandwidth"))
"""Constants of which time is a multiple of the reciprocal."""

TIED: Mapping[str, str] = {"cycles.store_shared": "cycles.load_shared"}
"""Constants that change by the same factor as another: a reduction stores to shared memory as often as it loads."""

DECIDES = 0.01
"""Least share of the time of some kernel that a constant must decide to be fitted."""

FLOOR = 1e-3
"""A constant (of those in :data:`RECIPROCAL`, its reciprocal) is at least this part of its value at the start."""

MOST_ROUNDS = 4
"""Fits, each with the constants that decide something where the one before ended."""

MOST_STEPS = 40
MOST_HALVINGS = 8
CONVERGED = 1e-9
"""Relative change of all constants from which on the fit is done."""

_DIFFERENCE = 1e-6
"""Relative change of a constant by which slopes are taken: the evaluator is linear but for its kinks."""


@dataclass(frozen=True)
class Fit:
    """What came out.

    Attributes:
        target: the chip with the constants that fit best.
        fitted: names of the constants that the kernels determine, those tied to one among them.
        predicted: seconds of every measurement by the fit.
        steps: of the iteration.
    """

    target: Target
    fitted: tuple[str, ...]
    predicted: tuple[float, ...]
    steps: int


def fit(measurements: Sequence[Measurement], table: Target) -> Fit:
    """Fit the constants of a chip, starting with those of ``table``.

    Raises:
        MlirstitchError: a time that is no number above zero, or too few kernels.
    """
    for measured in measurements:
        if not 0 < measured.seconds < float("inf"):
            raise MlirstitchError(f"kernel {measured.name!r} took {measured.seconds} seconds")
    names: tuple[str, ...] = ()
    target, steps = table, 0
    for _ in range(MOST_ROUNDS):
        problem = _Problem(measurements, target)
        if not problem.names:
            raise MlirstitchError("the measured kernels determine no constant", hint="measure more kernels")
        if problem.names == names:
            break
        names = problem.names
        x, taken = _descend(problem)
        target, steps = problem.target(x), steps + taken
    fitted = tuple(name for name in RANGES if TIED.get(name, name) in names)
    predicted = tuple(latency_seconds(measured.figures, target) for measured in measurements)
    return Fit(target, fitted, predicted, steps)


class _Problem:
    """Relative errors of all kernels as a function of the fitted constants, in units of their values at the start."""

    def __init__(self, measurements: Sequence[Measurement], start: Target) -> None:
        self.measurements = measurements
        self.start = start
        self._values = constants_of(start)
        self.names: tuple[str, ...] = FITTED
        self.names = self._determined()

    def target(self, x: Vector) -> Target:
        """The chip at a point."""
        return with_constants(self.start, self._constants(x))

    def _constants(self, x: Vector) -> Mapping[str, float]:
        found: dict[str, float] = {}
        factors = dict(zip(self.names, x, strict=True))
        factors.update({name: factors[other] for name, other in TIED.items() if other in factors})
        for name, factor in factors.items():
            value = self._values[name] / factor if name in RECIPROCAL else self._values[name] * factor
            found[name] = min(RANGES[name].high, max(RANGES[name].low, float(value)))
        return found

    def relative(self, x: Vector) -> Vector:
        """Predicted over measured seconds of every kernel."""
        target = self.target(x)
        return np.array([latency_seconds(m.figures, target) / m.seconds for m in self.measurements])

    def slopes(self, x: Vector) -> Vector:
        """Derivatives of :meth:`relative`, ``[kernels, constants]``."""
        columns = []
        for number in range(len(x)):
            step = _DIFFERENCE * max(x[number], FLOOR)
            low, high = x.copy(), x.copy()
            low[number] -= step / 2
            high[number] += step / 2
            columns.append((self.relative(high) - self.relative(low)) / step)
        return np.stack(columns, axis=1)

    def _determined(self) -> tuple[str, ...]:
        """Names of the constants that decide enough of some kernel's time, and are not tied to others."""
        start = np.ones(len(self.names))
        if not self.measurements:
            return ()
        shares = self.slopes(start) / self.relative(start)[:, None]
        kept: list[int] = []
        for number in np.argsort(-shares.max(axis=0), kind="stable"):
            if shares[:, number].max() < DECIDES:
                break
            if _apart(shares[:, [*kept, number]]) >= DECIDES:
                kept.append(int(number))
        return tuple(self.names[number] for number in sorted(kept))


def _apart(columns: Vector) -> float:
    """Length of what is left of the last column when the others explain what they can, largest entry at most."""
    others, last = columns[:, :-1], columns[:, -1]
    if others.shape[1]:
        last = last - others @ np.linalg.lstsq(others, last, rcond=None)[0]
    return float(np.abs(last).max())


def _descend(problem: _Problem) -> tuple[Vector, int]:
    """Gauss-Newton from the table on; a step that makes errors larger is halved."""
    x = np.ones(len(problem.names))
    error = _error(problem.relative(x))
    for step in range(1, MOST_STEPS + 1):
        slopes = problem.slopes(x)
        right = 1 - problem.relative(x) + slopes @ (x - FLOOR)
        change = FLOOR + nnls(slopes, right) - x
        for _ in range(MOST_HALVINGS):
            found = _error(problem.relative(x + change))
            if found <= error:
                break
            change = change / 2
        else:
            return x, step
        x, error = x + change, found
        if np.abs(change / x).max() < CONVERGED:
            return x, step
    return x, MOST_STEPS


def _error(relative: Vector) -> float:
    return float(np.square(relative - 1).sum())
