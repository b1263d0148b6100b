"""An Evoformer block that trains (AlphaFold 2, Jumper et al. 2021, supplementary information, algorithm 6).

``m`` is the alignment ``[B, S, R, cm]`` (S sequences of R residues), ``z`` the pairs ``[B, R, R, cz]``. Left out:
masks, dropout and the attention over triangle edges.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


class GatedAttention(nn.Module):
    """Gated self-attention along the last but one dim of ``[B, N, L, D]``; bias ``[B, H, L, L]`` or None."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.gate, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        batch, rows, length, width = x.shape
        x = self.norm(x)
        query, key, value = (
            projection(x).view(batch, rows, length, self.heads, -1).transpose(2, 3)
            for projection in (self.query, self.key, self.value)
        )
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        if bias is not None:
            scores = scores + bias[:, None]
        context = (torch.softmax(scores, -1) @ value).transpose(2, 3).reshape(batch, rows, length, width)
        return self.output(torch.sigmoid(self.gate(x)) * context)


class RowAttention(nn.Module):
    """Attention between the residues of one sequence, biased by the pairs (algorithm 7)."""

    def __init__(self, width: int, pair_width: int, heads: int) -> None:
        super().__init__()
        self.attention = GatedAttention(width, heads)
        self.pair_norm = nn.LayerNorm(pair_width, bias=False)  # softmax does not see one
        self.pair_bias = nn.Linear(pair_width, heads, bias=False)

    def forward(self, m: Tensor, z: Tensor) -> Tensor:
        return self.attention(m, self.pair_bias(self.pair_norm(z)).permute(0, 3, 1, 2))


class Transition(nn.Module):
    """Layer norm and a perceptron four times as wide, ReLU (algorithms 9 and 15)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.contract(functional.relu(self.expand(self.norm(x))))


class OuterProductMean(nn.Module):
    """Pairs from the alignment: the mean over sequences of outer products (algorithm 10)."""

    def __init__(self, width: int, pair_width: int, channels: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, channels), nn.Linear(width, channels)
        self.output = nn.Linear(channels * channels, pair_width)

    def forward(self, m: Tensor) -> Tensor:
        m = self.norm(m)
        outer = torch.einsum("bsic,bsjd->bijcd", self.left(m), self.right(m)) / m.shape[1]
        return self.output(outer.flatten(3))


class TriangleMultiplication(nn.Module):
    """Update of every edge from the other two of its triangles (algorithms 11, outgoing, and 12, incoming)."""

    def __init__(self, width: int, *, outgoing: bool) -> None:
        super().__init__()
        self.equation = "bikc,bjkc->bijc" if outgoing else "bkic,bkjc->bijc"
        self.norm, self.output_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, width), nn.Linear(width, width)
        self.left_gate, self.right_gate = nn.Linear(width, width), nn.Linear(width, width)
        self.gate, self.output = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, z: Tensor) -> Tensor:
        z = self.norm(z)
        left = torch.sigmoid(self.left_gate(z)) * self.left(z)
        right = torch.sigmoid(self.right_gate(z)) * self.right(z)
        edges = torch.einsum(self.equation, left, right)
        return torch.sigmoid(self.gate(z)) * self.output(self.output_norm(edges))


class EvoformerBlock(nn.Module):
    """Row and column attention, outer product mean, triangle multiplications, transitions: ``m, z`` to ``m, z``."""

    def __init__(self, width: int, pair_width: int, heads: int, channels: int = 4) -> None:
        super().__init__()
        self.rows = RowAttention(width, pair_width, heads)
        self.columns = GatedAttention(width, heads)
        self.alignment_transition = Transition(width)
        self.outer = OuterProductMean(width, pair_width, channels)
        self.outgoing = TriangleMultiplication(pair_width, outgoing=True)
        self.incoming = TriangleMultiplication(pair_width, outgoing=False)
        self.pair_transition = Transition(pair_width)

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        m = m + self.rows(m, z)
        m = m + self.columns(m.transpose(1, 2)).transpose(1, 2)
        m = m + self.alignment_transition(m)
        z = z + self.outer(m)
        z = z + self.outgoing(z)
        z = z + self.incoming(z)
        return m, z + self.pair_transition(z)


class Recycled(nn.Module):
    """A block run several times on its own results, with gradients through the last run alone (section 1.10)."""

    def __init__(self, block: nn.Module, forwards: int) -> None:
        super().__init__()
        self.block, self.forwards = block, forwards

    def forward(self, m: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            for _ in range(self.forwards - 1):
                m, z = self.block(m, z)
        return self.block(m, z)
