"""Models whose contractions a library computes: what each call takes in, and the numbers against float64."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

import mlirstitch
from mlirstitch.runtime.program import Launch, LibraryCall


class Linear(nn.Module):
    """A projection and what follows it."""

    def __init__(self, then: str) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24)
        self.then = then

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        if self.then == "residual":
            return x + y
        if self.then == "scaled":
            return 0.5 * (x @ self.linear.weight)
        if self.then == "relu":
            return torch.relu(y)
        if self.then == "nothing":
            return y
        return functional.gelu(y, approximate=self.then)


class Heads(nn.Module):
    """Attention scores and context of heads split from one projection, two query heads for one of keys."""

    def forward(self, qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.transpose(1, 2) for part in qkv.view(2, 6, 8, 4).split((4, 2, 2), 2))
        k, v = (t[:, :, None].expand(2, 2, 2, 6, 4).reshape(2, 4, 6, 4) for t in (k, v))
        context = torch.softmax(q @ k.transpose(-1, -2), -1) @ v
        return context.transpose(1, 2).reshape(2, 6, 16)


def compiled_steps(model: nn.Module, x: torch.Tensor) -> list[Launch | LibraryCall]:
    """The steps; the results are those of float64 up to rounding in f32."""
    compiled = mlirstitch.compile(model, (x,), library="auto", target="sm_90")
    with torch.no_grad():
        wanted = copy.deepcopy(model).double()(x.double())
    torch.testing.assert_close(compiled(x).double(), wanted, rtol=1e-5, atol=1e-5)
    return [step for step in compiled.launch_plan.steps if isinstance(step, Launch | LibraryCall)]


@pytest.mark.parametrize(
    ("then", "activation", "addend"),
    [
        ("nothing", "none", False),
        ("residual", "none", True),
        ("scaled", "none", False),
        ("relu", "relu", False),
        ("tanh", "gelu_tanh", False),
    ],
)
def test_one_call_computes_a_projection_and_its_epilogue(then: str, activation: str, addend: bool) -> None:
    torch.manual_seed(0)
    (step,) = compiled_steps(Linear(then), torch.randn(2, 6, 24))
    assert isinstance(step, LibraryCall)
    assert step.epilogue is not None
    assert step.epilogue.activation == activation
    assert (step.epilogue.addend is not None) == addend
    assert (step.epilogue.bias is None) == (then == "scaled")
    assert step.epilogue.alpha == (0.5 if then == "scaled" else 1.0)


def test_gelu_by_the_error_function_is_a_kernel_of_its_own() -> None:
    torch.manual_seed(0)
    call, kernel = compiled_steps(Linear("none"), torch.randn(2, 6, 24))
    assert isinstance(call, LibraryCall)
    assert call.epilogue is not None
    assert call.epilogue.activation == "none"
    assert isinstance(kernel, Launch)


def test_heads_of_one_projection_are_split_shared_and_merged_in_place() -> None:
    torch.manual_seed(0)
    scores, softmax, context = compiled_steps(Heads(), torch.randn(2, 6, 32))
    assert isinstance(scores, LibraryCall)
    assert isinstance(softmax, Launch)
    assert isinstance(context, LibraryCall)
    assert [operand.buffer for operand in scores.operands[:2]] == [0, 0]
    assert [operand.offset for operand in scores.operands[:2]] == [None, 16]
    assert context.operands[-1].shape == (2, 6, 2, 2, 4)  # heads merged: rows stand between the dims of the batch
    assert context.operands[-1].strides is None


def by_comparison(y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.where(y > 0, y, torch.zeros(()))


def through_half(y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return y.bfloat16().float() + bias


def cancelled(y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return y + (y + bias) - 2 * y


@pytest.mark.parametrize("then", [by_comparison, through_half, cancelled])
def test_code_whose_bits_an_epilogue_would_lose_is_a_kernel_of_its_own(then: Callable[..., torch.Tensor]) -> None:
    """A NaN that a comparison drops, an explicit rounding, a difference of a value and itself."""
    torch.manual_seed(0)
    x, weight, bias = torch.randn(6, 24), torch.randn(24, 8), torch.randn(8)
    x[0, 0], x[1, 0] = torch.nan, torch.inf
    compiled = mlirstitch.compile(lambda x, w, b: then(x @ w, b), (x, weight, bias), library="auto")
    call, kernel = (step for step in compiled.launch_plan.steps if isinstance(step, Launch | LibraryCall))
    assert isinstance(call, LibraryCall)
    assert call.epilogue is None
    assert isinstance(kernel, Launch)
    torch.testing.assert_close(compiled(x, weight, bias), then(x @ weight, bias), equal_nan=True)
