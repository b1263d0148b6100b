"""The table of faults of the importer (docs/import.md) from eager PyTorch through PTX and the emulated device.

`test_import_faults.py` judges the imported IR; here the rest of the compiler must keep the answers as well. All rows of
one type are one program, compiled and run once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from import_harness import assert_results_equal_eager

import mlirstitch
from mlirstitch.driver.compiled import Compiled

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor  # isort: skip

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAN, INF = float("nan"), float("inf")
LABELS = torch.tensor([1, 3, 0, 7])
BIG = torch.tensor([2**62 + 1, -(2**62) - 1, 2**53 + 1, -(2**53) - 1, 7, -7, 2**63 - 1, -(2**63)])
BYTES = torch.tensor([255, 200, 7, 0], dtype=torch.uint8)


@dataclass(frozen=True)
class Row:
    """A function, its inputs (floats take the type under test), and the answer where the table gives one number."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]
    answer: float | None = None


def _randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


SPECIAL = torch.tensor([[NAN, 1.0, -INF, 0.5], [2.0, NAN, NAN, 7.0], [INF, -7.0, -0.0, 0.0], [1.0, 4.0, 4.0, -2.0]])
ONES = torch.ones(4, 4)


def _gradient(loss: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Any]:
    return lambda x, y: torch.func.grad_and_value(loss)(x, y)


