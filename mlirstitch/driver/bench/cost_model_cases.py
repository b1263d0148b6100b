"""Clusters whose schedules the latency evaluator ranks, for ``mlirstitch bench --cost-models``.

Each is a function that is stitched to one kernel, large enough to fill the chip, small enough for the emulated device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mlirstitch.driver.bench import functions

F16, F32 = torch.float16, torch.float32


@dataclass(frozen=True)
class ClusterCase:
    """One row of the table.

    Attributes:
        name: of the row.
        function: a function of tensors that is stitched to one kernel.
        inputs: makes its inputs.
        gradients: ``function`` computes gradients, which have to be expanded first.
    """

    name: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    gradients: bool = False


def _floats(*shapes: tuple[int, ...], dtype: torch.dtype = F32) -> Callable[[], tuple[Tensor, ...]]:
    return lambda: tuple(torch.empty(shape, dtype=dtype) for shape in shapes)


def column_sum(x: Tensor) -> Tensor:
    """``[R, C]`` to ``[C]``."""
    return x.sum(0)


def column_norm(x: Tensor) -> Tensor:
    """``[R, C]`` with zero mean and unit variance in every column."""
    return (x - x.mean(0)) * torch.rsqrt(x.var(0) + 1e-5)


def row_and_column_sums(x: Tensor) -> Any:
    """``[R, C]`` to sums of rows ``[R]`` and sums of squares of columns ``[C]``."""
    return x.sum(1), (x * x).sum(0)


def bias_gelu(x: Tensor, bias: Tensor) -> Tensor:
    """``[R, C]`` with bias ``[C]``, erf GELU."""
    return functional.gelu(x + bias)


def swiglu(x: Tensor, y: Tensor) -> Tensor:
    """``[R, C]`` twice: SiLU of one times the other."""
    return functional.silu(x) * y


def transposed_gate(x: Tensor, y: Tensor) -> Tensor:
    """``[C, R]`` and ``[R, C]``: GELU of the transpose, times the other ``[R, C]``."""
    return functional.gelu(x.t()) * y


def transposed_row_sum(x: Tensor, y: Tensor) -> Any:
    """``[C, R]`` and ``[R, C]``: the transpose, scaled, added and clamped ``[R, C]``, and its row sums ``[R]``."""
    total = torch.relu(x.t() * 2 + y)
    return total, total.sum(-1)


def merged_heads(x: Tensor) -> Tensor:
    """``[B, H, T, D]`` to ``[B, T, H, D]``, scaled."""
    return x.permute(0, 2, 1, 3).contiguous() * 2


def _cross_entropy_inputs() -> tuple[Tensor, ...]:
    return torch.empty(256, 8192), torch.zeros(256, dtype=torch.int64)


CLUSTER_CASES: tuple[ClusterCase, ...] = (
    ClusterCase("softmax, short rows, f16", functions.softmax, _floats((32768, 64), dtype=F16)),
    ClusterCase("softmax, f16", functions.softmax, _floats((4096, 768), dtype=F16)),
    ClusterCase("softmax, long rows", functions.softmax, _floats((256, 16384))),
    ClusterCase("attention scores", functions.attention_scores, _floats((8, 8, 256, 256), (8, 1, 1, 256))),
    ClusterCase("layer norm", functions.layer_norm, _floats((4096, 768), (768,), (768,))),
    ClusterCase("layer norm, f16", functions.layer_norm, _floats((4096, 768), (768,), (768,), dtype=F16)),
    ClusterCase(
        "layer norm with gradient",
        functions.layer_norm_with_gradient,
        _floats((1024, 2048), (2048,), (2048,), (1024, 2048)),
        gradients=True,
    ),
    ClusterCase("RMS norm", functions.rms_norm, _floats((4096, 1024), (1024,))),
    ClusterCase("group norm", functions.group_norm, _floats((8, 128, 64, 64), (128,), (128,))),
    ClusterCase(
        "cross entropy with gradient", functions.cross_entropy_with_gradient, _cross_entropy_inputs, gradients=True
    ),
    ClusterCase("column sum", column_sum, _floats((1024, 4096))),
    ClusterCase("column norm", column_norm, _floats((2048, 2048))),
    ClusterCase("row and column sums", row_and_column_sums, _floats((2048, 4096))),
    ClusterCase("bias and GELU, f16", bias_gelu, _floats((4096, 1024), (1024,), dtype=F16)),
    ClusterCase("SwiGLU, f16", swiglu, _floats((4096, 1024), (4096, 1024), dtype=F16)),
    ClusterCase("AdamW step", functions.adam, _floats((2_000_000,), (2_000_000,), (2_000_000,), (2_000_000,), ())),
    ClusterCase("batch norm and ReLU", functions.batch_norm_relu, _floats((8, 64, 56, 56), *[(64,)] * 4)),
    ClusterCase("transposed gate, f16", transposed_gate, _floats((2048, 1024), (1024, 2048), dtype=F16)),
    ClusterCase("transpose and row sum", transposed_row_sum, _floats((512, 4096), (4096, 512))),
    ClusterCase("merged heads, f16", merged_heads, _floats((8, 512, 16, 64), dtype=F16)),
)
