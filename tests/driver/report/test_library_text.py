"""What a library call stores and how its operands lie in memory, in words."""

from __future__ import annotations

from typing import Any

import pytest

from mlirstitch.driver.report.library_text import epilogue_text, operand_texts, order_text
from mlirstitch.runtime.program import Epilogue, LibraryCall, Operand

WHOLE = Operand(0, "read", (4, 8), "float32")


def call(*operands: Operand, epilogue: Epilogue | None = None, **attributes: Any) -> LibraryCall:
    return LibraryCall("matmul", operands, attributes, epilogue=epilogue)


@pytest.mark.parametrize(
    ("epilogue", "text"),
    [
        (None, ""),
        (Epilogue(1.0, 0.0, "none"), ""),
        (Epilogue(0.125, 0.0, "none"), "0.125 * product"),
        (Epilogue(1.0, 1.0, "none", addend=2), "product + addend"),
        (Epilogue(2.0, 0.5, "relu", addend=2, bias=3), "relu(2 * product + 0.5 * addend + bias)"),
        (Epilogue(1.0, 0.0, "gelu_tanh"), "gelu_tanh(product)"),
    ],
)
def test_epilogues_read_as_what_is_stored(epilogue: Epilogue | None, text: str) -> None:
    assert epilogue_text(call(WHOLE, WHOLE, WHOLE, epilogue=epilogue)) == text


@pytest.mark.parametrize(
    ("maps", "text"),
    [
        ([[0, 2], [1, 2], [0, 1]], "[m, k] x [n, k] -> [m, n]"),
        ([[0, 2, 1, 4], [0, 3, 1, 4], [0, 1, 2, 3]], "[b0, m, b1, k] x [b0, n, b1, k] -> [b0, b1, m, n]"),
        ([[0, 2, 3], [3, 1], [0, 2, 1]], "[m0, m1, k] x [k, n] -> [m0, m1, n]"),
        ([[1, 2], [0, 2, 3], [0, 1, 3]], "[m, k] x [n0, k, n1] -> [n0, m, n1]"),
    ],
)
def test_dims_are_named_by_what_they_are(maps: list[list[int]], text: str) -> None:
    assert order_text(call(WHOLE, WHOLE, WHOLE, indexing_maps=maps)) == text


def test_without_maps_there_is_nothing_to_say() -> None:
    assert order_text(call(WHOLE, WHOLE, WHOLE)) == ""


def test_operands_that_are_parts_of_buffers_are_told() -> None:
    left = Operand(0, "read", (4, 8), "float32", strides=(24, 1), offset=8)
    addend = Operand(2, "read", (4, 2), "float32", strides=(2, 1))
    result = Operand(3, "write", (4, 2), "float32", strides=(1, 4))
    made = call(left, WHOLE, addend, result, epilogue=Epilogue(1.0, 1.0, "none", addend=2))
    assert list(operand_texts(made)) == [
        ("left", "4 x 8 by strides of 24, 1 elements from element 8"),
        ("addend", "4 x 2 by strides of 2, 1 elements"),
        ("result", "4 x 2 by strides of 1, 4 elements"),
    ]
