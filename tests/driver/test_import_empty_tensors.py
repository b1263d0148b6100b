"""Tensors without elements: nothing divides by their size, and what is computed from them is eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from import_harness import assert_all_equal_eager

from mlirstitch.driver.import_torch import import_model

import torch  # isort: skip
import torch.nn.functional as F

from torch import Tensor  # isort: skip

MOVED: dict[str, Callable[[Tensor], Any]] = {
    "view": lambda t: t.view(*t.shape, 1),
    "flatten": lambda t: t.flatten(),
    "flatten and add": lambda t: t.reshape(-1) + 1,
    "repeat": lambda t: t.repeat(3, *[1] * (t.dim() - 1)),
    "expand": lambda t: t.expand(2, *t.shape).contiguous(),
    "transpose": lambda t: t.transpose(0, -1) * 2,
    "cat": lambda t: torch.cat([t, t], 0),
    "cat with others": lambda t: torch.cat([t.flatten(), torch.ones(3), t.flatten()]) + 1,
    "stack": lambda t: torch.stack([t, t], -1),
    "pad": lambda t: F.pad(t, (1, 2), value=3.0),
    "split": lambda t: t.split(2, -1),
    "slice": lambda t: t[:1],
    "where": lambda t: torch.where(t > 0, t, 0),
    "cast": lambda t: (t.double(), t.to(torch.uint8), t > 0),
}
REDUCED: dict[str, Callable[[Tensor], Any]] = {
    "all dims": lambda t: (t.sum(), t.mean(), t.prod(), t.var(), t.norm()),
    "kept dim": lambda t: (t.sum(-1, keepdim=True), t.mean(-1), t.prod(-1)),
    "bools": lambda t: ((t > 0).any(-1), (t > 0).all(-1), (t > 0).sum()),
    "variance": lambda t: (t.var(-1), t.std(0), torch.var_mean(t, -1)),
    "softmax": lambda t: (t.softmax(-1), t.log_softmax(0), t.logsumexp(-1)),
    "norms": lambda t: (F.group_norm(t[None], 1), F.rms_norm(t, t.shape[-1:])),
    "used further": lambda t: t.sum(-1) + 1,
}
SHAPES = [(0,), (0, 5), (5, 0), (2, 0, 3)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("table", [MOVED, REDUCED], ids=["moved", "reduced"])
def test_nothing_in_gives_eagers_answer(table: dict[str, Callable[[Tensor], Any]], shape: tuple[int, ...]) -> None:
    assert_all_equal_eager(table, torch.empty(shape))


PRODUCTS: dict[str, Callable[..., Any]] = {
    "inner dim of size 0": lambda rows, columns: rows @ columns,
    "with a bias": lambda rows, columns: F.linear(rows, columns.t(), torch.arange(4).to(rows.dtype)),
    "batches": lambda rows, columns: rows.expand(2, 3, 0) @ columns.expand(2, 0, 4),
    "outer dim of size 0": lambda rows, columns: columns @ torch.ones(4, 2).to(rows.dtype),
}


def test_products_over_nothing_are_zero() -> None:
    assert_all_equal_eager(PRODUCTS, torch.empty(3, 0), torch.empty(0, 4))


def test_a_sum_of_nothing_is_a_constant_of_the_program() -> None:
    text = import_model(lambda t: t.sum(0) + 1, (torch.empty(0, 3),)).mlir
    assert '"reduction"' not in text
