"""``numerics="fast-math"``: every relaxation that docs/numerics.md lists, bounded by a measured error.

The emulated device rounds each approximation once, so the bounds here are of what stands around the instructions.
Hardware adds its own errors, which docs/numerics.md states.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from import_harness import assert_results_equal_eager

import mlirstitch
from mlirstitch.driver.compiled import Compiled
from mlirstitch.passes.normalize.fast_math import FastMath

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor  # isort: skip

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Approximation:
    """A function of x (-40 to 40) and y (1e-3 to 1e3), its bound in ulp of float32, and the instruction in its PTX."""

    function: Callable[[Tensor, Tensor], Tensor]
    instruction: str
    ulp: Callable[[Tensor], Tensor] = lambda x: torch.ones_like(x)


def _of_exp(more: int) -> Callable[[Tensor], Tensor]:
    """What the product with log2(e), rounded to float32, costs: as the CUDA C++ Programming Guide states __expf."""
    return lambda x: more + (1.173 * x).abs().floor()


APPROXIMATIONS = {
    "exp": Approximation(lambda x, y: x.exp(), "ex2.approx.f32", _of_exp(2)),
    "sigmoid": Approximation(lambda x, y: x.sigmoid(), "rcp.approx.f32", _of_exp(4)),
    "quotient": Approximation(lambda x, y: x / y, "rcp.approx.f32", lambda x: torch.full_like(x, 2)),
    "reciprocal": Approximation(lambda x, y: y.reciprocal(), "rcp.approx.f32"),
    "root": Approximation(lambda x, y: y.sqrt(), "sqrt.approx.f32"),
    "tanh": Approximation(lambda x, y: (x / 8).tanh(), "tanh.approx.f32"),
}


def _numbers(low: float, high: float, seed: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).uniform(low, high, 4096).astype(np.float32))


X, Y = _numbers(-40, 40, 1), _numbers(1e-3, 1e3, 2)


@pytest.fixture(scope="module", params=["reference", "jit"])
def approximated(request: pytest.FixtureRequest) -> tuple[Compiled, dict[str, Tensor]]:
    compiled = mlirstitch.compile(
        lambda x, y: {name: row.function(x, y) for name, row in APPROXIMATIONS.items()}, (X, Y), numerics="fast-math"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLIRSTITCH_EMULATOR_ENGINE", request.param)
        return compiled, compiled(X, Y)


@pytest.mark.parametrize("name", APPROXIMATIONS)
def test_each_approximation_is_in_the_ptx_and_within_its_bound(approximated, name: str) -> None:
    compiled, results = approximated
    row = APPROXIMATIONS[name]
    assert row.instruction in compiled.ptx
    exact = row.function(X.double(), Y.double())
    unit = torch.from_numpy(np.spacing(exact.abs().float().numpy())).double()
    off = (results[name].double() - exact).abs() / unit
    assert (off <= row.ulp(X.double())).all(), f"{float(off.max())} ulp"


SPECIAL = torch.tensor(
    [[NAN, 1.0, -INF, 0.5], [INF, -7.0, -0.0, 0.0], [-INF, -INF, -INF, -INF], [88.0, -88.0, 1.0, 4.0]]
)
KEPT: dict[str, Callable[[Tensor], Any]] = {
    "exp": torch.exp,
    "root": lambda x: x.clamp_min(-1).sqrt(),
    "tanh": torch.tanh,
    "quotients": lambda x: (1 / x, x / x.flip(0), x / 0.5),
    "softmax": lambda x: x.softmax(-1),
    "sigmoid": torch.sigmoid,
    "bounds": lambda x: (x.clamp(-1, 1), x.amax(-1), torch.maximum(x, x.flip(0))),
}


def test_infinities_and_nan_are_as_in_eager() -> None:
    compiled = mlirstitch.compile(lambda x: {n: f(x) for n, f in KEPT.items()}, (SPECIAL,), numerics="fast-math")
    for name, got in compiled(SPECIAL).items():
        for mine, eager in zip(*([v] if isinstance(v, Tensor) else v for v in (got, KEPT[name](SPECIAL))), strict=True):
            torch.testing.assert_close(mine, eager, rtol=1e-4, atol=0, equal_nan=True, msg=name)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16])
def test_half_types_are_as_accurate_as_eager(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return x.softmax(-1), F.gelu(x, approximate="tanh"), x / (1 + x * x), x.abs().sqrt()

    x = torch.randn(8, 65, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert_results_equal_eager(function, (x,), mlirstitch.compile(function, (x,), numerics="fast-math")(x))


def test_statistics_stay_stable_and_double_precision_precise() -> None:
    def function(x: Tensor, d: Tensor) -> tuple[Tensor, ...]:
        return F.layer_norm(x, (200,)), x.var(-1), d.exp() / d, d.sqrt().tanh()

    generator = torch.Generator().manual_seed(0)
    x, d = 1e6 + torch.randn(8, 200, generator=generator), 1 + torch.rand(64, generator=generator, dtype=torch.float64)
    norm, variance, *doubles = mlirstitch.compile(function, (x, d), numerics="fast-math")(x, d)
    exact = function(x.double(), d)
    torch.testing.assert_close(norm.double(), exact[0], rtol=0, atol=1e-3)
    torch.testing.assert_close(variance.double(), exact[1], rtol=1e-4, atol=0)
    for mine, eager in zip(doubles, exact[2:], strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-15, atol=0)


@pytest.mark.slow
@pytest.mark.parametrize("numerics", ["default", "strict"])
def test_the_other_modes_do_not_know_of_it(numerics: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return (x / y).softmax(-1), F.gelu(x, approximate="tanh"), x.abs().sqrt() * y + x

    inputs = (X.reshape(64, 64), Y.reshape(64, 64))
    with_pass = mlirstitch.compile(function, inputs, numerics=numerics).ptx
    monkeypatch.setattr(FastMath, "run", lambda self, op: None)
    assert mlirstitch.compile(function, inputs, numerics=numerics).ptx == with_pass
