"""Rows of the contract (docs/numerics.md) that need a program of their own: modes, statistics, long sums, limits."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from import_harness import assert_results_equal_eager
from kernel_harness import build
from row_programs import fold

import mlirstitch
from mlirstitch.passes.stitching.judge import Judge
from mlirstitch.target import TARGETS

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor  # isort: skip


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def chain(x: Tensor, y: Tensor, z: Tensor) -> list[Tensor]:
    """Add, subtract, multiply, divide, minimum, maximum, compare, select and cast, one into the other."""
    a = x * y + z
    b = a / (y * y + 1) - x * z
    c = torch.where(a > b, a - b, b * 3)
    d = torch.maximum(c, x) * torch.minimum(b, z) - c * y
    e = (d.to(torch.bfloat16).to(x.dtype) * x - d).clamp(-4, 4)
    return [a, b, c, d, e, e.to(torch.float16) + 1, torch.lerp(x, y, 0.25)]


# ---------------------------------------------------------------- strict and default
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.float16, marks=SLOW), pytest.param(torch.bfloat16, marks=SLOW)]
)
def test_strict_chains_have_eagers_bits(dtype: torch.dtype) -> None:
    inputs = tuple(randn(33, 41, seed=seed).to(dtype) for seed in range(3))
    compiled = mlirstitch.compile(chain, inputs, numerics="strict")
    for number, (got, want) in enumerate(zip(compiled(*inputs), chain(*inputs), strict=True)):
        assert torch.equal(got, want), f"result {number}"


def test_negative_zero_is_smaller_than_zero() -> None:
    x = torch.tensor([0.0, -0.0, 0.0, -0.0])
    y = torch.tensor([-0.0, 0.0, 0.0, -0.0])

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return torch.maximum(x, y), torch.minimum(x, y), torch.stack([x, y]).amax(0), -x, x + y, x * -2.0, 0.0 - x

    largest, smallest, of_rows, *others = mlirstitch.compile(function, (x, y), numerics="strict")(x, y)
    assert torch.equal(torch.signbit(largest), torch.tensor([False, False, False, True]))
    assert torch.equal(torch.signbit(smallest), torch.tensor([True, True, False, True]))
    assert torch.equal(torch.signbit(of_rows), torch.signbit(largest))
    for mine, eager in zip(others, function(x, y)[3:], strict=True):
        assert torch.equal(torch.signbit(mine), torch.signbit(eager))


@pytest.mark.parametrize("numerics", ["default", pytest.param("strict", marks=SLOW)])
def test_equal_products_cancel(numerics: str) -> None:
    def difference(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        product = x * y
        return product - y * x, product - product, (x * y).sub(product), product - x * y

    inputs = (randn(64, 33), randn(64, 33, seed=1))
    for result in mlirstitch.compile(difference, inputs, numerics=numerics)(*inputs):
        assert not result.any()


# ---------------------------------------------------------------- statistics and long sums
STATISTICS: dict[str, Callable[[Tensor], Any]] = {
    "variance of rows": lambda x: x.var(-1),
    "variance of columns": lambda x: x.var(0, correction=0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x.reshape(8, 4, 50), 2),
    "instance norm": lambda x: F.instance_norm(x.reshape(8, 4, 50)),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
}


def test_statistics_survive_a_large_mean_on_the_device() -> None:
    x = 1e6 + randn(8, 200)
    found = mlirstitch.compile(lambda x: {name: function(x) for name, function in STATISTICS.items()}, (x,))(x)
    for name, function in STATISTICS.items():
        exact = function(x.double())
        error = (found[name].double() - exact).abs().max() / exact.abs().max()
        assert error < 1e-4, f"{name}: {error}"  # E[x^2] - E[x]^2 has no correct digit left


@pytest.mark.parametrize(("template", "shape", "reduced"), [("row", (2, 4097), 1), ("column", (4097, 64), 0)])
def test_a_sum_at_2_to_the_24_does_not_stall(template: str, shape: tuple[int, int], reduced: int) -> None:
    x = np.ones(shape, np.float32)
    np.moveaxis(x, reduced, 0)[0] = 2**24
    (got,) = build(fold(shape, (reduced,), "f32", "arith.addf", "0.0"), template).run([x])
    exact = 2**24 + 4096
    np.testing.assert_allclose(got, exact, rtol=0, atol=64)  # one by one, nothing would be added: 4096 off


@SLOW
def test_2_to_the_24_ones_add_up() -> None:
    ones = torch.ones(2**24)
    assert float(mlirstitch.compile(lambda x: x.sum(), (ones,))(ones)) == 2**24


# ---------------------------------------------------------------- arguments
def test_an_input_of_any_strides_is_read_as_its_elements() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x.softmax(-1) * y, (x + y).sum(0)

    x, y = randn(12, 33), randn(12, 33, seed=1)
    compiled = mlirstitch.compile(function, (x, y))
    strided = x.t().contiguous().t()
    spread = torch.zeros(24, 99)[::2, ::3].copy_(y)
    turned = y[:1].expand(12, 33)
    for inputs in ((strided, spread), (strided, turned), (turned, turned)):
        assert_results_equal_eager(function, inputs, compiled(*inputs))


def test_one_tensor_may_be_several_arguments() -> None:
    def function(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        return x - y * z, (x * y).sum(-1)

    x = randn(12, 33)
    compiled = mlirstitch.compile(function, (x, x, x))
    assert_results_equal_eager(function, (x, x, x), compiled(x, x, x))


def test_a_changed_input_leaves_other_results_the_old_contents() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        before = x * 2
        x.add_(y)
        return before, x * y

    x, y = randn(12, 33), randn(12, 33, seed=1)
    compiled = mlirstitch.compile(function, (x.clone(), y))
    mine, eagers = x.clone(), x.clone()
    for _ in range(2):
        for got, want in zip(compiled(mine, y), function(eagers, y), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(mine, eagers, rtol=1e-6, atol=1e-6)


def test_seventy_inputs_are_more_arguments_than_64() -> None:
    def function(*xs: Tensor) -> Tensor:
        total = xs[0]
        for x in xs[1:]:
            total = total + x
        return total

    xs = tuple(randn(3, 5, seed=seed) for seed in range(70))
    compiled = mlirstitch.compile(function, xs)
    assert compiled.ptx.count(".entry") == 1
    assert_results_equal_eager(function, xs, compiled(*xs))


# ---------------------------------------------------------------- limits of launches and of PTX
@pytest.mark.parametrize(
    ("template", "shape", "reduced"),
    [("row", (140_000, 4096), 1), ("column", (70_000, 16, 64), 1), ("loop_nest", (2**24, 16), 1)],
)
def test_blocks_past_65535_stand_in_x(template: str, shape: tuple[int, ...], reduced: int) -> None:
    grid = build(fold(shape, (reduced,), "f32", "arith.addf", "0.0"), template).schedule.grid
    assert grid[0] > 65_535
    assert grid[1:] == (1, 1)


@pytest.mark.parametrize("chip", TARGETS)
def test_ptx_asks_for_no_newer_version_than_the_chip_needs(chip: str) -> None:
    ptx = build(fold((4, 40), (1,), "f32", "arith.addf", "0.0"), chip=chip).ptx
    version, target = re.search(r"\.version (\S+)", ptx), re.search(r"\.target (\S+)", ptx)
    assert version is not None
    assert version[1] == TARGETS[chip].ptx_version
    assert target is not None
    assert target[1].rstrip(",") == chip


# ---------------------------------------------------------------- what is shared and kept
@SLOW
def test_clusters_that_differ_in_a_number_a_shape_or_a_type_share_no_kernel() -> None:
    def function(x: Tensor, y: Tensor, w: Tensor) -> list[Tensor]:
        alike = [(x * 2).softmax(-1), (x * 3).softmax(-1), (y * 2).softmax(-1), (x.t() * 2).softmax(-1)]
        return [*(v @ w[: v.shape[-1]] for v in alike), (x.half() * 2).softmax(-1) @ w.half()[:33]]

    inputs = (randn(7, 33), randn(33, 7, seed=1), randn(33, 5, seed=2))
    assert_results_equal_eager(function, inputs, mlirstitch.compile(function, inputs)(*inputs))


@SLOW
def test_options_and_targets_give_kernels_of_their_own() -> None:
    def function(x: Tensor) -> Tensor:
        return (x.exp() / x).softmax(-1) * x + x

    x = randn(8, 64)
    settings = [
        {"numerics": numerics, "target": target}
        for target in ("sm_80", "sm_90")
        for numerics in ("default", "strict", "fast-math")
    ]
    first = [mlirstitch.compile(function, (x,), **chosen).ptx for chosen in settings]
    assert len(set(first)) == len(settings)
    again = [mlirstitch.compile(function, (x,), **chosen).ptx for chosen in settings[::-1]]
    assert again == first[::-1]


# ---------------------------------------------------------------- compile time
@SLOW
def test_questions_to_the_templates_grow_with_the_program_and_not_with_its_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A chain of ops: how much work the clusterer asks the templates for, counted in ops asked about."""
    asked = [0]
    ask = Judge._ask

    def counting(judge: Judge, union: list[int], *rest: Any) -> Any:
        asked[0] += len(union)
        return ask(judge, union, *rest)

    monkeypatch.setattr(Judge, "_ask", counting)

    def work(length: int) -> int:
        body = "".join(
            f"""
  %{k + 1} = linalg.generic {{indexing_maps = [#m, #m], iterator_types = ["parallel"]}}
      ins(%{k} : tensor<64xf32>) outs(%e : tensor<64xf32>) {{
  ^bb0(%x: f32, %o: f32):
    %y = math.tanh %x : f32
    linalg.yield %y : f32
  }} -> tensor<64xf32>"""
            for k in range(length)
        )
        asked[0] = 0
        mlirstitch.compile(
            f"""#m = affine_map<(d0) -> (d0)>
func.func @main(%0: tensor<64xf32>) -> tensor<64xf32> {{
  %e = tensor.empty() : tensor<64xf32>{body}
  return %{length} : tensor<64xf32>
}}""",
            to_level="stitched",
        )
        return asked[0]

    short, long = work(160), work(640)
    assert short > 0
    assert long <= 6 * short, f"{long} ops asked about for 640, {short} for 160"


# ---------------------------------------------------------------- constants
def test_large_constants_keep_every_element() -> None:
    table = randn(70, 90)
    numbers = torch.arange(6300).reshape(70, 90)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x * table + torch.tensor(table.tolist()), x + torch.tensor(numbers.tolist())

    x = randn(70, 90, seed=1)
    assert_results_equal_eager(function, (x,), mlirstitch.compile(function, (x,))(x))
