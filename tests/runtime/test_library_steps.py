"""Library steps with strides and epilogues: what the validator refuses, and what numpy computes, against float64."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest
from sample_bundles import buffer, program

from mlirstitch.errors import BundleError
from mlirstitch.runtime.library import NumpyLibrary
from mlirstitch.runtime.program import Activation, Epilogue, LibraryCall, Operand, Program
from mlirstitch.runtime.program_checks import check_program

SHAPES = {"x": (6, 8), "w": (5, 8), "c": (6, 5), "b": (5,), "y": (6, 5)}


def linear(**changes) -> LibraryCall:
    """``gelu(2 x w^T - c + b)`` of x 6x8, w 5x8."""
    names = list(SHAPES)
    operands = [Operand(k, "write" if n == "y" else "read", SHAPES[n], "float32") for k, n in enumerate(names)]
    call = LibraryCall(
        "matmul",
        tuple(operands),
        {"indexing_maps": [[0, 2], [1, 2], [0, 1]]},
        "cluster",
        epilogue=Epilogue(2.0, -1.0, "gelu_tanh", 2, 3),
    )
    return dataclasses.replace(call, **changes)


def with_operand(position: int, **changes) -> LibraryCall:
    call = linear()
    operands = list(call.operands)
    operands[position] = dataclasses.replace(operands[position], **changes)
    return dataclasses.replace(call, operands=tuple(operands))


def with_epilogue(**changes) -> LibraryCall:
    call = linear()
    assert call.epilogue is not None
    return dataclasses.replace(call, epilogue=dataclasses.replace(call.epilogue, **changes))


def holding(call: LibraryCall, shapes: list[tuple[int, ...]]) -> Program:
    names = [f"t{k}" for k in range(len(shapes))]
    buffers = [
        buffer(k, "output" if k == len(shapes) - 1 else "weight", names[k], shape, "float32")
        for k, shape in enumerate(shapes)
    ]
    return program(buffers, [call])


def test_a_sound_step_passes() -> None:
    check_program(holding(linear(), list(SHAPES.values())), {})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (with_operand(0, strides=(9, 1)), "reach element 52 of buffer 0, which has 48"),
        (with_operand(0, offset=1), "reach element 48 of buffer 0"),
        (with_operand(0, strides=(4, 1)), "leading dimension 4 is less than 8"),
        (with_operand(0, strides=(0, 1)), "broadcast"),
        (with_operand(0, strides=(1,)), "1 strides for 2 dims"),
        (with_operand(4, strides=(1, 1)), "leading dimension 1 is less than 5|overlap"),
        (with_operand(4, shape=(5, 5), strides=(5, 1)), "does not fit buffer 4"),
        (with_operand(2, shape=(5, 6)), "addend has shape"),
        (with_operand(2, strides=(1, 6)), "transposed to the result"),
        (with_operand(4, strides=(1, 6)), "transposed to the result"),
        (with_operand(3, shape=(4,), strides=(1,)), "the bias must be 5"),
        (with_operand(2, buffer=4), "does not fit|lies in buffer 4|not been written|nothing has written"),
        (with_epilogue(bias=2), "names the operands"),
        (with_epilogue(addend=None), "names the operands"),
        (with_epilogue(beta=0.0), "beta is 0.0"),
        (linear(routine="matmul_transpose_b", attributes={}), "has no epilogue"),
    ],
)
def test_a_step_outside_the_table_is_refused(call: LibraryCall, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        check_program(holding(call, list(SHAPES.values())), {})


def test_an_operand_that_the_step_writes_is_refused() -> None:
    shapes = [(5, 5), (5, 5)]
    operands = (
        Operand(1, "read", (5, 5), "float32", (5, 1)),
        Operand(0, "read", (5, 5), "float32"),
        Operand(1, "write", (5, 5), "float32"),
    )
    call = LibraryCall("matmul", operands, {"indexing_maps": [[0, 2], [2, 1], [0, 1]]}, "cluster")
    with pytest.raises(BundleError, match="operand 0 lies in buffer 1, which the call writes"):
        check_program(holding(call, shapes), {})


def test_a_batch_of_pointers_has_no_bias() -> None:
    call = heads(Epilogue(1.0, 0.0, "none", None, 2))
    assert re.search("batch of pointers has no bias", NumpyLibrary().refuses(call) or "")


def heads(epilogue: Epilogue | None = None) -> LibraryCall:
    """q k^T of 2x3 heads addressed in one 2x4x(3x5) tensor each; the result as 2x4x3x4."""
    read = [Operand(k, "read", (2, 4, 3, 5), "float32", (60, 15, 5, 1)) for k in range(2)]
    bias = [Operand(2, "read", (4,), "float32")] if epilogue else []
    result = Operand(2 + len(bias), "write", (2, 4, 3, 4), "float32", (48, 12, 4, 1))
    maps = [[0, 2, 1, 4], [0, 3, 1, 4], [0, 2, 1, 3]]
    return LibraryCall("batch_matmul", (*read, *bias, result), {"indexing_maps": maps}, "cluster", epilogue=epilogue)


def run(call: LibraryCall, arrays: list[np.ndarray]) -> np.ndarray:
    library = NumpyLibrary()
    assert library.refuses(call) is None
    memory = [np.ascontiguousarray(array, np.float32).reshape(-1).view(np.uint8).copy() for array in arrays]
    library.run(call, memory)
    return memory[-1].view(np.float32).reshape(arrays[-1].shape)


def test_heads_are_addressed_in_place() -> None:
    random = np.random.default_rng(0)
    q, k = random.standard_normal((2, 2, 4, 3, 5)).astype(np.float32)
    found = run(heads(), [q, k, np.zeros((2, 4, 3, 4))])
    wanted = np.einsum("bmhk,bnhk->bmhn", q.astype(np.float64), k.astype(np.float64))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["none", "relu", "gelu_tanh"])
@pytest.mark.parametrize("transposed", [False, True])
def test_an_epilogue_computes_what_its_definition_says(activation: Activation, transposed: bool) -> None:
    random = np.random.default_rng(1)
    x, w, c = (random.standard_normal(SHAPES[n]).astype(np.float32) for n in "xwc")
    b = random.standard_normal(6 if transposed else 5).astype(np.float32)
    call = with_epilogue(activation=activation)
    wide = 2 * x.astype(np.float64) @ w.T.astype(np.float64) - c
    total = wide + (b[:, None] if transposed else b)
    if transposed:
        call = dataclasses.replace(
            call,
            operands=(
                *call.operands[:2],
                dataclasses.replace(call.operands[2], strides=(1, 6)),
                dataclasses.replace(call.operands[3], shape=(6,)),
                dataclasses.replace(call.operands[4], strides=(1, 6)),
            ),
        )
        c = np.ascontiguousarray(c.T)
    found = run(call, [x, w, c, b, np.zeros((5, 6) if transposed else (6, 5))])
    wanted = {
        "none": total,
        "relu": np.maximum(total, 0),
        "gelu_tanh": 0.5 * total * (1 + np.tanh(math.sqrt(2 / math.pi) * (total + 0.044715 * total**3))),
    }[activation]
    np.testing.assert_allclose(found.T if transposed else found, wanted, rtol=1e-5, atol=1e-5)
