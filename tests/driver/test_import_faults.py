"""The table of faults of the importer (docs/numerics.md): each row gives eager's answer through our decompositions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from import_harness import assert_all_equal_eager, assert_equals_eager, user_results

from mlirstitch.driver.import_torch import import_model

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor  # isort: skip

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
HALVES = (torch.float16, torch.bfloat16)
NAN, INF = float("nan"), float("inf")


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def with_specials(dtype: torch.dtype) -> Tensor:
    x = randn(6, 8, dtype=dtype) * 3
    x[1, 3] = NAN
    x[2, 2], x[2, 5], x[4, 0] = INF, -INF, -INF
    x[3, 0], x[3, 1] = 0.0, -0.0
    return x


# ---------------------------------------------------------------- narrow accumulators
@pytest.mark.parametrize("dtype", FLOATS)
def test_sum_of_4096_ones_does_not_stall(dtype: torch.dtype) -> None:
    model = assert_equals_eager(lambda x: x.sum(), torch.ones(4096, dtype=dtype))
    assert float(user_results(model, [torch.ones(4096, dtype=dtype)])[0]) == 4096.0


@pytest.mark.parametrize("dtype", FLOATS)
def test_mean_of_hundreds_does_not_overflow(dtype: torch.dtype) -> None:
    x = torch.full((4096,), 100.0, dtype=dtype)
    model = assert_equals_eager(lambda x: x.mean(), x)
    assert float(user_results(model, [x])[0]) == 100.0


@pytest.mark.parametrize("dtype", FLOATS)
def test_rms_norm_of_large_rows_is_one(dtype: torch.dtype) -> None:
    x = torch.full((2, 64), 300.0, dtype=dtype)
    model = assert_equals_eager(lambda x: x / x.float().pow(2).mean(-1, keepdim=True).sqrt().to(x.dtype), x)
    assert np.all(user_results(model, [x])[0].astype(np.float32) == 1.0)
    assert_equals_eager(lambda x: F.rms_norm(x, (64,)), x)
    assert_equals_eager(lambda x: x * torch.rsqrt((x / 16).pow(2).mean(-1, keepdim=True)) / 16, x)


@pytest.mark.parametrize("dtype", FLOATS)
def test_norm_of_a_long_vector_does_not_overflow(dtype: torch.dtype) -> None:
    assert_equals_eager(lambda x: x.norm(), torch.full((4096,), 45.25, dtype=dtype))


SUMS: dict[str, Callable[[Tensor], Any]] = {
    "sum of rows": lambda x: x.sum(-1),
    "sum kept": lambda x: x.sum(0, keepdim=True),
    "sum of two dims": lambda x: x.sum((0, 1)),
    "sum in float32": lambda x: x.sum(-1, dtype=torch.float32),
    "mean": lambda x: x.mean(-1),
    "product": lambda x: (x / 4 + 1).prod(-1),
    "1-norm": lambda x: x.norm(p=1, dim=-1),
    "inf-norm": lambda x: torch.linalg.vector_norm(x, INF, -1),
    "3-norm": lambda x: torch.linalg.vector_norm(x, 3, -1),
    "variance": lambda x: x.var(-1),
    "deviation of columns": lambda x: x.std(0, correction=0),
    "variance and mean": lambda x: torch.var_mean(x, -1, keepdim=True),
    "softmax": lambda x: x.softmax(-1),
    "softmax of columns": lambda x: x.softmax(0),
    "log-softmax": lambda x: x.log_softmax(-1),
    "log-sum-exp": lambda x: x.logsumexp(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x[None], 3),
    "instance norm": lambda x: F.instance_norm(x[None]),
    "batch norm": lambda x: F.batch_norm(x, None, None, training=True),
    "average pool": lambda x: F.avg_pool1d(x[None], 4),
    "average pool in 2-d": lambda x: F.avg_pool2d(x[None], 2),
    "matrix product": lambda x: x @ x.t(),
    "cosine similarity": lambda x: F.cosine_similarity(x, x.flip(0), -1),
    "mse": lambda x: F.mse_loss(x, x.flip(0)),
}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_reductions_accumulate_wide_and_round_once(dtype: torch.dtype) -> None:
    assert_all_equal_eager(SUMS, randn(6, 200, dtype=dtype))


def test_no_reduction_accumulates_in_a_half_type() -> None:
    model = import_model(
        lambda x: (x.softmax(-1), x.mean(0), x.var(-1), x @ x.t()), (randn(6, 8, dtype=torch.bfloat16),)
    )
    for accumulator in re.findall(r"arith\.addf %\w+, %out\w* : (\w+)", model.mlir):
        assert accumulator == "f32"
    assert "arith.addf" in model.mlir


# ---------------------------------------------------------------- NaN
BOUNDS: dict[str, Callable[[Tensor], Any]] = {
    "clamp": lambda x: x.clamp(-1, 1),
    "clamp_min": lambda x: x.clamp_min(0.5),
    "clamp_max": lambda x: x.clamp_max(0.5),
    "clamp by tensors": lambda x: x.clamp(x.flip(0), x.flip(0) + 1),
    "hardtanh": F.hardtanh,
    "relu": F.relu,
    "relu6": F.relu6,
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "maximum": lambda x: torch.maximum(x, x.flip(0)),
    "minimum": lambda x: torch.minimum(x, x.flip(0)),
    "maximum with a constant": lambda x: torch.maximum(x, torch.ones_like(x)),
    "maximum of a constant": lambda x: torch.maximum(torch.ones_like(x), x),
    "minimum of a constant": lambda x: torch.minimum(torch.ones_like(x), x),
    "fmax": lambda x: torch.fmax(x, x.flip(0)),
    "fmin": lambda x: torch.fmin(x, x.flip(0)),
    "amax": lambda x: x.amax(-1),
    "amin": lambda x: x.amin(0),
    "max pool": lambda x: F.max_pool1d(x[None], 2),
    "threshold": lambda x: F.threshold(x, 0.5, 0.5),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_and_infinity_pass_bounds_as_in_eager(dtype: torch.dtype) -> None:
    assert_all_equal_eager(BOUNDS, with_specials(dtype))


@pytest.mark.parametrize("name", ["maximum", "minimum", "clamp", "relu6"])
def test_bounds_become_single_ir_ops(name: str) -> None:
    text = import_model(BOUNDS[name], (randn(6, 8),)).mlir
    assert re.search(r"arith\.(maximumf|minimumf)", text)
    assert "arith.select" not in text


def test_a_programs_own_compare_and_select_is_not_changed() -> None:
    x = with_specials(torch.float32)
    model = assert_equals_eager(lambda x: torch.where(x > x.flip(0), x, x.flip(0)), x)
    assert "maximumf" not in model.mlir


@pytest.mark.parametrize("dtype", FLOATS)
def test_nan_is_not_equal_to_itself(dtype: torch.dtype) -> None:
    model = assert_equals_eager(
        lambda x: (x == x, x == x.clone(), x.reshape(-1) == x.view(-1), x != x, x <= x, (x == x).all(), x == 0),
        with_specials(dtype),
    )
    assert not bool(user_results(model, [with_specials(dtype)])[0].all())


INDICES: dict[str, Callable[[Tensor], Any]] = {
    "argmax": lambda x: x.argmax(-1),
    "argmin": lambda x: x.argmin(-1),
    "argmax of columns, kept": lambda x: x.argmax(0, keepdim=True),
    "argmax of all": lambda x: x.argmax(),
    "max over a dim": lambda x: x.max(-1),
    "min over a dim": lambda x: x.min(0),
    "argmax of the transpose": lambda x: x.t().argmax(-1),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_first_nan_wins_in_index_reductions(dtype: torch.dtype) -> None:
    x = with_specials(dtype)
    x[1, 6] = NAN
    assert_all_equal_eager(INDICES, x)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.int32, torch.uint8])
def test_first_index_wins_ties(dtype: torch.dtype) -> None:
    assert_all_equal_eager(INDICES, (randn(6, 40) * 2).round().abs().to(dtype))


def test_index_of_rows_without_any_finite_element() -> None:
    x = torch.full((3, 5), -INF)
    x[1] = NAN
    assert_equals_eager(lambda x: (x.argmax(-1), x.argmin(-1), x.max(-1), x.min(-1)), x)


# ---------------------------------------------------------------- integers
BIG = torch.tensor([2**62 + 1, -(2**62) - 1, 2**53 + 1, -(2**53) - 1, 7, -7, 0, 2**63 - 1, -(2**63)])


@pytest.mark.parametrize("mode", ["floor", "trunc"])
def test_int64_division_is_exact_beyond_2_to_53(mode: str) -> None:
    divisors = torch.tensor([3, -3, 2**40 + 1])
    table: dict[str, Callable[..., Any]] = {
        f"by {d}": lambda x, y, d=d: torch.div(x, d, rounding_mode=mode) for d in divisors.tolist()
    }
    table["by tensors"] = lambda x, y: torch.div(x[:, None], y, rounding_mode=mode)
    assert "f64" not in assert_all_equal_eager(table, BIG, divisors).mlir


@pytest.mark.parametrize("dtype", FLOATS)
def test_quotients_and_remainders_of_floats(dtype: torch.dtype) -> None:
    x = with_specials(dtype)
    table: dict[str, Callable[[Tensor], Any]] = {
        "floor": lambda x: (x // 3, x // -3, x // x.flip(0)),
        "truncate": lambda x: (torch.div(x, 3, rounding_mode="trunc"), torch.trunc(x)),
        "remainder": lambda x: (x % 3, x % -3, torch.fmod(x, 3), torch.fmod(x, x.flip(0))),
    }
    assert_all_equal_eager(table, x)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_integer_quotients_and_remainders(dtype: torch.dtype) -> None:
    x = torch.arange(-128, 128).to(dtype)
    y = torch.where(x == 0, torch.ones_like(x), x).flip(0)
    by_number = {f"by {d}": lambda x, y, d=d: (x // d, x % d, torch.fmod(x, d)) for d in (3, -3)}
    assert_all_equal_eager(by_number | {"by a tensor": lambda x, y: (x // y, x % y, torch.fmod(x, y))}, x, y)


UNSIGNED: dict[str, Callable[[Tensor], Any]] = {
    "sum past 127": lambda x: x.sum(),
    "sum of rows": lambda x: x.sum(-1),
    "product": lambda x: x.prod(-1),
    "mean": lambda x: x.float().mean(-1),
    "extrema": lambda x: (x.amax(-1), x.amin(0), x.max(), x.min()),
    "maximum": lambda x: (torch.maximum(x, x.flip(0)), torch.minimum(x, x.flip(0))),
    "clamp": lambda x: x.clamp(100, 200),
    "compare": lambda x: (x > 127, x <= 200, x > x.flip(0), x == 200),
    "true division": lambda x: (x / 3, x / x.flip(0).clamp_min(1)),
    "arithmetic wraps": lambda x: (x + 100, x * 3, x - 200, x * x),
    "with floats": lambda x: (x * 0.3, x + torch.ones(8), torch.where(x > 3, x, 0.5)),
    "shift": lambda x: (x >> 2, x << 1),
    "square": lambda x: x**2,
    "any and all": lambda x: (x.any(-1), x.all(-1)),
    "abs and relu": lambda x: (x.abs(), F.relu(x)),
    "matrix product": lambda x: x @ x.t(),
    "functions": lambda x: (x.sqrt(), x.sigmoid(), x**0.5),
}


def test_uint8_stays_unsigned() -> None:
    x = torch.randint(0, 256, (4, 8), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    x[0, 0], x[1, 1] = 255, 0
    assert_all_equal_eager(UNSIGNED, x)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.uint8])
def test_numbers_wrap_into_small_types_and_extrema_are_right(dtype: torch.dtype) -> None:
    x = torch.tensor([[200, -3, 7], [1, 100, -100]]).to(dtype)
    table: dict[str, Callable[[Tensor], Any]] = {
        "numbers out of range": lambda x: (x == 200, x > -3, x + 1000, x * 70000),
        "extrema": lambda x: (x.max(), x.min(), x.amax(-1), x.amin(0), x.argmax(), x.max(1)),
        "sum": lambda x: (x.sum(), x.prod(-1), x.sum(0, dtype=torch.float32)),
    }
    assert_all_equal_eager(table, x)


TRUTH_VALUES: dict[str, Callable[..., Any]] = {
    "sum": lambda x, y: (x + y, y + x),
    "sum with a number": lambda x, y: (x + True, False + x, x + 1),
    "sum in place": lambda x, y: x.clone().add_(True),
    "scaled sum": lambda x, y: (torch.add(x, y, alpha=True), torch.add(y, x, alpha=False)),
    "product": lambda x, y: (x * y, x * True, x * 2),
    "bits": lambda x, y: (x | y, x | True, x & False, x ^ True, x ^ y, ~x),
}


def test_truth_values_add_without_carry() -> None:
    x = torch.tensor([[True, False, True], [False, False, True]])
    assert_all_equal_eager(TRUTH_VALUES, x, torch.tensor([True, False, False]))


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8])
def test_bits_with_a_number(dtype: torch.dtype) -> None:
    assert_equals_eager(lambda x: (x & 6, x | 9, x ^ 5, x | True), torch.arange(-10, 10).to(dtype))


# ---------------------------------------------------------------- functions
@pytest.mark.parametrize("dtype", FLOATS)
def test_reciprocal_of_zero_and_nan(dtype: torch.dtype) -> None:
    model = assert_equals_eager(lambda x: (x.reciprocal(), 1 / x, x**-1), with_specials(dtype))
    assert "cf.assert" not in model.mlir


@pytest.mark.parametrize("dtype", FLOATS)
def test_truncation_keeps_the_sign_of_zero(dtype: torch.dtype) -> None:
    x = torch.tensor([-0.0, 0.0, -0.5, 0.5, -1.5, NAN, INF, -INF], dtype=dtype)
    assert_equals_eager(lambda x: (1 / torch.trunc(x), torch.trunc(x), 1 / torch.round(x), 1 / torch.ceil(x)), x)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu_has_exact_constants(approximate: str, dtype: torch.dtype) -> None:
    x = torch.cat([randn(200, dtype=dtype) * 4, torch.tensor([-1.5, 0.0, NAN], dtype=dtype)])
    assert_equals_eager(lambda x: F.gelu(x, approximate=approximate), x)


def test_tanh_gelu_at_minus_one_and_a_half() -> None:
    x = torch.tensor([-1.5])
    model = import_model(lambda x: F.gelu(x, approximate="tanh"), (x,))
    assert abs(float(user_results(model, [x])[0][0]) - -0.100428) < 1e-6


COMPOSITES: dict[str, Callable[[Tensor], Any]] = {
    name: getattr(F, name)
    for name in (
        "sigmoid",
        "silu",
        "elu",
        "selu",
        "mish",
        "softplus",
        "leaky_relu",
        "logsigmoid",
        "softsign",
        "tanhshrink",
    )
} | {
    "scaled by a third": lambda x: x * 0.3,
    "shifted": lambda x: x + 0.1,
    "divided": lambda x: x / 3,
    "expm1": torch.expm1,
    "log1p": lambda x: torch.log1p(x.abs()),
    "lerp": lambda x: torch.lerp(x, x.flip(0), 0.3),
    "addcmul": lambda x: torch.addcmul(x, x, x.flip(0), value=0.3),
    "power": lambda x: x.abs() ** 0.7,
    "add with a factor": lambda x: torch.add(x, x.flip(0), alpha=0.3),
    "addmm": lambda x: torch.addmm(x[:, 0], x, x.t(), beta=0.5, alpha=2),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_composite_functions_of_half_types_round_once(dtype: torch.dtype) -> None:
    assert_all_equal_eager(COMPOSITES, randn(32, 32, dtype=dtype) * 2)


@pytest.mark.parametrize("dtype", HALVES)
def test_arithmetic_of_half_types_with_a_number_has_eagers_bits(dtype: torch.dtype) -> None:
    x = randn(500, dtype=dtype) * 3

    def program(x: Tensor) -> tuple[Tensor, ...]:
        number = torch.tensor(0.1)  # of float32
        sums = (x + 0.1, x - 0.1, 0.1 - x, x + number, number - x, torch.add(x, x.flip(0), alpha=2))
        return (*sums, x * 0.3, x / 0.3, x * number)

    model = import_model(program, (x,))
    for mine, eager in zip(user_results(model, [x]), program(x), strict=True):
        np.testing.assert_array_equal(mine.astype(np.float32), eager.float().numpy())


# ---------------------------------------------------------------- statistics
def test_comparison_with_a_fraction_is_made_in_float32() -> None:
    """In float64 0.1f > 0.1 holds; in eager it does not."""
    x = torch.tensor([0.1, 0.2, NAN, 0.3])
    model = assert_equals_eager(lambda x: (x > 0.1, x <= 0.3, x == 0.2, x != INF, torch.where(x > 0.1, x, 0.1)), x)
    assert not re.search(r"arith\.extf|cmpf.*: f64", model.mlir)


@pytest.mark.parametrize("dtype", FLOATS)
def test_variance_of_nothing_is_nan(dtype: torch.dtype) -> None:
    assert_equals_eager(lambda x: (x.var(), x.std(), x.mean(), x.sum()), torch.ones(0, dtype=dtype))
    assert_equals_eager(lambda x: x.var(-1), torch.ones(3, 1, dtype=dtype))


SCALARS: dict[str, Callable[[Tensor], Any]] = {
    "sums": lambda x: (x.sum(0), x.mean(0), x.prod(0), x.norm(dim=0), x.sum(())),
    "extrema": lambda x: (x.amax(0), x.amin((0,), keepdim=True), x.max(0), x.min(0), x.argmax(0), x.aminmax()),
    "bools": lambda x: (x.any(0), x.all(0), (x > 0).all((0,)), (x > 0).any((-1,), keepdim=True)),
    "softmax": lambda x: (x.softmax(0), x.log_softmax(-1), x.logsumexp(0)),
    "variance": lambda x: (x.var(0), x.std(0, correction=0), torch.var_mean(x, -1)),
    "moved": lambda x: (x.flip(0), x.transpose(0, -1), x.gather(0, torch.tensor(0)), x.permute([])),
}


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
def test_reductions_of_a_scalar_over_its_dim(dtype: torch.dtype) -> None:
    assert_all_equal_eager(SCALARS, torch.tensor(2.5, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.uint8, torch.bool])
def test_a_choice_between_equals_has_the_shape_of_its_condition(dtype: torch.dtype) -> None:
    table: dict[str, Callable[..., Any]] = {
        "scalars": lambda c, x, y: torch.where(c, x, x),
        "clones": lambda c, x, y: torch.where(c, x, x.clone()),
        "columns": lambda c, x, y: torch.where(c, y, y),
        "smaller condition": lambda c, x, y: torch.where(c[:1, :1], y.t(), y.t()),
    }
    assert_all_equal_eager(table, torch.ones(3, 4).bool(), torch.tensor(1).to(dtype), torch.ones(3, 1).to(dtype))


@pytest.mark.parametrize("pad", [(-1, 3), (3, -1), (-1, -2), (0, -1), (2, 0, -1, 1), (-4, -4), (-8, 9)])
def test_negative_padding_cuts_off(pad: tuple[int, ...]) -> None:
    assert_equals_eager(lambda x: (F.pad(x, pad), F.pad(x, pad, value=1.5) * 2), randn(5, 8))


@pytest.mark.parametrize("shift", [1, -1, 0, 3, -3, 5, -7, 16])
def test_roll_by_any_shift(shift: int) -> None:
    x = randn(3, 5)
    assert_equals_eager(lambda x: (x.roll(shift, 0), x.roll((shift, 1), (1, -2)), x[:, :1].roll(shift, 1)), x)
    assert_equals_eager(lambda x: x.roll(shift), x)


EVERY_TYPE = (*FLOATS, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", EVERY_TYPE)
def test_tensors_of_any_two_types_are_joined(dtype: torch.dtype) -> None:
    table: dict[str, Callable[..., Any]] = {}
    for other in EVERY_TYPE:
        table[f"cat {other}"] = lambda x, y, other=other: torch.cat([x, y.to(other)], 1)
        table[f"stack {other}"] = lambda x, y, other=other: torch.stack([y.to(other), x])
    x, y = (torch.arange(6).reshape(2, 3) * k for k in (1, 2))
    import_model(lambda x, y: tuple(f(x, y) for f in table.values()), (x.to(dtype), y))
    if not dtype.is_floating_point:  # the judge would cast the operands to float64
        assert_all_equal_eager(table, x.to(dtype), y)


def test_any_and_all_over_several_dims() -> None:
    x = randn(3, 4, 5).sign().clamp(0).bool()
    assert_equals_eager(lambda x: (x.all((0, 2)), x.any((0, 1), keepdim=True), x.all((-1,)), x.any(())), x)


STATISTICS: dict[str, Callable[[Tensor], Any]] = {
    "variance": lambda x: x.var(-1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "group norm": lambda x: F.group_norm(x[None], 2),
    "batch norm": lambda x: F.batch_norm(x.t(), None, None, training=True),
}


def test_statistics_survive_a_large_mean() -> None:
    assert_all_equal_eager(STATISTICS, 1e6 + randn(4, 768))


def test_statistics_of_float32_need_no_float64() -> None:
    text = assert_all_equal_eager(STATISTICS, randn(4, 8)).mlir
    assert not re.search(r"x?f64>", text)
    assert not re.search(r"arith\.extf|math\.\w+ %\w+ : f64", text)


def test_layer_norm_computes_the_mean_once() -> None:
    text = import_model(STATISTICS["layer norm"], (randn(4, 8),)).mlir
    assert text.count('"reduction"') == 3  # the sum, the sum of deviations, the sum of their squares


def test_variance_of_a_constant_is_no_nan() -> None:
    x = torch.full((3, 777), 100.1)
    model = import_model(lambda x: x.std(-1), (x,))
    assert np.all(user_results(model, [x])[0] < 1e-4)


def test_statistics_of_float64_stay_float64() -> None:
    model = assert_all_equal_eager(STATISTICS, randn(4, 8, dtype=torch.float64))
    assert "f32" not in re.sub(r"stitch\.dtype = \S+|loc\(.*", "", model.mlir)


# ---------------------------------------------------------------- softmax
@pytest.mark.parametrize("dtype", FLOATS)
def test_softmax_of_infinite_and_nan_rows(dtype: torch.dtype) -> None:
    x = with_specials(dtype)
    x[5] = -INF
    assert_equals_eager(lambda x: (x.softmax(-1), x.log_softmax(-1), x.logsumexp(-1)), x)


def test_softmax_of_any_width() -> None:
    widths = (1, 2, 31, 33, 127, 1023, 1025)
    assert_all_equal_eager({f"{n}": lambda x, n=n: x[:, :n].softmax(-1) for n in widths}, randn(3, 1025))


# ---------------------------------------------------------------- cross-entropy, gradients of look-ups: no assertions
LABELS = torch.tensor([1, 3, 0, 1, 2, 7])


def gradient(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Value and gradient with respect to the first argument."""

    def step(*inputs: Tensor) -> Any:
        return torch.func.grad_and_value(function)(*inputs)

    return step


