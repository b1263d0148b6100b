"""Recommendation, text-recognition and speech models of the benchmark. B batch, T steps, D width."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from mlirstitch.driver.bench.attention_models import MultiHeadAttention


class GRUCell(nn.Module):
    """Gated recurrent unit whose input projection is taken outside the loop over steps."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.input_projection, self.state_projection = nn.Linear(inputs, 3 * width), nn.Linear(width, 3 * width)

    def step(self, projected: Tensor, state: Tensor, attention: Tensor | None = None) -> Tensor:
        """One step: projected input ``[B, 3 D]``, state ``[B, D]``; ``attention`` ``[B, 1]`` scales the update gate.

        With attention it is the AUGRU of DIEN (Zhou et al. 2019, section "Interest Evolving Layer").
        """
        input_reset, input_update, input_new = projected.chunk(3, -1)
        state_reset, state_update, state_new = self.state_projection(state).chunk(3, -1)
        reset, update = torch.sigmoid(input_reset + state_reset), torch.sigmoid(input_update + state_update)
        new = torch.tanh(input_new + reset * state_new)
        if attention is not None:
            update = attention * update
        return (1 - update) * state + update * new


class DIEN(nn.Module):
    """Deep interest evolution network: GRU over the history, attention, AUGRU, then a small MLP with PReLU.

    History items and categories ``[B, T]`` int64, target item and category ``[B]`` int64, mask ``[B, T]``.
    """

    def __init__(self, vocabulary: int = 1000, embedding: int = 18, steps: int = 20) -> None:
        super().__init__()
        width = 2 * embedding
        self.steps = steps
        self.items, self.categories = nn.Embedding(vocabulary, embedding), nn.Embedding(vocabulary, embedding)
        self.extractor, self.evolution = GRUCell(width, width), GRUCell(width, width)
        self.target_projection = nn.Linear(width, width)
        self.attention = nn.ModuleList([nn.Linear(4 * width, 80), nn.Linear(80, 40), nn.Linear(40, 1)])
        self.output = nn.ModuleList([nn.Linear(4 * width, 200), nn.Linear(200, 80), nn.Linear(80, 2)])
        self.slopes = nn.ParameterList([torch.full((200,), 0.25), torch.full((80,), 0.25)])

    def attend(self, interests: Tensor, target: Tensor, mask: Tensor) -> Tensor:
        """Weight of every step ``[B, T]``, a softmax over the steps that the mask keeps."""
        query = functional.leaky_relu(self.target_projection(target))[:, None].expand_as(interests)
        x = torch.cat([query, interests, query - interests, query * interests], -1)
        for layer in self.attention[:-1]:
            x = torch.sigmoid(layer(x))
        scores = self.attention[-1](x).squeeze(-1)
        lowest = max(-(2.0**32) + 1, torch.finfo(scores.dtype).min)  # float16 has no -2^32
        return torch.softmax(scores.masked_fill(mask == 0, lowest), -1)

    def forward(self, items: Tensor, categories: Tensor, item: Tensor, category: Tensor, mask: Tensor) -> Tensor:
        history = torch.cat([self.items(items), self.categories(categories)], -1)
        target = torch.cat([self.items(item), self.categories(category)], -1)

        projected, state, states = self.extractor.input_projection(history), torch.zeros_like(target), []
        for step in range(self.steps):
            state = self.extractor.step(projected[:, step], state)
            states.append(state)
        interests = torch.stack(states, 1)

        weights = self.attend(interests, target, mask)
        projected, state = self.evolution.input_projection(interests), torch.zeros_like(target)
        for step in range(self.steps):
            state = self.evolution.step(projected[:, step], state, weights[:, step : step + 1])

        summary = (history * mask[..., None]).sum(1)
        x = torch.cat([target, summary, target * summary, state], -1)
        for layer, slope in zip(self.output[:-1], self.slopes, strict=True):
            x = layer(x)
            x = torch.where(x > 0, x, slope * x)
        return torch.softmax(self.output[-1](x), -1)


