"""Models of one row at a time: which kernels their matrix-vector products share, and the numbers against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import mlirstitch
from mlirstitch.driver.bench.sequence_models import GRUCell
from mlirstitch.runtime import Executor, open_device
from mlirstitch.runtime.arrays import random_inputs

WIDTH = 40


class GRUStep(nn.Module):
    """One step of a gated recurrent unit."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = GRUCell(WIDTH, WIDTH)

    def forward(self, x: Tensor, state: Tensor) -> Tensor:
        return self.cell.step(self.cell.input_projection(x), state)


class LSTM(nn.Module):
    """Steps of a long short-term memory; the input is projected."""

    def __init__(self) -> None:
        super().__init__()
        self.projection = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, projected: Tensor) -> Tensor:
        state = cell = projected.new_zeros(1, WIDTH)
        for row in projected:
            i, f, g, o = (row + self.projection(state)).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            state = torch.sigmoid(o) * torch.tanh(cell)
        return state


class GatedMLP(nn.Module):
    """Two projections of one row, the product of one with the activation of the other, and a third projection."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.gate = (nn.Linear(WIDTH, 3 * WIDTH, bias=False) for _ in range(2))
        self.down = nn.Linear(3 * WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(functional.silu(self.gate(x)) * self.up(x))


class Query(nn.Module):
    """Attention of one query to stored keys and values ``[1, heads, length, width]``."""

    def forward(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return torch.softmax(q @ keys.transpose(-1, -2) / 4, -1) @ values


class Update(nn.Module):
    """A step of gradient descent for a linear layer that saw one row, and the gradient of its input."""

    def forward(self, x: Tensor, gradient: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        return weight - 0.1 * (gradient.t() @ x), gradient @ weight


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...], int]] = {
    "gru": (GRUStep, (_normal(1, WIDTH), _normal(1, WIDTH)), 1),
    "lstm": (LSTM, (_normal(2, 1, 4 * WIDTH),), 2),
    "gated": (GatedMLP, (_normal(1, WIDTH),), 2),
    "query": (Query, (_normal(1, 2, 1, 16), _normal(1, 2, 24, 16), _normal(1, 2, 24, 16)), 3),
    "update": (Update, (_normal(1, 24), _normal(1, 32), _normal(32, 24)), 1),
}
"""Model, inputs, and how many kernels it takes: a recurrent step is one."""

FEW = [name if name in ("lstm", "update") else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]


def _model(name: str) -> tuple[nn.Module, tuple[Tensor, ...], int]:
    factory, inputs, kernels = MODELS[name]
    torch.manual_seed(0)
    return factory(), inputs, kernels


def _flat(results: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (results,) if isinstance(results, Tensor) else results


@pytest.mark.parametrize("library", [pytest.param("none", marks=pytest.mark.slow), "auto"])
@pytest.mark.parametrize("name", FEW)
def test_products_share_kernels_with_what_follows_whether_there_is_a_library_or_not(name: str, library: str) -> None:
    model, inputs, kernels = _model(name)
    report = mlirstitch.compile(model, inputs, library=library, cache="off").report
    assert report["launches"] == kernels
    assert not any(cluster["library"] for cluster in report["clusters"])
    assert {cluster["template"] for cluster in report["clusters"]} <= {"row", "column"}


def test_steps_read_their_matrix_in_place() -> None:
    model, inputs, steps = _model("lstm")
    report = mlirstitch.compile(model, inputs, cache="off").report
    matrix = 4 * 4 * WIDTH * WIDTH
    assert steps * matrix < report["bytes"] < (steps + 1) * matrix


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in MODELS])
def test_errors_against_float64_are_those_of_eager(name: str, dtype: torch.dtype) -> None:
    model, inputs, _ = _model(name)
    model, inputs = model.to(dtype), tuple(tensor.to(dtype) for tensor in inputs)
    found = _flat(mlirstitch.compile(model, inputs, cache="off")(*inputs))
    eager = _flat(model(*inputs))
    exact = _flat(copy.deepcopy(model).double()(*(tensor.double() for tensor in inputs)))
    for ours, theirs, right in zip(found, eager, exact, strict=True):
        size = right.abs().max()
        allowed = 4 * (theirs.double() - right).abs().max() / size + 1e-6
        assert (ours.double() - right).abs().max() / size <= allowed


@pytest.mark.parametrize("name", FEW)
def test_kernels_are_sound_under_the_sanitizer(name: str) -> None:
    model, inputs, _ = _model(name)
    bundle = mlirstitch.compile(model, inputs, cache="off").bundle
    plain = Executor(bundle, open_device())
    arrays = random_inputs(plain.signature)
    expected = plain.run([array.copy() for array in arrays])
    found = Executor(bundle, open_device(sanitize=True, seed=1)).run([array.copy() for array in arrays])
    assert all(np.array_equal(a, b, equal_nan=True) for a, b in zip(expected, found, strict=True))
