"""Small models with loss and data, for training steps: what import, partition plans and their tests are tried on.

Sizes are arguments. By default the batch is 8, and widths, heads, classes and lengths divide by 2, 4, 6 and 8 where the
model allows, so that meshes of that many devices split them evenly; other sizes give uneven parts. Shapes in the texts:
B batch, T sequence length, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlirstitch.driver.bench.attention_models import MultiHeadAttention, PreNormBlock
from mlirstitch.driver.bench.evoformer import EvoformerBlock, Recycled
from mlirstitch.driver.bench.window_attention import ShiftedWindowBlock

SEED = 0


@dataclass(frozen=True)
class TrainingCase:
    """A model, and one batch to train it on: ``loss(model(*inputs), *targets)`` is a 0-d tensor, a mean over the batch.

    The model is in training mode. On the meta device neither weights nor data have values.
    """

    model: nn.Module
    loss: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]
    targets: tuple[Tensor, ...]


@contextmanager
def _seeded(device: str) -> Iterator[None]:
    """Everything made inside lies on the device and has the same values every time; the global generator is kept."""
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(SEED)
        yield


def cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """Mean over all positions; logits ``[..., V]``, int64 classes ``[...]``."""
    return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), classes.reshape(-1))


def _tokens(vocabulary: int, batch: int, length: int) -> Tensor:
    return torch.randint(0, vocabulary, (batch, length))


# Perceptron and convolutions --------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    """``[B, D]`` to ``[B, D]`` through one hidden layer, erf GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(functional.gelu(self.expand(x)))


def mlp(*, batch: int = 8, width: int = 24, hidden: int = 48, device: str = "cpu") -> TrainingCase:
    """A perceptron with one hidden layer, mean squared error."""
    with _seeded(device):
        model = Perceptron(width, hidden)
        data = torch.randn(batch, width), torch.randn(batch, width)
    return TrainingCase(model, functional.mse_loss, data[:1], data[1:])