LOSSES: dict[str, Callable[..., Tensor]] = {
    "mean": lambda x, t: F.cross_entropy(x, t),
    "sum": lambda x, t: F.cross_entropy(x, t, reduction="sum"),
    "ignoring a class": lambda x, t: F.cross_entropy(x, t, ignore_index=1),
    "weighted": lambda x, t: F.cross_entropy(x, t, weight=torch.arange(1.0, 9.0).to(x.dtype)),
    "smoothed": lambda x, t: F.cross_entropy(x, t, label_smoothing=0.1),
    "images": lambda x, t: F.cross_entropy(x.reshape(1, 8, 6).softmax(1), t[None]),
    "none": lambda x, t: F.cross_entropy(x, t, reduction="none").square().sum(),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_cross_entropy_and_its_gradient_without_scatter(dtype: torch.dtype) -> None:
    table = {name: gradient(loss) for name, loss in LOSSES.items()}
    model = assert_all_equal_eager(table, randn(6, 8, dtype=dtype), LABELS)
    assert "tm_tensor" not in model.mlir
    assert "cf.assert" not in model.mlir


def test_cross_entropy_of_ignored_rows_only_is_nan() -> None:
    assert_equals_eager(lambda x, t: F.cross_entropy(x, t, ignore_index=1), randn(6, 8), torch.ones_like(LABELS))


SCATTERS: dict[str, Callable[..., Tensor]] = {
    "embedding": lambda w, i: F.embedding(i, w).square().sum(),
    "embedding with padding": lambda w, i: F.embedding(i, w, padding_idx=1).square().sum(),
    "gather": lambda w, i: w.gather(0, i[:, None].expand(-1, 4)).square().sum(),
    "gather of columns": lambda w, i: w.gather(1, (i % 5)[:, None].expand(-1, 3)).square().sum(),
    "indexing": lambda w, i: w[i].square().sum(),
    "indexing from the end": lambda w, i: w[i - 8].square().sum(),
    "index_select": lambda w, i: w.index_select(0, i).square().sum(),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_gradients_of_look_ups(dtype: torch.dtype) -> None:
    table = {name: gradient(look_up) for name, look_up in SCATTERS.items()}
    model = assert_all_equal_eager(table, randn(8, 5, dtype=dtype), LABELS)
    assert "tm_tensor" not in model.mlir


# ---------------------------------------------------------------- attention, batch norm
def attention(mask: Tensor | None = None, **options: Any) -> Callable[..., Tensor]:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        own = mask.to(q.dtype) if mask is not None and mask.is_floating_point() else mask
        return F.scaled_dot_product_attention(q, k, v, attn_mask=own, **options)

    return attend


KEEP = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 1, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 1], [1, 0, 0, 0, 0]]).bool()
ATTENTIONS = {
    "plain": attention(),
    "causal": attention(is_causal=True),
    "boolean mask": attention(KEEP),
    "additive mask": attention(torch.where(KEEP, 0.0, -1e4)),
    "own scale": attention(scale=0.3),
}