FLOAT_ROWS = {
    "sum of 4096 ones": Row(lambda x: x.sum(), (torch.ones(4096),), 4096.0),
    "mean of 4096 hundreds": Row(lambda x: x.mean(), (torch.full((4096,), 100.0),), 100.0),
    "RMS norm of rows of 64": Row(lambda x: F.rms_norm(x, (64,)), (torch.full((2, 64), 300.0),), 1.0),
    "norm": Row(lambda x: x.norm(), (torch.full((4096,), 45.25),), 2896.0),
    "clamp of NaN": Row(lambda x: x.clamp(-1, 1), (SPECIAL,)),
    "clamp_min of NaN": Row(lambda x: x.clamp_min(0.5), (SPECIAL,)),
    "clamp_max of NaN": Row(lambda x: x.clamp_max(0.5), (SPECIAL,)),
    "hardsigmoid of NaN": Row(F.hardsigmoid, (SPECIAL,)),
    "hardtanh of NaN": Row(F.hardtanh, (SPECIAL,)),
    "relu6 of NaN": Row(F.relu6, (SPECIAL,)),
    "maximum(NaN, 1)": Row(lambda x, y: torch.maximum(x, y), (SPECIAL, ONES)),
    "maximum(1, NaN)": Row(lambda x, y: torch.maximum(y, x), (SPECIAL, ONES)),
    "minimum(NaN, 1)": Row(lambda x, y: torch.minimum(x, y), (SPECIAL, ONES)),
    "minimum(1, NaN)": Row(lambda x, y: torch.minimum(y, x), (SPECIAL, ONES)),
    "argmax with NaN": Row(lambda x: (x.argmax(-1), x.argmax(0), x.argmax()), (SPECIAL,)),
    "argmin with NaN": Row(lambda x: (x.argmin(-1), x.argmin(0), x.argmin()), (SPECIAL,)),
    "max(dim) with NaN": Row(lambda x: (*x.max(-1), *x.max(0)), (SPECIAL,)),
    "min(dim) with NaN": Row(lambda x: (*x.min(-1), *x.min(0)), (SPECIAL,)),
    "reciprocal of 0 and NaN": Row(lambda x: (x.reciprocal(), 1 / x), (SPECIAL,)),
    "batch norm": Row(lambda x: F.batch_norm(x, None, None, training=True), (_randn(8, 3, 5),)),
    "batch norm in inference": Row(
        lambda x, mean, variance: F.batch_norm(x, mean, variance), (_randn(8, 3), _randn(3), _randn(3).abs())
    ),
    "gather": Row(lambda x, i: x.gather(1, i[:, None]), (_randn(4, 8), LABELS)),
    "embedding and its gradient": Row(_gradient(lambda w, i: F.embedding(i, w).square().sum()), (_randn(8, 5), LABELS)),
    "cross-entropy and its gradient": Row(_gradient(F.cross_entropy), (_randn(4, 8), LABELS)),
    "broadcast": Row(lambda x, y: x.expand(4, 8) * y, (_randn(1, 8), _randn(4, 1))),
    "GELU (tanh) at -1.5": Row(lambda x: F.gelu(x, approximate="tanh"), (torch.tensor([-1.5]),), -0.100428),
    "variance of nothing": Row(lambda x: x.var(), (torch.ones(0),), NAN),
    "layer norm": Row(lambda x: F.layer_norm(x, (77,)), (_randn(4, 77),)),
    "variance": Row(lambda x: x.var(-1), (_randn(4, 77),)),
    "group norm": Row(lambda x: F.group_norm(x, 2), (_randn(2, 4, 7),)),
    "softmax": Row(lambda x: x.softmax(-1), (torch.cat([SPECIAL, torch.full((1, 4), -INF), _randn(3, 4)]),)),
    "amax": Row(lambda x: (x.amax(-1), x.amin(0)), (SPECIAL,)),
    "logsumexp": Row(lambda x: x.logsumexp(-1), (torch.cat([SPECIAL, torch.full((1, 4), -INF)]),)),
}
INTEGER_ROWS = {
    "int64 // 3 beyond 2^53": Row(lambda x: (x // 3, x // -3, x % 3), (BIG,)),
    "int64 // int64 beyond 2^53": Row(lambda x, y: x // y, (BIG, BIG.flip(0))),
    "uint8 sum past 127": Row(lambda x: x.sum(), (BYTES,), 462.0),
    "uint8 // 3": Row(lambda x: (x // 3, x % 3), (BYTES,)),
    "uint8 extrema and comparison": Row(lambda x: (x.amax(), x.argmax(), x > 127), (BYTES,)),
}


def _in_type(rows: dict[str, Row], dtype: torch.dtype) -> dict[str, tuple[Tensor, ...]]:
    return {name: tuple(x.to(dtype) if x.is_floating_point() else x for x in row.inputs) for name, row in rows.items()}


def _together(rows: dict[str, Row], inputs: dict[str, tuple[Tensor, ...]]) -> tuple[Compiled, dict[str, Any]]:
    """All rows as one compiled program, and what it returns."""
    compiled = mlirstitch.compile(
        lambda values: {name: row.function(*values[name]) for name, row in rows.items()}, (inputs,)
    )
    return compiled, compiled(inputs)


@pytest.fixture(scope="module", params=DTYPES)
def floats(request: pytest.FixtureRequest) -> tuple[Compiled, dict[str, Any], dict[str, tuple[Tensor, ...]]]:
    inputs = _in_type(FLOAT_ROWS, DTYPES[request.param])
    return *_together(FLOAT_ROWS, inputs), inputs


@pytest.fixture(scope="module")
def integers() -> dict[str, Any]:
    return _together(INTEGER_ROWS, _in_type(INTEGER_ROWS, torch.float32))[1]


def _judge(name: str, row: Row, inputs: tuple[Tensor, ...], result: Any) -> None:
    assert_results_equal_eager(row.function, inputs, result)
    if row.answer is not None:
        tolerance = 1e-5 if result.dtype in (torch.float32, torch.int64) else 4e-3
        torch.testing.assert_close(
            result.double(), torch.full_like(result, row.answer).double(), rtol=tolerance, atol=0, equal_nan=True
        )


@pytest.mark.parametrize("name", FLOAT_ROWS)
def test_floats_end_to_end(floats, name: str) -> None:
    _, results, inputs = floats
    _judge(name, FLOAT_ROWS[name], inputs[name], results[name])


@pytest.mark.parametrize("name", INTEGER_ROWS)
def test_integers_end_to_end(integers: dict[str, Any], name: str) -> None:
    row = INTEGER_ROWS[name]
    _judge(name, row, row.inputs, integers[name])


def test_no_kernel_computes_in_float64(floats) -> None:
    compiled = floats[0]
    assert ".f64" not in compiled.ptx