class Convolutions(nn.Module):
    """Two 3x3 convolutions with batch norm, pooled in between: ``[B, 3, side, side]`` to ``[B, classes]``."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, 2 * channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(2 * channels)
        self.classify = nn.Linear(2 * channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(functional.relu(self.first_norm(self.first(x))), 2)
        x = functional.relu(self.second_norm(self.second(x)))
        return self.classify(x.mean((2, 3)))


def cnn(*, batch: int = 8, channels: int = 24, side: int = 8, classes: int = 24, device: str = "cpu") -> TrainingCase:
    """A convolutional classifier with batch norm (running statistics are state), cross-entropy. ``side`` is even."""
    with _seeded(device):
        model = Convolutions(channels, classes)
        images, labels = torch.randn(batch, 3, side, side), torch.randint(0, classes, (batch,))
    return TrainingCase(model, cross_entropy, (images,), (labels,))


# Transformers -----------------------------------------------------------------------------------------------------


class FusedAttention(MultiHeadAttention):
    """The same attention by torch's ``scaled_dot_product_attention``."""

    def forward(self, x: Tensor, mask: Tensor | None = None, position_bias: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            projection(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        context = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(context.transpose(1, 2).reshape(batch, length, width))


def _block(hidden: int, heads: int, causal: bool, fused_attention: bool) -> PreNormBlock:
    block = PreNormBlock(hidden, heads, causal=causal, gelu="tanh")
    if fused_attention:
        block.attention = FusedAttention(hidden, heads, causal=causal)
    # Softmax does not see a bias of the keys: its gradient would be rounding errors, which Adam blows up.
    block.attention.key = nn.Linear(hidden, hidden, bias=False)
    return block


def transformer_block(
    *,
    batch: int = 8,
    sequence: int = 24,
    hidden: int = 48,
    heads: int = 24,
    causal: bool = False,
    fused_attention: bool = False,
    device: str = "cpu",
) -> TrainingCase:
    """One pre-norm block on ``[B, T, D]``, mean squared error."""
    with _seeded(device):
        model = _block(hidden, heads, causal, fused_attention)
        data = torch.randn(batch, sequence, hidden), torch.randn(batch, sequence, hidden)
    return TrainingCase(model, functional.mse_loss, data[:1], data[1:])


class GPT(nn.Module):
    """Decoder of GPT-2 (Radford et al. 2019): tokens ``[B, T]`` to logits ``[B, T, V]``; learned positions, pre-norm.

    ``tied``: the output projection is the embedding table.
    """

    def __init__(
        self, layers: int, hidden: int, heads: int, sequence: int, vocabulary: int, tied: bool, fused_attention: bool
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.positions = nn.Parameter(torch.randn(sequence, hidden) * 0.02)
        self.blocks = nn.ModuleList(_block(hidden, heads, True, fused_attention) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        if tied:
            nn.init.normal_(self.words.weight, std=0.1)
            self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def gpt(
    layers: int = 2,
    *,
    batch: int = 8,
    sequence: int = 24,
    hidden: int = 48,
    heads: int = 24,
    vocabulary: int = 96,
    tied: bool = False,
    fused_attention: bool = False,
    device: str = "cpu",
) -> TrainingCase:
    """A GPT with cross-entropy on the next token."""
    with _seeded(device):
        model = GPT(layers, hidden, heads, sequence, vocabulary, tied, fused_attention)
        data = _tokens(vocabulary, batch, sequence + 1)
    return TrainingCase(model, cross_entropy, (data[:, :-1].contiguous(),), (data[:, 1:].contiguous(),))


def gpt_large(
    layers: int = 96,
    *,
    batch: int = 512,
    sequence: int = 2048,
    hidden: int = 12288,
    heads: int = 96,
    vocabulary: int = 51200,
    tied: bool = False,
    fused_attention: bool = False,
) -> TrainingCase:
    """GPT-3 175B (Brown et al. 2020, table 2.1) on the meta device: shapes alone, nothing is allocated.

    The vocabulary is rounded up from 50,257 so that meshes divide it, as Megatron-LM does.
    """
    return gpt(
        layers,
        batch=batch,
        sequence=sequence,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        tied=tied,
        fused_attention=fused_attention,
        device="meta",
    )


class TiedLanguageModel(nn.Module):
    """Tokens ``[B, T]`` to logits ``[B, T, V]``; one table ``[V, D]`` embeds and projects (Press and Wolf 2017)."""

    def __init__(self, vocabulary: int, hidden: int) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.mix = nn.Linear(hidden, hidden)
        self.head = nn.Linear(hidden, vocabulary, bias=False)
        nn.init.normal_(self.words.weight, std=0.1)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens)
        return self.head(x + torch.tanh(self.mix(self.norm(x))))


def tied(
    *, batch: int = 8, sequence: int = 24, hidden: int = 48, vocabulary: int = 96, device: str = "cpu"
) -> TrainingCase:
    """A language model whose embedding and output projection are one weight, cross-entropy."""
    with _seeded(device):
        model = TiedLanguageModel(vocabulary, hidden)
        data = _tokens(vocabulary, batch, sequence + 1)
    return TrainingCase(model, cross_entropy, (data[:, :-1].contiguous(),), (data[:, 1:].contiguous(),))


# Mixtures of experts ----------------------------------------------------------------------------------------------


class Experts(nn.Module):
    """One perceptron an expert: ``[B, E, C, D]``, C tokens of each example for each of E experts, to the same shape."""

    def __init__(self, experts: int, width: int, hidden: int) -> None:
        super().__init__()
        self.expand = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.contract = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(torch.einsum("becd,edh->bech", x, self.expand))
        return torch.einsum("bech,ehd->becd", hidden, self.contract)


class SoftMixture(nn.Module):
    """Soft mixture of experts (Puigcerver et al. 2023, section 2.1), residual: ``[B, T, D]`` to ``[B, T, D]``.

    Every slot of an expert is a weighted mean of all tokens, every token a weighted mean of all slots.
    """

    def __init__(self, width: int, hidden: int, experts: int, slots: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.slots = nn.Parameter(torch.randn(width, experts, slots) * width**-0.5)
        self.experts = Experts(experts, width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        logits = torch.einsum("btd,dec->btec", y, self.slots)
        dispatch = torch.softmax(logits, 1)
        combine = torch.softmax(logits.flatten(2), -1).view_as(logits)
        done = self.experts(torch.einsum("btec,btd->becd", dispatch, y))
        return x + torch.einsum("btec,becd->btd", combine, done)


class SwitchMixture(nn.Module):
    """Switch layer (Fedus et al. 2021, section 2.1) without a capacity limit, residual: ``[B, T, D]`` to the same.

    A token goes to the expert with the largest gate alone; dispatch is a product with a one-hot mask.
    """

    def __init__(self, width: int, hidden: int, experts: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.gate = nn.Linear(width, experts, bias=False)
        self.experts = Experts(experts, width, hidden)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        gates = torch.softmax(self.gate(y), -1)
        positions = torch.arange(gates.shape[-1], device=x.device)
        chosen = (gates.argmax(-1, keepdim=True) == positions).to(x.dtype)
        mask = chosen.transpose(1, 2).unsqueeze(-1)
        done = self.experts(mask * y.unsqueeze(1))
        return x + ((gates * chosen).transpose(1, 2).unsqueeze(-1) * done).sum(1)


def moe(
    *,
    batch: int = 8,
    sequence: int = 12,
    width: int = 24,
    hidden: int = 48,
    experts: int = 24,
    slots: int = 2,
    routing: str = "soft",
    device: str = "cpu",
) -> TrainingCase:
    """A mixture of experts, mean squared error. ``routing``: "soft", or "top1" (which has no use for ``slots``)."""
    with _seeded(device):
        if routing == "soft":
            model: nn.Module = SoftMixture(width, hidden, experts, slots)
        elif routing == "top1":
            model = SwitchMixture(width, hidden, experts)
        else:
            raise ValueError(f"routing {routing!r} is neither soft nor top1")
        data = torch.randn(batch, sequence, width), torch.randn(batch, sequence, width)
    return TrainingCase(model, functional.mse_loss, data[:1], data[1:])


# Swin and Evoformer -----------------------------------------------------------------------------------------------


def swin_block(
    *, batch: int = 8, side: int = 8, window: int = 4, hidden: int = 48, heads: int = 24, device: str = "cpu"
) -> TrainingCase:
    """One block with shifted windows on ``[B, side, side, D]``, mean squared error. ``window`` divides ``side``."""
    with _seeded(device):
        model = ShiftedWindowBlock(hidden, heads, side, window)
        data = torch.randn(batch, side, side, hidden), torch.randn(batch, side, side, hidden)
    return TrainingCase(model, functional.mse_loss, data[:1], data[1:])


def _pair_loss(output: tuple[Tensor, Tensor], alignment: Tensor, pairs: Tensor) -> Tensor:
    return functional.mse_loss(output[0], alignment) + functional.mse_loss(output[1], pairs)


def evoformer_block(
    *,
    batch: int = 8,
    sequences: int = 8,
    residues: int = 8,
    alignment_width: int = 24,
    pair_width: int = 24,
    heads: int = 8,
    forwards: int = 1,
    device: str = "cpu",
) -> TrainingCase:
    """An Evoformer block on alignment ``[B, S, R, cm]`` and pairs ``[B, R, R, cz]``, mean squared errors.

    ``forwards``: how often the block runs on its own results; gradients go through the last run only, as in the
    recycling of AlphaFold 2.
    """
    with _seeded(device):
        model: nn.Module = EvoformerBlock(alignment_width, pair_width, heads)
        if forwards > 1:
            model = Recycled(model, forwards)
        shapes = (batch, sequences, residues, alignment_width), (batch, residues, residues, pair_width)
        inputs, targets = (tuple(torch.randn(shape) for shape in shapes) for _ in range(2))
    return TrainingCase(model, _pair_loss, inputs, targets)


CASES: dict[str, Callable[..., TrainingCase]] = {
    "mlp": mlp,
    "transformer_block": transformer_block,
    "gpt": gpt,
    "cnn": cnn,
    "moe": moe,
    "swin_block": swin_block,
    "evoformer_block": evoformer_block,
    "tied": tied,
}
"""The models by name, in the order of result tables."""
