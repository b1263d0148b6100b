"""Transposes beside element-wise work and reductions become one launch, with tiles where a pass would be strided."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from mlirstitch.driver.compile import compile
from mlirstitch.runtime.program import Launch


def values(*shapes: tuple[int, ...]) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(shape, generator=generator) for shape in shapes)


Case = tuple[Callable[..., object], tuple[tuple[int, ...], ...], str]

CASES: dict[str, Case] = {
    "transposed operand": (lambda x, y: x.t() * 2 + y, ((96, 64), (64, 96)), "tile"),
    "contiguous": (lambda x: x.transpose(1, 2).contiguous(), ((3, 64, 96),), "tile"),
    "both orientations": (lambda x, y: (x.t() + y, (x.t() + y).t() * x), ((96, 64), (64, 96)), "tile"),
    "keys of heads": (lambda x: x.view(2, 48, 4, 32).permute(0, 2, 3, 1).contiguous() * 2, ((2, 48, 128),), "tile"),
    "channels last": (lambda x, b: torch.relu(x.permute(0, 2, 3, 1) + b), ((2, 64, 8, 8), (64,)), "tile"),
    "padded": (lambda x: nn.functional.pad(x.t(), (0, 4)) * 2, ((92, 64),), "tile"),
    "joined before": (lambda x, y: torch.cat([x, y], 0).t() * 2, ((64, 64), (32, 64)), "tile"),
    "heads merged": (
        lambda x, y: x.transpose(1, 2).reshape(2, 48, 128) + y,
        ((2, 4, 48, 32), (2, 48, 128)),
        "elementwise",
    ),
    "row sums, tensor kept": (lambda x, y: ((x.t() + y).sum(-1), x.t() + y), ((96, 64), (64, 96)), "row_tile"),
    "softmax": (lambda x, y: torch.softmax(x.t() * 0.5 + y, -1), ((96, 64), (64, 96)), "row_tile"),
    "layer norm": (
        lambda x, y: nn.functional.layer_norm(x.transpose(1, 2) + y, (96,)),
        ((2, 96, 32), (2, 32, 96)),
        "row_tile",
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_a_transpose_is_part_of_the_kernel_that_needs_it(name):
    function, shapes, template = CASES[name]
    inputs = values(*shapes)
    compiled = compile(function, inputs)
    assert [isinstance(step, Launch) and step.template for step in compiled.launch_plan.steps] == [template]
    got, expected = compiled(*inputs), function(*inputs)
    got = got if isinstance(got, tuple | list) else (got,)
    for value, wanted in zip(got, expected if isinstance(expected, tuple) else (expected,), strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-5, atol=1e-5)
