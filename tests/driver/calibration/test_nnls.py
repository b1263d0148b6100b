"""Non-negative least squares: what comes out fulfils the conditions of a minimum, and nothing is below zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mlirstitch.driver.calibration.nnls import Matrix, nnls


def test_a_solution_without_negative_parts_is_the_ordinary_one() -> None:
    matrix = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]])
    np.testing.assert_allclose(nnls(matrix, np.array([2.0, 5.0, 3.0])), [2.0, 3.0], rtol=1e-12)


def test_an_unknown_that_would_be_negative_is_zero_and_the_others_make_up_for_it() -> None:
    matrix, right = np.array([[1.0, 1.0], [1.0, 0.0]]), np.array([1.0, 2.0])
    np.testing.assert_allclose(np.linalg.solve(matrix, right), [2.0, -1.0])
    np.testing.assert_allclose(nnls(matrix, right), [1.5, 0.0])


def test_units_of_the_unknowns_do_not_matter() -> None:
    random = np.random.default_rng(1)
    matrix, wanted = random.random((8, 4)), np.array([1.0, 0.0, 2.0, 3.0])
    scale = np.array([1e-12, 1e9, 1.0, 1e-3])
    np.testing.assert_allclose(nnls(matrix * scale, matrix @ wanted) * scale, wanted, atol=1e-9)


def test_a_column_of_zeros_has_no_part() -> None:
    np.testing.assert_allclose(nnls(np.array([[1.0, 0.0], [2.0, 0.0]]), np.array([1.0, 2.0])), [1.0, 0.0])


def test_no_unknowns_are_no_solution() -> None:
    assert nnls(np.zeros((3, 0)), np.ones(3)).shape == (0,)


@pytest.mark.parametrize(
    ("matrix", "right", "message"),
    [(np.ones((2, 2)), np.ones(3), "right-hand sides"), (np.full((2, 2), np.nan), np.ones(2), "not finite")],
)
def test_what_makes_no_sense_is_refused(matrix: Matrix, right: Matrix, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nnls(matrix, right)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 12), st.integers(1, 8), st.booleans())
def test_the_gradient_is_zero_inside_and_points_outward_at_the_bound(
    seed: int, rows: int, columns: int, duplicate: bool
) -> None:
    random = np.random.default_rng(seed)
    matrix, right = random.standard_normal((rows, columns)), random.standard_normal(rows)
    if duplicate:
        matrix[:, -1] = matrix[:, 0]
    x = nnls(matrix, right)
    gradient = matrix.T @ (right - matrix @ x)
    assert (x >= 0).all()
    assert gradient.max() <= 1e-8
    assert np.abs(gradient[x > 0]).max(initial=0.0) <= 1e-8
