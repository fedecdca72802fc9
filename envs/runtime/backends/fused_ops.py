"""Fused ops that only some devices have, by ops that all have: attention, and gradients of RMS norms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from graphs.system.errors import InputError


def attention(
    query: Tensor, key: Tensor, value: Tensor, *settings: Any, attn_mask: Any = None, scale: Any = None
) -> tuple[Tensor, Tensor]:
    """Computes `aten._scaled_dot_product_flash_attention_for_cpu`, which knows no dropout.

    Returns:
        The output, laid out as the query, and the logarithms of the softmax's sums.
    """
    is_causal = any(settings[1:])
    scores = (query @ key.mT).to(torch.promote_types(query.dtype, torch.float32))
    scores = scores * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, -math.inf)
    sums = (scores if attn_mask is None else scores + attn_mask).logsumexp(-1)
    output = _attend((query, key, value, attn_mask), 0.0, is_causal, scale)
    return torch.empty_like(query).copy_(output), _heads_inside(sums)


def attention_backward(grad: Tensor, *saved: Any, attn_mask: Any = None, scale: Any = None) -> list[Any]:
    """Computes `aten._scaled_dot_product_flash_attention_for_cpu_backward`; heads are laid out inside."""
    unread = None, None, 0, 0, 0.0, [False] * 4
    return efficient_attention_backward(grad, *saved[:3], attn_mask, *unread, saved[6], scale=scale)[:3]


def efficient_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Any, keeps_sums: bool, *settings: Any, scale: Any = None
) -> tuple[Tensor, ...]:
    """Computes `aten._scaled_dot_product_efficient_attention`, but for the sums of the softmax, which are 0.

    The seed is that of the dropout, and the offset is 1 if a GPU drew its random numbers.
    """
    dropout_p, is_causal = (*settings, 0.0)[0], any(settings[1:])
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    seed = torch.randint_like(seed, 2**62) if dropout_p else seed  # without dropout nothing is drawn
    output = _attend((query, key, value, mask), dropout_p, is_causal, scale, seed)
    sums = torch.zeros(*query.shape[:2], -(-query.shape[2] // 32) * 32 * keeps_sums, device=query.device)
    return _heads_inside(output), sums, seed, torch.tensor(int(query.is_cuda))


def efficient_attention_backward(grad: Tensor, *saved: Any, scale: Any = None) -> list[Any]:
    """Computes `aten._scaled_dot_product_efficient_attention_backward`, where the forward op ran."""
    seed, on_gpu, dropout_p, wanted, *is_causal = saved[6:]
    if dropout_p and bool(on_gpu) != grad.is_cuda:
        raise InputError("attention with dropout is on a processor and its gradient on a GPU, or the reverse")
    leaves: list[Any] = [
        tensor if tensor is None else tensor.detach().requires_grad_() for tensor in saved[:4]
    ]
    with torch.enable_grad():
        output = _attend(leaves, dropout_p, any(is_causal), scale, seed)
    gradients = torch.autograd.grad(output, leaves[: 3 + wanted[3]], grad)
    return [*map(_heads_inside, gradients), *[None] * (4 - len(gradients))]


def rms_norm_backward(*arguments: Any) -> Any:
    """Computes `aten._fused_rms_norm_backward`."""
    from torch._decomp import get_decompositions

    op = torch.ops.aten._fused_rms_norm_backward.default
    return get_decompositions([op])[op](*arguments)


def _attend(
    operands: Sequence[Any], dropout_p: float, is_causal: bool, scale: float | None, seed: Any = 0
) -> Tensor:
    """Computes attention with the dropout of a seed; the device's random numbers stay as they are."""
    device = operands[0].device
    numbers = (
        torch.cuda.default_generators[device.index] if device.type == "cuda" else torch.default_generator
    )
    state = numbers.get_state()
    if dropout_p:
        numbers.manual_seed(int(seed))
    query, key, value, mask = operands
    output = F.scaled_dot_product_attention(query, key, value, mask, dropout_p, is_causal, scale=scale)
    numbers.set_state(state)
    return output


def _heads_inside(tensor: Tensor) -> Tensor:
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)
