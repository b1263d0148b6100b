"""Prefix scans and writes through indices, from eager PyTorch to the emulated device.

Functions of the same inputs are one program. The imported IR is judged by the reference, and the compiled program by
what it returns: both against eager, floats against float64.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from import_harness import assert_all_equal_eager, assert_equals_eager, assert_results_equal_eager

import mlirstitch
from mlirstitch.driver.import_torch import import_model
from mlirstitch.errors import ImportFailure

import torch  # isort: skip  after import_harness, which loads MLIR in the right order
import torch.nn.functional as F

from torch import Tensor  # isort: skip

NAN, INF = float("nan"), float("inf")
HALF = pytest.param(torch.bfloat16, marks=pytest.mark.slow)
Function = Callable[..., Any]

SPECIAL = torch.tensor([[1.0, NAN, 3.0, 2.0], [-INF, -INF, INF, 1.0], [2.0, 2.0, 1.0, 2.0], [-0.0, 0.0, -INF, NAN]])
ROWS = torch.tensor([0, 2, 2, 4, 0, 2])
"""Some rows named several times, some not at all."""


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def integers(low: int, high: int, *shape: int) -> Tensor:
    return torch.randint(low, high, shape, generator=torch.Generator().manual_seed(1))


def assert_compiled_equals_eager(table: Mapping[str, Function], *inputs: Tensor) -> None:
    def together(*values: Tensor) -> dict[str, Any]:
        return {name: function(*values) for name, function in table.items()}

    assert_results_equal_eager(together, inputs, mlirstitch.compile(together, inputs)(*inputs))


def reductions(function: Function, *names: str) -> dict[str, Function]:
    """``function`` with every reduction, the old value taken in and not."""
    return {
        f"{name}, include_self={own}": lambda *values, name=name, own=own: function(*values, name, include_self=own)
        for name in names
        for own in (True, False)
    }


def _scatter_reduce(dim: int) -> Function:
    return lambda x, i, s, *how, **own: x.scatter_reduce(dim, i, s, *how, **own)


REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")

SCANS: dict[str, Function] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumsum of the first dim": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(1),
    "logcumsumexp": lambda x: x.logcumsumexp(-1),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
    "a scan of a scan": lambda x: x.cumsum(1).cumsum(0),
    "its gradient": torch.func.grad(lambda x: (x.cumsum(1) * x).sum()),
}
INTEGER_SCANS: dict[str, Function] = {
    "cumsum": lambda x: x.cumsum(1),
    "cumsum in its own type": lambda x: x.cumsum(1, dtype=x.dtype),
    "cumprod": lambda x: x.cumprod(0),
    "cummax": lambda x: x.cummax(1),
    "cummin": lambda x: x.cummin(0),
}
ONE_DIM: dict[str, Function] = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "cummax": lambda x: x.cummax(0),
}

BY_ROW: dict[str, Function] = {
    "index_add": lambda x, i, s: x.index_add(0, i, s, alpha=2),
    "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    "index_fill": lambda x, i, s: x.index_fill(0, i - 5, 3.0),
    "index_put": lambda x, i, s: x.index_put((i - 5,), s),
    "index_put that accumulates": lambda x, i, s: x.index_put((i,), s, True),
    "indices of two dims": lambda x, i, s: x.index_put((i.reshape(2, 3),), s.reshape(2, 3, -1), True),
    "two indices": lambda x, i, s: x.index_put((i, i - 2), s[:, 0], True),
    "columns": lambda x, i, s: torch.ops.aten.index_put(x, [None, i % 3], x[:, :1]),
    "scatter_add of whole rows": lambda x, i, s: x.scatter_add(0, i[:, None].expand(-1, 3), s),
    "scatter of fewer columns": lambda x, i, s: x.scatter(0, i[:, None].expand(-1, 2), s),
    "put": lambda x, i, s: x.put(i, s[:, 0], True),
    "assignment": lambda x, i, s: torch.index_put(x, (i,), s[0]),
    "a value under a mask": lambda x, i, s: x.index_put((x > 0,), s[0, 0]),
    "masked_scatter": lambda x, i, s: x.masked_scatter(x > 0, s),
}
BY_ELEMENT: dict[str, Function] = {
    "scatter": lambda x, i, s: x.scatter(1, i, s),
    "scatter of a value": lambda x, i, s: x.scatter(1, i, 1.5),
    "scatter_add": lambda x, i, s: x.scatter_add(1, i, s),
    "scatter that multiplies": lambda x, i, s: x.scatter(1, i, s, reduce="multiply"),
    **reductions(_scatter_reduce(1), *REDUCTIONS),
}


def _look_up_gradient(**options: Any) -> Function:
    return lambda w, i, g: torch.func.grad(lambda table: (F.embedding(i, table, **options) * g).sum())(w)


GRADIENTS: dict[str, Function] = {
    "embedding": _look_up_gradient(),
    "embedding with padding": _look_up_gradient(padding_idx=2),
    "embedding by frequency": _look_up_gradient(scale_grad_by_freq=True),
    "index": lambda w, i, g: torch.func.grad(lambda table: (table[i - 7] * g).sum())(w),
    "gather": lambda w, i, g: torch.func.grad(lambda table: (table.gather(1, i % 3) * g.sum()).sum())(w),
}


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_scans_of_floats(dtype: torch.dtype) -> None:
    assert_compiled_equals_eager(SCANS, randn(5, 33, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_imported_scans_of_floats(dtype: torch.dtype) -> None:
    assert_all_equal_eager(SCANS, randn(5, 9, dtype=dtype))


def test_scans_over_nan_and_infinities() -> None:
    table = {
        name: function for name, function in SCANS.items() if "gradient" not in name and name != "a scan of a scan"
    }
    assert_compiled_equals_eager(table, SPECIAL)


def test_a_sum_of_negative_zeros_starts_at_zero() -> None:
    compiled = mlirstitch.compile(lambda x: x.cumsum(0), (torch.full((4,), -0.0),))
    assert not torch.signbit(compiled(torch.full((4,), -0.0))).any()


@pytest.mark.parametrize("dtype", [torch.int32, torch.uint8, torch.bool])
def test_scans_of_integers(dtype: torch.dtype) -> None:
    x = integers(0, 200, 6, 40).to(dtype) if dtype != torch.bool else integers(0, 2, 6, 40).bool()
    unknown = ["cumsum in its own type"] if dtype == torch.bool else []
    assert_compiled_equals_eager({name: f for name, f in INTEGER_SCANS.items() if name not in unknown}, x)


@pytest.mark.parametrize("size", [0, 1, 2])
def test_scans_of_no_one_and_two_elements(size: int) -> None:
    assert_compiled_equals_eager(ONE_DIM, randn(size))


def test_a_scan_without_dims_is_the_value() -> None:
    assert_all_equal_eager(ONE_DIM, torch.tensor(3.0))


def test_top_p_is_one_kernel() -> None:
    def keep(x: Tensor) -> Tensor:
        return torch.softmax(x, -1).cumsum(-1) <= 0.9

    x = randn(8, 100).sort(-1, descending=True).values
    compiled = mlirstitch.compile(keep, (x,))
    assert [cluster["template"] for cluster in compiled.report["clusters"]] == ["scan"]
    assert torch.equal(compiled(x), keep(x))


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_rows_through_indices(dtype: torch.dtype) -> None:
    assert_compiled_equals_eager(BY_ROW, randn(5, 3, dtype=dtype), ROWS, randn(6, 3, dtype=dtype, seed=1))


def test_elements_through_indices() -> None:
    assert_compiled_equals_eager(BY_ELEMENT, randn(3, 5), integers(0, 5, 3, 4), randn(3, 4, seed=1))


def test_rows_of_every_reduction() -> None:
    table = reductions(lambda x, i, s, *how, **own: x.index_reduce(0, i, s, *how, **own), *REDUCTIONS[1:])
    assert_all_equal_eager(table, randn(5, 3), ROWS, randn(6, 3, seed=1))
    whole = reductions(_scatter_reduce(0), *REDUCTIONS)
    assert_all_equal_eager(whole, integers(-9, 9, 5), ROWS, integers(-9, 9, 6))


def test_updates_of_nothing_and_of_everything() -> None:
    table: dict[str, Function] = {
        "index_add": lambda x, i, s: x.index_add(0, i, s),
        "index_copy": lambda x, i, s: x.index_copy(0, i, s),
    }
    assert_all_equal_eager(table, randn(5, 3), torch.zeros(0, dtype=torch.int64), randn(0, 3))
    assert_all_equal_eager(table, randn(5, 3), torch.tensor(3), randn(1, 3))


def test_gradients_of_look_ups() -> None:
    assert_compiled_equals_eager(GRADIENTS, randn(7, 3), integers(0, 7, 2, 3), randn(2, 3, 3, seed=1))


def test_the_gradient_of_an_embedding_is_one_kernel_without_a_product() -> None:
    inputs = (randn(50, 64), integers(0, 50, 64), randn(64, 64, seed=1))
    compiled = mlirstitch.compile(_look_up_gradient(), inputs)
    (cluster,) = compiled.report["clusters"]
    assert cluster["template"] == "scatter"


def test_indices_outside_are_dropped() -> None:
    compiled = mlirstitch.compile(lambda x, i, s: x.index_add(0, i, s), (randn(5, 3), ROWS, randn(6, 3)))
    x, s = randn(5, 3), randn(6, 3)
    got = compiled(x, torch.tensor([-1, 5, 1 << 62, -(1 << 62), 0, 4]), s)
    want = x.clone()
    want[0] += s[4]
    want[4] += s[5]
    torch.testing.assert_close(got, want)


def test_results_are_the_same_in_every_run() -> None:
    def step(x: Tensor, i: Tensor, s: Tensor) -> Tensor:
        return x.index_add(0, i, s).cumsum(0)

    inputs = (randn(20, 40), integers(0, 20, 300), randn(300, 40, seed=1))
    compiled = mlirstitch.compile(step, inputs)
    assert torch.equal(compiled(*inputs), compiled(*inputs))


def test_locations_of_scans_are_the_users_lines() -> None:
    def scanning(x: Tensor) -> Tensor:
        return x.cumsum(1)

    line = scanning.__code__.co_firstlineno + 1
    text = import_model(scanning, (randn(3, 4),)).mlir
    assert f'test_scans_and_scatters.py":{line}:' in text
    assert_equals_eager(scanning, randn(3, 4))


def test_several_values_under_a_mask_are_refused() -> None:
    with pytest.raises(ImportFailure, match=r"aten\.index_put") as caught:
        import_model(lambda x: torch.index_put(x, (x > 0,), x[0]), (randn(2, 3),))
    assert "mask" in (caught.value.hint or "")