@pytest.mark.parametrize("dtype", FLOATS)
def test_fused_attention(dtype: torch.dtype) -> None:
    assert_all_equal_eager(ATTENTIONS, *(randn(2, 3, 5, 4, dtype=dtype, seed=s) for s in range(3)))


def test_a_fully_masked_row_of_attention_gives_zeros() -> None:
    keep = KEEP.clone()
    keep[2] = False
    assert_equals_eager(attention(keep), *(randn(2, 3, 5, 4, seed=s) for s in range(3)))


def test_gradients_of_fused_attention() -> None:
    def gradients(attend: Callable[..., Tensor]) -> Callable[..., Any]:
        return torch.func.grad(lambda *t: attend(*t).square().sum(), argnums=(0, 1, 2))

    table = {name: gradients(ATTENTIONS[name]) for name in ("plain", "causal", "boolean mask", "own scale")}
    assert_all_equal_eager(table, *(randn(2, 3, 5, 4, seed=s) for s in range(3)))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float64])
@pytest.mark.parametrize("layer", ["layer", "group", "batch", "batch in inference"])
def test_gradients_of_normalisations(layer: str, dtype: torch.dtype) -> None:
    def normalised(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        if layer == "layer":
            return F.layer_norm(x.movedim(1, -1), (6,), w, b).movedim(-1, 1)
        if layer == "group":
            return F.group_norm(x, 2, w, b)
        if layer == "batch":
            return F.batch_norm(x, None, None, w, b, training=True)
        return F.batch_norm(x, torch.full((6,), 0.1).to(x.dtype), torch.full((6,), 2.0).to(x.dtype), w, b)

    def step(x: Tensor, w: Tensor, b: Tensor, g: Tensor) -> Any:
        y, vjp = torch.func.vjp(normalised, x, w, b)[:2]
        return (y, *vjp(g))

    x, g = randn(4, 6, 5, dtype=dtype), randn(4, 6, 5, dtype=dtype, seed=1)
    assert_equals_eager(step, x, randn(6, dtype=dtype, seed=2), randn(6, dtype=dtype, seed=3), g)
