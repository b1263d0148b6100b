"""Non-negative least squares."""

from __future__ import annotations

from typing import Any

import numpy as np

Matrix = np.ndarray[Any, np.dtype[np.float64]]

_STEPS_FOR_EACH = 10
"""Steps for each unknown; the algorithm needs about one."""


def nnls(matrix: Matrix, right: Matrix) -> Matrix:
    """The ``x >= 0`` with the least ``|matrix x - right|``.

    Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23, algorithm NNLS: unknowns enter the set of
    those above zero one by one, the steepest first, and leave it where a step would take them below.

    Args:
        matrix: float64 ``[m, n]``.
        right: float64 ``[m]``.

    Returns:
        float64 ``[n]``.

    Raises:
        ValueError: shapes that do not fit, or values that are not finite.
    """
    rows, columns = matrix.shape
    if right.shape != (rows,):
        raise ValueError(f"{right.shape} right-hand sides for {rows} equations")
    if not (np.isfinite(matrix).all() and np.isfinite(right).all()):
        raise ValueError("values that are not finite")
    # Columns of one length, so that the order in which unknowns enter does not depend on their units.
    lengths = np.linalg.norm(matrix, axis=0)
    scaled = matrix / np.where(lengths > 0, lengths, 1.0)
    tolerance = 10 * max(rows, columns) * np.finfo(np.float64).eps * max(1.0, float(np.linalg.norm(right)))
    found = np.zeros(columns)
    positive = np.zeros(columns, bool)
    for _ in range(_STEPS_FOR_EACH * columns):
        gradient = scaled.T @ (right - scaled @ found)
        waiting = np.where(positive, -np.inf, gradient)
        entering = int(np.argmax(waiting)) if columns else 0
        if not columns or waiting[entering] <= tolerance:
            break
        positive[entering] = True
        found = _solve_inside(scaled, right, found, positive)
    return found / np.where(lengths > 0, lengths, 1.0)


def _solve_inside(scaled: Matrix, right: Matrix, found: Matrix, positive: np.ndarray[Any, Any]) -> Matrix:
    """Least squares over the ``positive`` unknowns; those that would leave the region are taken out of the set."""
    while True:
        wanted = np.zeros_like(found)
        wanted[positive] = np.linalg.lstsq(scaled[:, positive], right, rcond=None)[0]
        outside = positive & (wanted <= 0)
        if not outside.any():
            return wanted
        share = np.min(found[outside] / (found[outside] - wanted[outside]), initial=1.0)
        found = found + share * (wanted - found)
        positive &= found > np.finfo(np.float64).eps
        found = np.where(positive, found, 0.0)
