"""Scaled dot-product attention written out, forward and backward.

The CPU's fused attention returns the log-sum-exp of every row, which its backward uses to rebuild the probabilities
(Dao et al. 2022, "FlashAttention", algorithms 1 and 4, without the tiling).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from mlirstitch.driver.torch_import.decompositions.registry import computing, decompose
from mlirstitch.errors import ImportFailure

aten = torch.ops.aten


def _refuse_dropout(p: float) -> None:
    if p > 0.0:
        raise ImportFailure(
            f"scaled_dot_product_attention with dropout {p} draws random numbers",
            hint="put the model into eval mode, or set dropout_p=0",
        )


def _scale(query: Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(query: Tensor, key: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Scaled and masked q k^T in the computing type: [..., L, S]."""
    scores = computing(query @ key.transpose(-2, -1)) * scale
    if causal:
        rows, columns = query.shape[-2], key.shape[-2]
        keep = torch.arange(columns).unsqueeze(0) <= torch.arange(rows).unsqueeze(1)
        scores = torch.where(keep, scores, torch.full((), -math.inf, dtype=scores.dtype))
    if mask is None:
        return scores
    if mask.dtype == torch.bool:
        return torch.where(mask, scores, torch.full((), -math.inf, dtype=scores.dtype))
    return scores + computing(mask)


@decompose(aten.scaled_dot_product_attention.default)
def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """query [..., L, D], key [..., S, D], value [..., S, E] -> [..., L, E]. A fully masked row gives zeros."""
    _refuse_dropout(dropout_p)
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    scores = _scores(query, key, attn_mask, is_causal, _scale(query, scale))
    softmax = torch.softmax(scores, -1) if attn_mask is None else aten._safe_softmax.default(scores, -1)
    return softmax.to(query.dtype) @ value


@decompose(aten._scaled_dot_product_flash_attention_for_cpu.default)
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Output [B, H, L, E] and the log-sum-exp of every row [B, H, L]."""
    _refuse_dropout(dropout_p)
    scores = _scores(query, key, attn_mask, is_causal, _scale(query, scale))
    softmax = torch.softmax(scores, -1) if attn_mask is None else aten._safe_softmax.default(scores, -1)
    return softmax.to(query.dtype) @ value, torch.logsumexp(scores, -1)


@decompose(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    dropout_p: float,
    is_causal: bool,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    _refuse_dropout(dropout_p)
    factor = _scale(query, scale)
    scores = _scores(query, key, attn_mask, is_causal, factor)
    rows = computing(logsumexp).unsqueeze(-1)
    # A fully masked row has the log-sum-exp -inf and contributes nothing.
    zero = torch.zeros((), dtype=scores.dtype)
    probabilities = torch.where(rows == -math.inf, zero, (scores - rows).exp())
    g = computing(grad_out)
    d_value = probabilities.transpose(-2, -1) @ g
    d_probabilities = g @ computing(value).transpose(-2, -1)
    correction = (g * computing(out)).sum([-1], True)
    d_scores = probabilities * (d_probabilities - correction) * factor
    d_query = d_scores @ computing(key)
    d_key = d_scores.transpose(-2, -1) @ computing(query)
    return d_query.to(query.dtype), d_key.to(key.dtype), d_value.to(value.dtype)


def _refuse(name: str) -> Any:
    def rule(*args: Any, **kwargs: Any) -> Any:
        raise ImportFailure(
            f"aten.{name} is a GPU attention kernel", hint="trace the model on the CPU, or with SDPBackend.MATH"
        )

    return rule


for _name in ("_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"):
    decompose(getattr(aten, _name).default)(_refuse(_name))
