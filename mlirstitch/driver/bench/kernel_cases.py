"""The kernels whose PTX is measured: programs of one kernel, each with the schedule that its bar was measured with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from mlirstitch.dialects.schedule import Schedule
from mlirstitch.driver.bench import functions
from mlirstitch.driver.bench.kernel_bars import LAYER_NORM_PEERS, SOFTMAX_PEERS, Allowance, Bar, Peer, corrected_mean

Force = Callable[[Schedule], Schedule]
"""From the default schedule of a kernel to the one that its bar was measured with."""

ROWS, COLUMNS = 4096, 1024
LONG_ROWS, LONG_COLUMNS = 64, 131072


@dataclass(frozen=True)
class KernelCase:
    """One row of the table.

    Attributes:
        name: of the row.
        schedule: the bar's schedule in words; "" if the default one is measured.
        function: a function of tensors that compiles to one kernel.
        inputs: makes its inputs (uninitialised: nothing runs).
        bar: figures to hold.
        force: makes the bar's schedule; None where the default one is measured.
        peers: what other compilers make of it.
        allowance: what it may take above the bar, and why.
    """

    name: str
    schedule: str
    function: Callable[..., Any]
    inputs: Callable[[], tuple[Tensor, ...]]
    bar: Bar
    force: Force | None = None
    peers: tuple[Peer, ...] = ()
    allowance: Allowance | None = None


def two_pass_layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Layer norm on ``[R, C]`` as the formula is written: the mean as it is rounded, then squared differences."""
    centered = x - x.mean(-1, keepdim=True)
    variance = (centered * centered).mean(-1, keepdim=True)
    return centered * torch.rsqrt(variance + 1e-5) * weight + bias


def gelu_bias_residual_layer_norm(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, beta: Tensor) -> Any:
    """Bias, erf GELU, residual, layer norm on ``[R, C]``; returns the sum and its norm."""
    total = functional.gelu(x + bias) + residual
    return total, functional.layer_norm(total, x.shape[-1:], weight, beta)


def two_roots(x: Tensor, y: Tensor) -> Any:
    """``[R, C]`` twice to ``[R, C]``, ``[R]`` and ``[R, C]``: roots of different shape."""
    product = torch.tanh(x) * y
    return product, product.sum(-1), torch.sigmoid(y)


def column_sum(x: Tensor) -> Tensor:
    """``[R, C]`` to ``[C]``."""
    return x.sum(0)


def transposed_row_sum(x: Tensor, y: Tensor) -> Any:
    """``[C, R]`` and ``[R, C]``: the transpose, scaled, added and clamped ``[R, C]``, and its row sums ``[R]``."""
    total = torch.relu(x.t() * 2 + y)
    return total, total.sum(-1)