class BiLSTM(nn.Module):
    """Bidirectional LSTM over ``[T, B, inputs]`` with a linear layer on both states: ``[T, B, outputs]``."""

    def __init__(self, inputs: int, width: int, outputs: int) -> None:
        super().__init__()
        self.width = width
        self.forward_input, self.forward_state = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width)
        self.backward_input, self.backward_state = nn.Linear(inputs, 4 * width), nn.Linear(width, 4 * width)
        self.output = nn.Linear(2 * width, outputs)

    def scan(self, projected: Tensor, state_projection: nn.Linear, *, backward: bool) -> Tensor:
        """States of all steps ``[T, B, width]`` from projected inputs ``[T, B, 4 width]``."""
        steps, batch, _ = projected.shape
        hidden = cell = projected.new_zeros(batch, self.width)
        states = []
        for step in reversed(range(steps)) if backward else range(steps):
            i, f, g, o = (projected[step] + state_projection(hidden)).chunk(4, -1)
            cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
            hidden = torch.sigmoid(o) * torch.tanh(cell)
            states.append(hidden)
        return torch.stack(states[::-1] if backward else states)

    def forward(self, x: Tensor) -> Tensor:
        ahead = self.scan(self.forward_input(x), self.forward_state, backward=False)
        back = self.scan(self.backward_input(x), self.backward_state, backward=True)
        return self.output(torch.cat([ahead, back], -1))


class CRNN(nn.Module):
    """Text recognition (Shi et al. 2015): 7 convolutions and 2 BiLSTM on ``[B, 1, 32, W]``; log-probabilities."""

    CHANNELS = (64, 128, 256, 256, 512, 512, 512)
    KERNELS = (3, 3, 3, 3, 3, 3, 2)
    PADDINGS = (1, 1, 1, 1, 1, 1, 0)

    def __init__(self, divisor: int = 1, width: int = 256, classes: int = 37) -> None:
        super().__init__()
        channels = [1] + [c // divisor for c in self.CHANNELS]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(channels[i], channels[i + 1], kernel, padding=padding)
            for i, (kernel, padding) in enumerate(zip(self.KERNELS, self.PADDINGS, strict=True))
        )
        self.norms = nn.ModuleDict({str(i): nn.BatchNorm2d(channels[i + 1]) for i in (2, 4, 6)})
        self.first, self.second = BiLSTM(channels[7], width, width), BiLSTM(width, width, classes)

    def forward(self, x: Tensor) -> Tensor:
        for i, convolution in enumerate(self.convolutions):
            x = convolution(x)
            if str(i) in self.norms:
                x = self.norms[str(i)](x)
            x = functional.relu(x)
            if i in (0, 1):
                x = functional.max_pool2d(x, 2, 2)
            elif i in (3, 5):
                x = functional.max_pool2d(x, (2, 2), (2, 1), (0, 1))
        x = x.squeeze(2).permute(2, 0, 1)
        return functional.log_softmax(self.second(self.first(x)), -1)


class SpeechLayer(nn.Module):
    """Pre-norm encoder layer with ReLU."""

    def __init__(self, width: int, heads: int, hidden: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, heads)
        self.attention_norm, self.hidden_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.expand, self.contract = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.attention(self.attention_norm(x), mask)
        return x + self.contract(functional.relu(self.expand(self.hidden_norm(x))))


class SpeechEncoder(nn.Module):
    """Speech-Transformer encoder (Dong et al. 2018): two strided convolutions, sinusoidal positions, pre-norm layers.

    ``x`` is ``[B, T, features]``, mask ``[B, 1, 1, T / 4]``.
    """

    CHANNELS = 32

    def __init__(
        self, layers: int = 2, width: int = 256, heads: int = 4, hidden: int = 2048, features: int = 80
    ) -> None:
        super().__init__()
        self.width = width
        self.first = nn.Conv2d(1, self.CHANNELS, 3, 2, 1)
        self.second = nn.Conv2d(self.CHANNELS, self.CHANNELS, 3, 2, 1)
        self.project = nn.Linear(self.CHANNELS * ((features + 3) // 4), width)
        self.layers = nn.ModuleList(SpeechLayer(width, heads, hidden) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def positions(self, length: int, like: Tensor) -> Tensor:
        """Sinusoidal position encoding ``[T, D]`` (Vaswani et al. 2017, section 3.5), sines and cosines interleaved."""
        position = torch.arange(length, device=like.device).float()[:, None]
        step = torch.arange(0, self.width, 2, device=like.device).float()
        angle = position * torch.exp(step * (-math.log(10000.0) / self.width))
        return torch.stack([torch.sin(angle), torch.cos(angle)], -1).reshape(length, self.width).to(like.dtype)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = functional.relu(self.second(functional.relu(self.first(x[:, None]))))
        batch, channels, length, features = y.shape
        y = self.project(y.transpose(1, 2).reshape(batch, length, channels * features)) * math.sqrt(self.width)
        y = y + self.positions(length, y)
        for layer in self.layers:
            y = layer(y, mask)
        return self.norm(y)
