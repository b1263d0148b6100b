"""Kinds of faults that compilers of this field have shipped, end to end: each against eager, judged in float64.

docs/numerics.md says which test guards which kind; what is not here is guarded where the emitter of it is tested. The
programs of one type are compiled as one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from import_harness import assert_results_equal_eager

import mlirstitch

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor  # isort: skip

FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
NAN, INF = float("nan"), float("inf")


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


@dataclass(frozen=True)
class Program:
    """A function and its inputs; floats take the type under test."""

    function: Callable[..., Any]
    inputs: tuple[Tensor, ...]


def _widths(function: Callable[[Tensor], Any], *widths: int) -> Program:
    """One function of rows of several widths."""
    return Program(lambda *xs: [function(x) for x in xs], tuple(randn(3, width) for width in widths))


TIED = (randn(5, 12) * 2).round()
TIED[1, 3], TIED[3, 7] = NAN, NAN
LENGTHS = torch.tensor([1, 7, 33, 40])


def _masked_mean(x: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.arange(x.shape[1]) < lengths[:, None]
    return (x * mask).sum(1) / mask.sum(1)


def _masked_softmax(x: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.arange(x.shape[1]) < lengths[:, None]
    return x.masked_fill(~mask, -INF).softmax(-1)


PROGRAMS = {
    # Padding counted in a denominator.
    "average of windows, padding not counted": Program(
        lambda x: F.avg_pool2d(x, 3, 2, padding=1, count_include_pad=False), (randn(1, 2, 9, 7),)
    ),
    "average of windows, padding counted": Program(lambda x: F.avg_pool2d(x, 3, 2, padding=1), (randn(1, 2, 9, 7),)),
    "mean of padded rows": Program(_masked_mean, (randn(4, 40), LENGTHS)),
    "softmax of padded rows": Program(_masked_softmax, (randn(4, 40), LENGTHS)),
    "means of odd widths": _widths(lambda x: (x.mean(-1), x.var(-1), x.std(-1)), 2, 31, 33, 127, 1023, 1025),
    "norms of odd widths": _widths(lambda x: F.layer_norm(x, x.shape[-1:]), 5, 33, 127, 1025),
    # Two roundings of one value: what is returned is what later ops see.
    "stored and used": Program(
        lambda x, y: (h := x + y, h.float() - x.float(), h.amax(0)), (randn(6, 33), randn(6, 33))
    ),
    "used by rows and by columns": Program(
        lambda x, y: (h := x * y + 1, h.amax(1), h.amax(0), h.amax()), (randn(40, 33), randn(40, 33))
    ),
    # Index reductions.
    "index of transposed inputs": Program(lambda x: (x.t().argmax(0), x.t().argmax(1), x.t().min(0)), (TIED,)),
    "index of permuted inputs": Program(
        lambda x: (p := x.reshape(5, 3, 4).permute(2, 0, 1), p.argmax(0), p.argmax(1), p.argmin(2), p.argmax()), (TIED,)
    ),
    "index of slices": Program(lambda x: (x[::2, 1::3].argmax(1), x.flip(1).argmax(1), x[:, 4:].max(0)), (TIED,)),
    # Rank 4 and 5 with unit dims.
    "unit dims in reductions": Program(
        lambda x: (
            x.reshape(1, 6, 1, 33).sum(3),
            x.reshape(6, 1, 33, 1, 1).softmax(2),
            x.reshape(1, 6, 1, 1, 33).var((0, 2, 3, 4)),
            x.reshape(1, 1, 6, 33).mean((0, 2)),
            x.reshape(6, 1, 1, 33).argmax(3, keepdim=True),
        ),
        (randn(6, 33),),
    ),
    # One-sized dims and broadcasts inside a buffer that a kernel keeps.
    "broadcasts in kept rows": Program(
        lambda x, row, column, one: ((x + row).softmax(-1), (x * column).softmax(-1), (x - one).softmax(-1)),
        (randn(4, 515), randn(1, 515), randn(4, 1), randn(1, 1)),
    ),
    "broadcasts in kept columns": Program(
        lambda x, row, column: ((x + row).softmax(0), (x * column).softmax(0)),
        (randn(37, 64), randn(1, 64), randn(37, 1)),
    ),
    "one-sized dims kept": Program(
        lambda x, y: (h := x.amax(1, keepdim=True) + y, (h - h.mean(0, keepdim=True)) / (1 + x.std(1, keepdim=True))),
        (randn(7, 33), randn(1, 1)),
    ),
    # Empty operands beside full outputs, and 0-d tensors.
    "empty operand": Program(
        lambda x, y: (torch.cat([y, x]), x + y.sum(), torch.cat([x, y]).amax(0), y.sum(0) + x),
        (randn(3, 5), randn(0, 5)),
    ),
    "tensors of rank 0": Program(
        lambda x, y: (x * y.sum(), y.softmax(0) + x, x.sum(), x.exp().reshape(1, 1), torch.stack([x, x])),
        (torch.tensor(1.5), randn(4)),
    ),
    # A long sum of one sign must not stall.
    "a large term first": Program(
        lambda x: (x.sum(1), x.t().contiguous().sum(0)),
        (torch.cat([torch.full((2, 1), 1024.0), torch.ones(2, 4095)], 1),),
    ),
    # Casts in the program happen.
    "narrowed and widened": Program(
        lambda x: (x.half().float() * 3, x.bfloat16().float().sum(1), x.to(torch.int8).float(), x.double().float()),
        (randn(4, 33),),
    ),
    # Values returned twice, views and inputs among the results.
    "outputs that are one value, views or inputs": Program(
        lambda x: (y := x + 1, y, y.view(-1), x, x.t(), y[1:], y.expand(2, 4, 33)), (randn(4, 33),)
    ),
}


@pytest.fixture(
    scope="module", params=["f32", *(pytest.param(name, marks=pytest.mark.slow) for name in ("f16", "bf16"))]
)
def results(request: pytest.FixtureRequest) -> tuple[dict[str, tuple[Tensor, ...]], dict[str, Any]]:
    dtype = FLOATS[request.param]
    inputs = {
        name: tuple(x.to(dtype) if x.is_floating_point() else x for x in program.inputs)
        for name, program in PROGRAMS.items()
    }
    compiled = mlirstitch.compile(
        lambda values: {name: program.function(*values[name]) for name, program in PROGRAMS.items()}, (inputs,)
    )
    return inputs, compiled(inputs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_answer_is_eagers(results, name: str) -> None:
    inputs, found = results
    assert_results_equal_eager(PROGRAMS[name].function, inputs[name], found[name])


def test_what_is_returned_is_what_later_ops_saw(results) -> None:
    """A value that several kernels use has the same bits in all of them: a maximum returns one of its elements."""
    _, found = results
    value, by_rows, by_columns, total = found["used by rows and by columns"]
    assert torch.equal(value.amax(1), by_rows)
    assert torch.equal(value.amax(0), by_columns)
    assert torch.equal(value.amax(), total)
    stored, _, largest = found["stored and used"]
    assert torch.equal(stored.amax(0), largest)


def test_one_value_returned_twice_is_two_arrays_of_the_same_bits(results) -> None:
    first, second, flat, *_ = results[1]["outputs that are one value, views or inputs"]
    assert torch.equal(first, second)
    assert torch.equal(first.reshape(-1), flat)
