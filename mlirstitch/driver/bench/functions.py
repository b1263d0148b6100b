"""Small functions of the benchmark: one or two norms, softmaxes, an optimizer step, each with its gradient if trained.

Rows are R, columns C; every function takes float tensors of one type unless it says otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def softmax(x: Tensor) -> Tensor:
    """``[R, C]``, over the last dim."""
    return torch.softmax(x, -1)


def log_softmax(x: Tensor) -> Tensor:
    """``[R, C]``, over the last dim."""
    return functional.log_softmax(x, -1)


def attention_scores(scores: Tensor, mask: Tensor) -> Tensor:
    """Scaled and masked softmax of ``[B, H, T, T]`` with an additive mask ``[B, 1, 1, T]``."""
    return torch.softmax(scores * 0.125 + mask, -1)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """``[R, C]`` with weight and bias ``[C]``."""
    return functional.layer_norm(x, x.shape[-1:], weight, bias)


def rms_norm(x: Tensor, weight: Tensor) -> Tensor:
    """``[R, C]`` with weight ``[C]``, computed in the type of ``x``."""
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


def gelu_bias_residual_layer_norm(x: Tensor, bias: Tensor, residual: Tensor, weight: Tensor, beta: Tensor) -> Tensor:
    """Tail of a feed-forward layer: bias, erf GELU, residual, layer norm on ``[R, C]``."""
    return functional.layer_norm(functional.gelu(x + bias) + residual, x.shape[-1:], weight, beta)


def adam(p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of AdamW (Loshchilov and Hutter 2019) on flat tensors ``[N]``; ``step`` is a 0-d float."""
    beta1, beta2, rate, epsilon, decay = 0.9, 0.999, 1e-3, 1e-8, 1e-2
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    m_hat, v_hat = m / (1 - beta1**step), v / (1 - beta2**step)
    return p - rate * (m_hat / (torch.sqrt(v_hat) + epsilon) + decay * p), m, v


def cross_entropy_with_gradient(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss (0-d) of logits ``[R, C]`` and int64 classes ``[R]``, and its gradient ``[R, C]``."""
    gradient, loss = torch.func.grad_and_value(lambda logits: functional.cross_entropy(logits, target))(x)
    return loss, gradient


def layer_norm_with_gradient(x: Tensor, weight: Tensor, bias: Tensor, gradient: Tensor) -> tuple[Tensor, ...]:
    """Layer norm of ``[R, C]`` and the gradients of x, weight and bias for the output gradient ``[R, C]``."""
    result, vjp = torch.func.vjp(layer_norm, x, weight, bias)[:2]
    return (result, *vjp(gradient))


def batch_norm_relu(x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Inference batch norm with running statistics ``[C]`` and ReLU on ``[N, C, H, W]``."""
    return functional.relu(functional.batch_norm(x, mean, variance, weight, bias, False))


def group_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """32 groups on ``[N, C, H, W]``, as in diffusion models."""
    return functional.group_norm(x, 32, weight, bias)
