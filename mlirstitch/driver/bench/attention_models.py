"""Transformer blocks of the benchmark, written as the papers write them.

Attention is spelled out (matmul, scale, mask, softmax, matmul); nothing calls a fused primitive, so that the compiler
sees every op. Shapes: B batch, T sequence length, D model width, H heads.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def at_least_float32(x: Tensor) -> Tensor:
    """``x`` in float32, or in its own type if that is wider. Statistics of half-precision models are taken in it."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class MultiHeadAttention(nn.Module):
    """Self-attention over ``[B, T, D]``. ``scaled=False`` leaves out the 1/sqrt(D/H) factor, as T5 does."""

    def __init__(
        self, width: int, heads: int, *, use_bias: bool = True, scaled: bool = True, causal: bool = False
    ) -> None:
        super().__init__()
        self.heads = heads
        self.scale = 1.0 / math.sqrt(width // heads) if scaled else None
        self.causal = causal
        self.query = nn.Linear(width, width, bias=use_bias)
        self.key = nn.Linear(width, width, bias=use_bias)
        self.value = nn.Linear(width, width, bias=use_bias)
        self.output = nn.Linear(width, width, bias=use_bias)

    def forward(self, x: Tensor, mask: Tensor | None = None, position_bias: Tensor | None = None) -> Tensor:
        """``mask`` (additive) and ``position_bias`` must broadcast to ``[B, H, T, T]``."""
        batch, length, width = x.shape
        query, key, value = (
            projection(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2)
        if self.scale is not None:
            scores = scores * self.scale
        if position_bias is not None:
            scores = scores + position_bias
        if mask is not None:
            scores = scores + mask
        if self.causal:
            scores = scores.masked_fill(~causal_mask(length, x.device), float("-inf"))
        context = torch.softmax(scores, -1) @ value
        return self.output(context.transpose(1, 2).reshape(batch, length, width))


def causal_mask(length: int, device: torch.device) -> Tensor:
    """Lower triangle of True, ``[T, T]``: position i may look at positions 0..i."""
    return torch.ones(length, length, dtype=torch.bool, device=device).tril()


class BertLayer(nn.Module):
    """Encoder layer of BERT (Devlin et al. 2019): post-norm, erf GELU. ``[B, T, D]`` and mask ``[B, 1, 1, T]``."""

    def __init__(self, width: int = 768, heads: int = 12, hidden: int = 3072) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_norm = nn.LayerNorm(width, 1e-12)
        self.output_norm = nn.LayerNorm(width, 1e-12)
        self.expand = nn.Linear(width, hidden)
        self.contract = nn.Linear(hidden, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = self.attention_norm(x + self.attention(x, mask))
        return self.output_norm(x + self.contract(functional.gelu(self.expand(x))))


class Bert(nn.Module):
    """BERT encoder with embeddings and pooler: ids and token types ``[B, T]`` int64, attention mask ``[B, T]``."""

    def __init__(
        self, layers: int = 12, width: int = 768, heads: int = 12, hidden: int = 3072, vocabulary: int = 30522
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(512, width)
        self.token_types = nn.Embedding(2, width)
        self.norm = nn.LayerNorm(width, 1e-12)
        self.layers = nn.ModuleList(BertLayer(width, heads, hidden) for _ in range(layers))
        self.pooler = nn.Linear(width, width)

    def forward(self, ids: Tensor, token_types: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        length = ids.shape[1]
        x = self.norm(self.words(ids) + self.positions.weight[:length] + self.token_types(token_types))
        mask = (1.0 - attention_mask[:, None, None, :]) * -10000.0
        for layer in self.layers:
            x = layer(x, mask)
        return x, torch.tanh(self.pooler(x[:, 0]))


class PreNormBlock(nn.Module):
    """Pre-norm transformer block with GELU: GPT-2 (causal, tanh GELU) and ViT (not causal, erf GELU)."""

    def __init__(self, width: int = 768, heads: int = 12, *, causal: bool, gelu: str, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.gelu = gelu
        self.attention_norm = nn.LayerNorm(width, epsilon)
        self.hidden_norm = nn.LayerNorm(width, epsilon)
        self.attention = MultiHeadAttention(width, heads, causal=causal)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x))
        hidden = functional.gelu(self.expand(self.hidden_norm(x)), approximate=self.gelu)
        return x + self.contract(hidden)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dim (Zhang and Sennrich 2019), statistics in at least float32."""

    def __init__(self, width: int, epsilon: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        wide = at_least_float32(x)
        mean_square = wide.pow(2).mean(-1, keepdim=True)
        return self.weight * (wide * torch.rsqrt(mean_square + self.epsilon)).to(x.dtype)


class T5Block(nn.Module):
    """T5 encoder block (Raffel et al. 2020): RMSNorm, unscaled attention, relative position bias, ReLU."""

    BUCKETS = 32
    MAX_DISTANCE = 128

    def __init__(self, width: int = 512, heads: int = 8, hidden: int = 2048) -> None:
        super().__init__()
        self.attention_norm, self.hidden_norm = RMSNorm(width), RMSNorm(width)
        self.attention = MultiHeadAttention(width, heads, use_bias=False, scaled=False)
        self.relative_bias = nn.Embedding(self.BUCKETS, heads)
        self.expand = nn.Linear(width, hidden, bias=False)
        self.contract = nn.Linear(hidden, width, bias=False)

    def buckets(self, length: int, device: torch.device) -> Tensor:
        """Bucket of every pair of positions, ``[T, T]`` int64: exact when near, logarithmic when far."""
        position = torch.arange(length, device=device)
        relative = position[None, :] - position[:, None]
        half = self.BUCKETS // 2
        exact = half // 2
        distance = relative.abs()
        ratio = torch.log(distance.float().clamp_min(1) / exact) / math.log(self.MAX_DISTANCE / exact)
        far = exact + (ratio * (half - exact)).long()
        return (relative > 0).long() * half + torch.where(distance < exact, distance, far.clamp_max(half - 1))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        bias = self.relative_bias(self.buckets(x.shape[1], x.device)).permute(2, 0, 1)[None]
        x = x + self.attention(self.attention_norm(x), mask, bias)
        return x + self.contract(functional.relu(self.expand(self.hidden_norm(x))))


class SwinBlock(nn.Module):
    """Shifted-window block (Liu et al. 2021): ``x`` ``[B, S, S, D]``, mask ``[windows, 1, 49, 49]``."""

    WINDOW = 7
    SHIFT = 3

    def __init__(self, width: int = 96, heads: int = 3) -> None:
        super().__init__()
        area = self.WINDOW * self.WINDOW
        self.attention_norm, self.hidden_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = MultiHeadAttention(width, heads)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.relative_bias = nn.Parameter(torch.zeros(heads, area, area))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        batch, height, width, channels = x.shape
        window, shift = self.WINDOW, self.SHIFT
        y = torch.roll(self.attention_norm(x), (-shift, -shift), (1, 2))
        y = y.view(batch, height // window, window, width // window, window, channels)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(-1, window * window, channels)
        y = self.attention(y, mask.repeat(batch, 1, 1, 1), self.relative_bias[None])
        y = y.view(batch, height // window, width // window, window, window, channels)
        y = y.permute(0, 1, 3, 2, 4, 5).reshape(batch, height, width, channels)
        x = x + torch.roll(y, (shift, shift), (1, 2))
        return x + self.contract(functional.gelu(self.expand(self.hidden_norm(x))))


class LlamaBlock(nn.Module):
    """Llama block (Touvron et al. 2023): RMSNorm, rotary positions, grouped-query causal attention, SwiGLU."""

    def __init__(
        self, width: int = 4096, heads: int = 32, key_heads: int = 32, hidden: int = 11008, theta: float = 10000.0
    ) -> None:
        super().__init__()
        self.heads, self.key_heads, self.head_width, self.theta = heads, key_heads, width // heads, theta
        key_width = key_heads * self.head_width
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, key_width, bias=False)
        self.value = nn.Linear(width, key_width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)
        self.attention_norm, self.hidden_norm = RMSNorm(width), RMSNorm(width)

    def rotary(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        """Cosines and sines of the rotary angles, each ``[T, head width]`` in the type of ``like``."""
        exponent = torch.arange(0, self.head_width, 2, device=like.device).float() / self.head_width
        frequency = 1.0 / (self.theta**exponent)
        angle = torch.arange(length, device=like.device).float()[:, None] * frequency
        angle = torch.cat([angle, angle], -1)
        return angle.cos().to(like.dtype), angle.sin().to(like.dtype)

    @staticmethod
    def rotate(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cosine + torch.cat([-second, first], -1) * sine

    def split(self, x: Tensor, heads: int) -> Tensor:
        """``[B, T, heads * width]`` to ``[B, heads, T, width]``."""
        return x.view(x.shape[0], x.shape[1], heads, self.head_width).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        cosine, sine = self.rotary(length, x)
        y = self.attention_norm(x)
        query = self.rotate(self.split(self.query(y), self.heads), cosine, sine)
        key = self.rotate(self.split(self.key(y), self.key_heads), cosine, sine)
        value = self.split(self.value(y), self.key_heads)
        if self.key_heads != self.heads:
            repeats = self.heads // self.key_heads
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        scores = (query @ key.transpose(-1, -2)) / math.sqrt(self.head_width)
        scores = scores.masked_fill(~causal_mask(length, x.device), float("-inf"))
        weights = torch.softmax(at_least_float32(scores), -1).to(x.dtype)
        x = x + self.output((weights @ value).transpose(1, 2).reshape(batch, length, width))
        y = self.hidden_norm(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class EvoformerRowAttention(nn.Module):
    """Row attention with pair bias and gate (AlphaFold 2, Jumper et al. 2021, supplement algorithm 7).

    ``m`` is the alignment ``[S, R, cm]``, ``z`` the pair representation ``[R, R, cz]``, ``mask`` ``[S, R]``.
    """

    def __init__(self, cm: int = 256, cz: int = 128, heads: int = 8, channels: int = 32) -> None:
        super().__init__()
        self.heads, self.channels = heads, channels
        self.row_norm, self.pair_norm = nn.LayerNorm(cm), nn.LayerNorm(cz)
        self.pair_bias = nn.Linear(cz, heads, bias=False)
        self.query = nn.Linear(cm, heads * channels, bias=False)
        self.key = nn.Linear(cm, heads * channels, bias=False)
        self.value = nn.Linear(cm, heads * channels, bias=False)
        self.gate, self.output = nn.Linear(cm, heads * channels), nn.Linear(heads * channels, cm)

    def forward(self, m: Tensor, z: Tensor, mask: Tensor) -> Tensor:
        sequences, residues, _ = m.shape

        def split(x: Tensor) -> Tensor:
            return x.view(sequences, residues, self.heads, self.channels).transpose(1, 2)

        x = self.row_norm(m)
        bias = self.pair_bias(self.pair_norm(z)).permute(2, 0, 1)[None]
        scores = (split(self.query(x)) * self.channels**-0.5) @ split(self.key(x)).transpose(-1, -2)
        weights = torch.softmax(scores + (1e9 * (mask - 1))[:, None, None, :] + bias, -1)
        context = (weights @ split(self.value(x))).transpose(1, 2).reshape(sequences, residues, -1)
        return m + self.output(torch.sigmoid(self.gate(x)) * context)
