"""How many kernels well-known programs take, at a small and at a published size. Fewer is fine, more is not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mlirstitch.driver.bench.workloads import get
from mlirstitch.driver.compile import compile
from mlirstitch.runtime.program import Launch

SIZES = ("small", "real")
WORKLOADS = {"groupnorm": 1, "ln_fwd_bwd": 2, "xent_fwd_bwd": 1, "bn_relu": 1}


def three_readers(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x.sum(0), x.sum(1), x * 2


def softmax_in_the_middle(x: Tensor) -> Tensor:
    return torch.softmax(x, dim=1)


class TrainingStatistics(nn.Module):
    """What a batch norm computes in training: mean, variance, the normalised input, new running statistics."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x)


FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, tuple[int, ...]], int]] = {
    "softmax over a middle dim": (softmax_in_the_middle, {"small": (2, 24, 40), "real": (32, 512, 196)}, 1),
    "two sums and a product": (three_readers, {"small": (64, 96), "real": (4096, 1024)}, 2),
    "batch norm, training": (TrainingStatistics, {"small": (4, 8, 6, 6), "real": (32, 64, 56, 56)}, 2),
}


def launches(*program: Any) -> int:
    """Kernels that the program launches."""
    compiled = compile(*program)
    return sum(isinstance(step, Launch) for step in compiled.launch_plan.steps)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_workload_takes_no_more_kernels_than_its_reference(name: str, size: str) -> None:
    assert launches(get(name).export(size, torch.float32)) <= WORKLOADS[name]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_function_takes_no_more_kernels_than_its_reference(name: str, size: str) -> None:
    program, shapes, most = FUNCTIONS[name]
    shape = shapes[size]
    made = program(shape[1]) if isinstance(program, type) else program
    assert launches(made, (torch.zeros(shape),)) <= most


def test_kept_together_ops_are_one_kernel_from_linalg_to_ptx() -> None:
    """The number survives the passes before clustering, on named ops too."""
    square, product = "tensor<8x8xf32>", "linalg.matmul {stitch.cluster = array<i64: 5>}"
    text = f"""func.func @main(%x: {square}) -> ({square}, {square}) {{
      %zero = arith.constant 0.0 : f32
      %e = tensor.empty() : {square}
      %f = linalg.fill ins(%zero : f32) outs(%e : {square}) -> {square}
      %m = {product} ins(%x, %x : {square}, {square}) outs(%f : {square}) -> {square}
      %s = linalg.exp {{stitch.cluster = array<i64: 5>}} ins(%m : {square}) outs(%e : {square}) -> {square}
      %t = linalg.tanh ins(%s : {square}) outs(%e : {square}) -> {square}
      return %s, %t : {square}, {square}
    }}"""
    assert launches(text) == 2
    assert launches(text.replace(" {stitch.cluster = array<i64: 5>}", "")) == 1
