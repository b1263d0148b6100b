"""Kernels that go over long rows several times read them from global memory once, where a block can hold them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from mlirstitch.driver.bench.bounds import MEMORY_BOUND_FACTOR
from mlirstitch.driver.bench.workloads import Size, get
from mlirstitch.driver.compile import compile
from mlirstitch.driver.report.summary import summarise
from mlirstitch.target import Target

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("rows", "classes", "dtype", "chip"),
    [
        (4096, 30522, F32, "sm_90"),
        (4096, 30522, F32, "sm_80"),
        (4096, 30522, F16, "sm_90"),
        (4096, 30522, BF16, "sm_89"),
        (2048, 50257, F32, "sm_90"),
        (2048, 50257, BF16, "sm_80"),
        (4096, 32000, BF16, "sm_90"),
    ],
)
def test_cross_entropy_with_its_gradient_moves_its_arguments_once(
    rows: int, classes: int, dtype: torch.dtype, chip: str
) -> None:
    """Maximum, sum and gradient are three passes over the logits: a schedule that reads them again moves twice as much.

    Whole compilations, because a template's first choice is worth nothing if resource checks refuse it.
    """
    size = Size({"rows": rows, "classes": classes})
    program = replace(get("xent_fwd_bwd"), sizes={"real": size}).export("real", dtype)
    compiled = compile(program, target=chip, cache="off")
    moved = summarise(compiled.launch_plan, Target.parse(chip)).to_json()["bytes"]
    assert len(compiled.launch_plan.steps) == 1
    assert moved["memory_bound"] >= 2 * rows * classes * dtype.itemsize
    assert moved["memory_bound_traffic"] <= MEMORY_BOUND_FACTOR * moved["memory_bound"]


class JoinedFeatures(torch.nn.Module):
    """States ``[B, D]``, made one after another, as a sequence ``[B, T, D]``; and that beside a query ``[B, D]``."""

    def forward(self, query: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        state = torch.zeros_like(query)
        states = [state := torch.tanh(state + value) for value in inputs]
        sequence = torch.stack(states, 1)
        wide = torch.nn.functional.leaky_relu(query)[:, None].expand_as(sequence)
        return sequence, torch.cat([wide, sequence, wide - sequence, wide * sequence], -1)


def test_what_is_made_from_a_stored_tensor_is_made_in_the_kernel_that_needs_it() -> None:
    """The difference is no output of the kernel that makes the sequence, though both read the same tensor."""
    batch, width, steps = 256, 36, 6
    example = tuple(torch.zeros(batch, width) for _ in range(steps + 1))
    compiled = compile(JoinedFeatures(), example, cache="off")
    row = 4 * batch * width
    made, joined = 2 * steps * row, (1 + steps + 4 * steps) * row
    summary = summarise(compiled.launch_plan, Target.parse("sm_90"))
    assert summary.launches.memory_bound == 2
    assert summary.bytes.arguments == made + joined
