"""A Swin block that trains: shifted windows, and a table of relative positions that is looked up by an index."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional


def relative_positions(window: int) -> Tensor:
    """For every pair of positions of a window the row of the table: int64 ``[window**2, window**2]``."""
    rows, columns = torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")
    row, column = rows.flatten(), columns.flatten()
    down = row[:, None] - row[None, :] + window - 1
    right = column[:, None] - column[None, :] + window - 1
    return down * (2 * window - 1) + right


def shifted_mask(side: int, window: int, shift: int) -> Tensor:
    """Additive mask ``[windows, window**2, window**2]``: -100 between positions that only the roll made neighbours."""
    stripe = torch.zeros(side, dtype=torch.int64)
    stripe[side - window : side - shift] = 1
    stripe[side - shift :] = 2
    region = 3 * stripe[:, None] + stripe[None, :]
    tiles = region.view(side // window, window, side // window, window).transpose(1, 2).reshape(-1, window * window)
    return (tiles[:, None, :] != tiles[:, :, None]).float() * -100.0


class ShiftedWindowBlock(nn.Module):
    """Shifted-window block (Liu et al. 2021, section 3.2): ``[B, side, side, D]`` to the same shape.

    Windows of ``window`` x ``window`` positions, rolled by half a window; ``window`` divides ``side``.
    """

    def __init__(self, width: int, heads: int, side: int, window: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, window // 2
        self.attention_norm, self.hidden_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.value = nn.Linear(width, width), nn.Linear(width, width)
        self.key = nn.Linear(width, width, bias=False)  # softmax does not see a bias of the keys
        self.output = nn.Linear(width, width)
        self.expand = nn.Linear(width, 4 * width)
        self.contract = nn.Linear(4 * width, width)
        self.relative_table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        self.register_buffer("relative_index", relative_positions(window))
        self.register_buffer("mask", shifted_mask(side, window, self.shift))

    def _windows(self, x: Tensor) -> Tensor:
        """``[B, side, side, D]`` to ``[B, windows, window**2, D]``."""
        batch, side, _, width = x.shape
        count, window = side // self.window, self.window
        tiles = x.view(batch, count, window, count, window, width).transpose(2, 3)
        return tiles.reshape(batch, count * count, window * window, width)

    def _attend(self, x: Tensor) -> Tensor:
        """Attention within every window: ``[B, windows, A, D]`` to the same shape."""
        batch, windows, area, width = x.shape
        query, key, value = (
            projection(x).view(batch, windows, area, self.heads, -1).transpose(2, 3)
            for projection in (self.query, self.key, self.value)
        )
        index: Tensor = self.get_buffer("relative_index")
        bias = self.relative_table[index].permute(2, 0, 1)
        scores = query @ key.transpose(-1, -2) / math.sqrt(width // self.heads)
        scores = scores + bias + self.get_buffer("mask")[:, None]
        context = torch.softmax(scores, -1) @ value
        return self.output(context.transpose(2, 3).reshape(batch, windows, area, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, side, _, width = x.shape
        count, window, shift = side // self.window, self.window, self.shift
        y = self._attend(self._windows(torch.roll(self.attention_norm(x), (-shift, -shift), (1, 2))))
        y = y.view(batch, count, count, window, window, width).transpose(2, 3).reshape(x.shape)
        x = x + torch.roll(y, (shift, shift), (1, 2))
        return x + self.contract(functional.gelu(self.expand(self.hidden_norm(x))))