def _rows(rows: int, lanes: int, vector: int, rows_per_block: int = 1, mode: str = "resident") -> Force:
    """Template ``row`` with ``lanes`` threads for each of ``rows`` rows."""
    scheme = "warp" if lanes == 32 else "block"

    def force(default: Schedule) -> Schedule:
        return Schedule(
            template="row",
            grid=(rows // rows_per_block, 1, 1),
            block=(lanes * rows_per_block, 1, 1),
            vector=vector,
            parameters=(("lanes", lanes), ("mode", mode), ("rows_per_block", rows_per_block), ("unroll", 1)),
            schemes=tuple((position, scheme) for position, _ in default.schemes),
        )

    return force


def _row_tiles(rows: int, lanes: int, rows_per_block: int, slab: int) -> Force:
    """Template ``row_tile``: tiles of ``rows_per_block`` rows and ``lanes * slab`` chunks of 4 columns."""

    def force(default: Schedule) -> Schedule:
        return Schedule(
            template="row_tile",
            grid=(rows // rows_per_block, 1, 1),
            block=(lanes * rows_per_block, 1, 1),
            vector=4,
            parameters=(("lanes", lanes), ("rows_per_block", rows_per_block), ("slab", slab), ("vector_down", 4)),
            schemes=default.schemes,
        )

    return force


def _cluster(rows: int, blocks: int) -> Force:
    """Template ``row`` with a thread-block cluster for each of ``rows`` rows: one read, one write."""

    def force(default: Schedule) -> Schedule:
        return Schedule(
            template="row",
            grid=(rows * blocks, 1, 1),
            block=(1024, 1, 1),
            vector=4,
            parameters=(
                *(("lanes", 1024), ("mode", "resident"), ("rows_per_block", 1), ("splits", blocks), ("unroll", 1)),
            ),
            schemes=tuple((position, "cluster") for position, _ in default.schemes),
            thread_block_cluster=(blocks, 1, 1),
        )

    return force


def _column_splits(splits: int) -> Force:
    """Template ``column``: 128 columns a block, rows shared by ``splits`` blocks."""
    groups = COLUMNS // 128

    def force(default: Schedule) -> Schedule:
        return Schedule(
            template="column",
            grid=(groups * splits, 1, 1),
            block=(256, 1, 1),
            vector=4,
            parameters=(("across", 32), ("mode", "loop"), ("splits", splits), ("unroll", 4)),
            schemes=tuple((position, "grid") for position, _ in default.schemes),
            scratch=(("f32", splits * COLUMNS),),
            tickets=groups,
        )

    return force


def _matrix(dtype: torch.dtype = torch.float32, rows: int = ROWS, columns: int = COLUMNS) -> Tensor:
    return torch.empty(rows, columns, dtype=dtype)


def _layer_norm_inputs() -> tuple[Tensor, ...]:
    return _matrix(), torch.empty(COLUMNS), torch.empty(COLUMNS)


_BLOCK = _rows(ROWS, 256, 4)
_BLOCK_OF_HALVES = _rows(ROWS, 128, 8)
_WARP = _rows(ROWS, 32, 4, rows_per_block=4)
_LAYER_NORM_BLOCK, _LAYER_NORM_WARP = Bar(26, 96, 19, 2, 113), Bar(72, 0, 10, 0, 258)

KERNEL_CASES: tuple[KernelCase, ...] = (
    KernelCase(
        "layernorm",
        "block per row",
        functions.layer_norm,
        _layer_norm_inputs,
        _LAYER_NORM_BLOCK,
        _BLOCK,
        LAYER_NORM_PEERS,
        corrected_mean(4),
    ),
    KernelCase(
        "layernorm",
        "warp per row",
        functions.layer_norm,
        _layer_norm_inputs,
        _LAYER_NORM_WARP,
        _WARP,
        LAYER_NORM_PEERS,
        corrected_mean(32),
    ),
    KernelCase(
        "layernorm, two passes",
        "block per row",
        two_pass_layer_norm,
        _layer_norm_inputs,
        _LAYER_NORM_BLOCK,
        _BLOCK,
        LAYER_NORM_PEERS,
    ),
    KernelCase(
        "layernorm, two passes",
        "warp per row",
        two_pass_layer_norm,
        _layer_norm_inputs,
        _LAYER_NORM_WARP,
        _WARP,
        LAYER_NORM_PEERS,
    ),
    KernelCase(
        "softmax f32",
        "block per row",
        functions.softmax,
        lambda: (_matrix(),),
        Bar(21, 64, 16, 2, 126),
        _BLOCK,
        SOFTMAX_PEERS,
    ),
    KernelCase(
        "softmax f16",
        "block per row",
        functions.softmax,
        lambda: (_matrix(torch.float16),),
        Bar(29, 32, 14, 2, 195),
        _BLOCK_OF_HALVES,
    ),
    KernelCase(
        "softmax bf16",
        "block per row",
        functions.softmax,
        lambda: (_matrix(torch.bfloat16),),
        Bar(28, 32, 14, 2, 195),
        _BLOCK_OF_HALVES,
    ),
    KernelCase(
        "softmax 64x131072",
        "loop, 3 passes",
        functions.softmax,
        lambda: (_matrix(rows=LONG_ROWS, columns=LONG_COLUMNS),),
        Bar(32, 256, 20, 2, 231),
        _rows(LONG_ROWS, 1024, 4, mode="loop"),
    ),
    KernelCase(
        "softmax 64x131072",
        "8-block cluster",
        functions.softmax,
        lambda: (_matrix(rows=LONG_ROWS, columns=LONG_COLUMNS),),
        Bar(32, 264, 26, 8, 342),
        _cluster(LONG_ROWS, 8),
    ),
    KernelCase(
        "bias+gelu+residual+layernorm",
        "block per row",
        gelu_bias_residual_layer_norm,
        lambda: (_matrix(), torch.empty(COLUMNS), _matrix(), torch.empty(COLUMNS), torch.empty(COLUMNS)),
        Bar(31, 96, 19, 2, 255),
        _BLOCK,
        allowance=corrected_mean(4),
    ),
    KernelCase(
        "two roots",
        "block per row",
        two_roots,
        lambda: (_matrix(), _matrix()),
        Bar(28, 32, 8, 1, 192),
        _BLOCK,
    ),
    KernelCase(
        "column sum",
        "128 columns x 8 splits",
        column_sum,
        lambda: (_matrix(),),
        # 1 barrier and 90 statements were measured with atomics; the deterministic form has no bar for statements.
        # Shared memory: 4 KB, and the flag that tells which block is last.
        Bar(32, 4112, 0, 4, None),
        _column_splits(8),
    ),
    KernelCase(
        "transpose+scale+add+relu, row sum",
        "32x128 tiles",
        transposed_row_sum,
        lambda: (_matrix(rows=COLUMNS, columns=ROWS), _matrix()),
        Bar(70, 16896, None, 2, 297),
        _row_tiles(ROWS, 8, 32, 4),
    ),
)
