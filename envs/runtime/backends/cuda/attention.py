"""Scaled dot-product attention in plain ops: what the CPU's fused ops compute, on any device."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    attn_mask: Tensor | None = None,
    scale: float | None = None,
) -> tuple[Tensor, Tensor]:
    """Computes `aten._scaled_dot_product_flash_attention_for_cpu`, which knows no dropout.

    Returns:
        The output, laid out as the query, and the logarithms of the softmax's sums.
    """
    scores = _scores(query, key, is_causal, attn_mask, scale)
    sums = scores.logsumexp(-1)
    output = (scores - sums.unsqueeze(-1)).exp().to(value.dtype) @ value
    return torch.empty_like(query).copy_(output), _heads_inside(sums)


def attention_backward(
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
    """Computes `aten._scaled_dot_product_flash_attention_for_cpu_backward`.

    Returns:
        The gradients of query, key and value, laid out as (batch, position, head, feature).
    """
    scores = _scores(query, key, is_causal, attn_mask, scale)
    shares = (scores - logsumexp.unsqueeze(-1)).exp()
    of_shares = (grad_out @ value.mT).to(shares.dtype)
    of_sums = (grad_out * out).to(shares.dtype).sum(-1, keepdim=True)
    of_scores = (shares * (of_shares - of_sums) * _scale(query, scale)).to(query.dtype)
    shares = shares.to(query.dtype)
    found = of_scores @ key, of_scores.mT @ query, shares.mT @ grad_out
    return _heads_inside(found[0]), _heads_inside(found[1]), _heads_inside(found[2])


def _scale(query: Tensor, scale: float | None) -> float:
    return 1 / math.sqrt(query.shape[-1]) if scale is None else scale


def _scores(query: Tensor, key: Tensor, is_causal: bool, mask: Tensor | None, scale: float | None) -> Tensor:
    scores = (query @ key.mT).to(torch.promote_types(query.dtype, torch.float32)) * _scale(query, scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    return scores if mask is None else scores + mask


def _heads_inside(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)
