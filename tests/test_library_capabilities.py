"""The table of library routines: what it takes, and the nearest thing that it does not."""

from __future__ import annotations

import pytest

from mlirstitch.library_capabilities import (
    CAPABILITIES,
    Matrix,
    is_apart,
    runs_along_rows,
    why_no_epilogue,
    why_not_addressed,
    why_not_typed,
)


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64"])
def test_floats_are_multiplied_into_their_own_type(kind: str) -> None:
    assert why_not_typed("matmul", kind, kind) is None


@pytest.mark.parametrize(("kind", "taken"), [("float16", True), ("bfloat16", True), ("float64", False)])
def test_only_narrow_floats_are_multiplied_into_float32(kind: str, taken: bool) -> None:
    assert (why_not_typed("batch_matmul", kind, "float32") is None) == taken


def test_integers_are_not_in_the_table() -> None:
    assert why_not_typed("matmul", "int32", "int32") == "matmul does not multiply int32 into int32"


@pytest.mark.parametrize(
    ("matrix", "reason"),
    [
        (Matrix((4, 8), (8, 1)), None),
        (Matrix((4, 1), (8, 4)), None),
        (Matrix((4, 9), (8, 1)), None),
        (Matrix((4, 7), (8, 1)), "leading dimension 7 is less than 8"),
        (Matrix((4, 16), (8, 2)), "one of them must be 1"),
        (Matrix((4, 0), (8, 1)), "broadcast"),
        (Matrix((1, 0), (8, 3)), None),
        (Matrix((4, 5), (1, 0)), None),
    ],
)
def test_one_leading_dimension_addresses_a_matrix(matrix: Matrix, reason: str | None) -> None:
    answer = why_not_addressed(matrix)
    assert answer is None if reason is None else reason in (answer or "")


@pytest.mark.parametrize(
    ("dims", "apart"),
    [
        ([(2, 12), (3, 4), (4, 1)], True),
        ([(2, 11), (3, 4), (4, 1)], False),
        ([(2, 64), (3, 8), (4, 1)], True),
        ([(2, 0), (4, 1)], False),
        ([(1, 0), (4, 1)], True),
        ([(0, 0), (4, 0)], True),
    ],
)
def test_elements_that_share_memory_are_found(dims: list[tuple[int, int]], apart: bool) -> None:
    assert is_apart(dims) == apart


def test_a_bias_runs_along_adjacent_elements() -> None:
    assert runs_along_rows(Matrix((4, 8), (8, 1)))
    assert not runs_along_rows(Matrix((4, 1), (8, 4)))


@pytest.mark.parametrize("activation", ["", "relu", "gelu_tanh"])
def test_every_activation_of_the_table_is_taken(activation: str) -> None:
    assert why_no_epilogue("matmul", bias=True, addend=True, scale=True, activation=activation, batch_dims=1) is None


def test_gelu_by_the_error_function_is_no_activation() -> None:
    for routine in CAPABILITIES:
        assert why_no_epilogue(routine, bias=False, addend=False, scale=False, activation="gelu_erf", batch_dims=0)


@pytest.mark.parametrize(("bias", "activation"), [(True, ""), (False, "relu")])
def test_a_batch_of_pointers_only_scales_and_adds(bias: bool, activation: str) -> None:
    def asked(batch_dims: int) -> str | None:
        return why_no_epilogue(
            "batch_matmul", bias=bias, addend=True, scale=True, activation=activation, batch_dims=batch_dims
        )

    assert asked(1) is None
    assert "batch of pointers" in (asked(2) or "")
    assert why_no_epilogue("batch_matmul", bias=False, addend=True, scale=True, activation="", batch_dims=2) is None
