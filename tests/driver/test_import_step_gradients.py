"""Gradients of single ops, many in one training step: the update shows them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from training_harness import assert_trains_as_torch

import torch  # isort: skip  after training_harness, which loads MLIR in the right order
import torch.nn.functional as F

from torch import Tensor, nn  # isort: skip

from mlirstitch.driver.bench.training_models import TrainingCase

Op = Callable[[Tensor], Tensor]
IMAGE, ROWS = (2, 4, 9, 7), (6, 8)
INDEX = torch.tensor([[0, 3, 3], [5, 0, 3]])
KERNEL = torch.linspace(-1.0, 1.0, 4 * 4 * 9).reshape(4, 4, 3, 3)

OPS: dict[str, dict[str, tuple[tuple[int, ...], Op]]] = {
    "elementwise": {
        "gelu": (ROWS, F.gelu),
        "gelu_tanh": (ROWS, partial(F.gelu, approximate="tanh")),
        "silu": (ROWS, F.silu),
        "elu": (ROWS, F.elu),
        "softplus": (ROWS, F.softplus),
        "leaky_relu": (ROWS, F.leaky_relu),
        "hardswish": (ROWS, F.hardswish),
        "erf": (ROWS, torch.erf),
        "clamp": (ROWS, lambda x: x.clamp(-0.5, 0.5)),
        "maximum": (ROWS, lambda x: torch.maximum(x, x.flip(0))),
        "abs": (ROWS, torch.abs),
        "pow": (ROWS, lambda x: (x * x + 0.5).pow(1.5)),
        "where": (ROWS, lambda x: torch.where(x > 0, x * x, -x)),
        "prelu": ((1,), lambda w: F.prelu(torch.linspace(-1.0, 1.0, 8).to(w), w)),
    },
    "reductions and norms": {
        "softmax": (ROWS, lambda x: x.softmax(0)),
        "log_softmax": (ROWS, lambda x: x.log_softmax(-1)),
        "logsumexp": (ROWS, lambda x: x.logsumexp(-1)),
        "var": (ROWS, lambda x: x.var(-1)),
        "norm": (ROWS, lambda x: x.norm(dim=-1)),
        "prod": (ROWS, lambda x: x.prod(-1)),
        "amax": (ROWS, lambda x: x.amax(-1)),
        "max": (ROWS, lambda x: x.max(-1).values),
        "cumsum": (ROWS, lambda x: x.cumsum(-1)),
        "layer_norm": (ROWS, lambda x: F.layer_norm(x, (8,))),
        "rms_norm": (ROWS, lambda x: F.rms_norm(x, (8,), x[0])),
        "group_norm": (IMAGE, lambda x: F.group_norm(x, 2, x[0, :, 0, 0], x[1, :, 0, 0])),
        "instance_norm": (IMAGE, F.instance_norm),
    },
    "views and indices": {
        "slice": (ROWS, lambda x: x[1:, ::2]),
        "cat": (ROWS, lambda x: torch.cat([x[:2], x * 2], 0)),
        "stack": (ROWS, lambda x: torch.stack(x.unbind(1), 0)),
        "roll": (ROWS, lambda x: x.roll((1, -2), (0, 1))),
        "pad": (ROWS, lambda x: F.pad(x, (1, 2))),
        "tril": (ROWS, torch.tril),
        "repeat": (ROWS, lambda x: x.repeat(2, 1) * torch.arange(12.0)[:, None]),
        "index": (ROWS, lambda x: x[INDEX] * torch.arange(24.0).reshape(3, 8)),
        "two_indices": (ROWS, lambda x: x[INDEX, INDEX] * torch.arange(3.0)),
        "gather": (ROWS, lambda x: x.gather(1, INDEX[:, [0, 1]]) * 3),
        "index_select": (ROWS, lambda x: x.index_select(0, INDEX[0])),
        "embedding": (ROWS, lambda w: F.embedding(INDEX, w, padding_idx=3) * torch.arange(1.0, 9.0)),
        "masked_fill": (ROWS, lambda x: x.masked_fill(x > 0.5, 2.0)),
    },
    "contractions and windows": {
        "bmm": ((3, 4, 4), lambda x: x @ x.transpose(1, 2)),
        "einsum": ((3, 4, 4), lambda x: torch.einsum("bij,bkj->bik", x, x.sin())),
        "matrix_vector": (ROWS, lambda x: x @ x[0]),
        "conv": (IMAGE, lambda x: F.conv2d(x, KERNEL.to(x), padding=1)),
        "conv_weight": (KERNEL.shape, lambda w: F.conv2d(_image(w), w, w[:, 0, 0, 0], stride=2, padding=1)),
        "conv_dilated": (KERNEL.shape, lambda w: F.conv2d(_image(w), w, dilation=2)),
        "conv_groups": ((4, 2, 3, 3), lambda w: F.conv2d(_image(w), w, groups=2, padding=1)),
        "conv_depthwise": ((4, 1, 3, 3), lambda w: F.conv2d(_image(w) * w.sum(), w, groups=4)),
        "conv_strided_input": (IMAGE, lambda x: F.conv2d(x, KERNEL.to(x), stride=2)),
        "conv_strided_groups": (IMAGE, lambda x: F.conv2d(x, KERNEL[:, :2].to(x), stride=(2, 3), padding=1, groups=2)),
        "conv_unused_rest": (KERNEL.shape, lambda w: F.conv2d(_image(w), w, stride=(5, 3))),
        "conv1d": ((2, 4, 9), lambda x: F.conv1d(x, KERNEL[:, :, 0].to(x), padding=1)),
        "conv_transpose": (IMAGE, lambda x: F.conv_transpose2d(x, KERNEL.to(x), stride=2, padding=1)),
        "conv_transpose_weight": (
            (4, 2, 3, 3),
            lambda w: F.conv_transpose2d(_image(w), w, stride=(2, 1), padding=1, output_padding=(1, 0), groups=2),
        ),
        "max_pool": (IMAGE, lambda x: F.max_pool2d(x, 2)),
        "max_pool_of_ties": (IMAGE, lambda x: F.max_pool2d(x.detach().round() + (x - x.detach()), 3, 2, 1)),
        "max_pool_overlapping": (IMAGE, lambda x: F.max_pool2d(x, 3, 2, 1)),
        "max_pool_dilated": (IMAGE, lambda x: F.max_pool2d(x, (3, 2), (2, 3), (1, 1), 2, ceil_mode=True)),
        "max_pool1d": ((2, 4, 9), lambda x: F.max_pool1d(x, 3, 1, 1)),
        "max_pool_tiled": ((4, 8, 6), lambda x: F.max_pool2d(x, (2, 3))),
        "avg_pool": (IMAGE, lambda x: F.avg_pool2d(x, 3, 2, 1)),
        "avg_pool_tiled": (IMAGE, lambda x: F.avg_pool2d(x, 3)),
        "avg_pool_over_the_end": (
            IMAGE,
            lambda x: F.avg_pool2d(x, (3, 2), (2, 3), (1, 1), ceil_mode=True, count_include_pad=False),
        ),
        "avg_pool_of_cut_windows": (IMAGE, lambda x: F.avg_pool2d(x, 4, ceil_mode=True)),
        "adaptive_pool": (IMAGE, lambda x: F.adaptive_avg_pool2d(x, 3)),
        "interpolate": (IMAGE, lambda x: F.interpolate(x, scale_factor=2)),
        "bilinear": (IMAGE, lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
        "unfold": (IMAGE, lambda x: F.unfold(x, 3)),
        "pixel_shuffle": (IMAGE, lambda x: F.pixel_shuffle(x, 2)),
    },
    "losses": {
        "cross_entropy": (ROWS, lambda x: F.cross_entropy(x, torch.tensor([1, 2, 0, 7, -100, 3]))),
        "smoothed": (ROWS, lambda x: F.cross_entropy(x, torch.arange(6), label_smoothing=0.1)),
        "weighted": (ROWS, lambda x: F.cross_entropy(x, torch.arange(6), weight=torch.arange(1.0, 9.0).to(x))),
        "soft_classes": (ROWS, lambda x: F.cross_entropy(x, x.detach().softmax(-1))),
        "pixels": (IMAGE, lambda x: F.cross_entropy(x, torch.ones(2, 9, 7, dtype=torch.int64))),
        "l1": (ROWS, lambda x: F.l1_loss(x, torch.zeros(()).expand(ROWS))),
        "smooth_l1": (ROWS, lambda x: F.smooth_l1_loss(x, torch.zeros(ROWS))),
        "huber": (ROWS, lambda x: F.huber_loss(x, torch.zeros(ROWS).to(x))),
        "logits": (ROWS, lambda x: F.binary_cross_entropy_with_logits(x, torch.ones(ROWS))),
        "binary": (ROWS, lambda x: F.binary_cross_entropy(x.sigmoid(), torch.ones(ROWS).to(x))),
        "divergence": (ROWS, lambda x: F.kl_div(x.log_softmax(-1), torch.full(ROWS, 0.125), reduction="batchmean")),
    },
}


def _image(like: Tensor) -> Tensor:
    return torch.linspace(-1.0, 1.0, 2 * 4 * 9 * 7).reshape(IMAGE).sin().to(like)


class Many(nn.Module):
    """One weight an op; the sum of squares of what the ops give."""

    def __init__(self, ops: dict[str, tuple[tuple[int, ...], Op]]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.ops = {name: op for name, (_, op) in ops.items()}
        self.weights = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(shape, generator=generator)) for name, (shape, _) in ops.items()}
        )

    def forward(self, scale: Tensor) -> Tensor:
        results = [op(self.weights[name]) for name, op in self.ops.items()]
        return torch.stack([(y * y * scale).mean() for y in results]).sum()


@pytest.mark.parametrize("group", OPS)
def test_gradients_are_torchs(group: str) -> None:
    case = TrainingCase(Many(OPS[group]), lambda loss: loss, (torch.ones(()),), ())
    step = assert_trains_as_torch(case, partial(torch.optim.SGD, lr=1.0), steps=1)
    assert "tm_tensor" not in step.mlir
