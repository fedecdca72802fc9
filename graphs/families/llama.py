"""Causal language models in the manner of LLaMA, of one to three billion parameters.

With Adam each keeps 19 to 47 GB of weights, gradients and moments, and its activations: none fits on one
device of 16 GB, all fit on four.

Sources: Touvron et al. 2023 (LLaMA, arXiv 2302.13971); Su et al. 2021 (rotary positions, arXiv 2104.09864);
Shazeer 2020 (SwiGLU, arXiv 2002.05202).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import Drawn, family, pick
from graphs.families.layers import LanguageModel, RMSNorm, later, word_batch

ROTARY_BASE = 10_000.0
SIZES = (
    *((22, 2048), (24, 2048), (32, 2048)),
    *((16, 2560), (20, 2560), (24, 2560), (28, 2560)),
    *((18, 3072), (24, 3072)),
)
"""Layers and width of the draws."""


class RotaryAttention(nn.Module):
    """Causal self-attention whose queries and keys are turned by their position."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map x (batch, time, width) to the same shape; cos and sin are (time, width / heads)."""
        query, key, value = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = (part * cos + _half_turned(part) * sin for part in (query, key))
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        mixed = torch.softmax(scores.masked_fill(later(scores), -torch.inf), -1) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class SwiGlu(nn.Module):
    """A feed-forward layer gated by SiLU, without biases."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class Block(nn.Module):
    """Attention, then feed-forward, each normalised before."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(width), RotaryAttention(width, heads)
        self.feed_forward_norm, self.feed_forward = RMSNorm(width), SwiGlu(width, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map x (batch, time, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Llama(LanguageModel):
    """Next-word cross-entropy of a LLaMA; `inner` is the width within its feed-forward layers."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, vocabulary: int) -> None:
        embedding = nn.Embedding(vocabulary, width)
        blocks = nn.ModuleList(Block(width, inner, heads) for _ in range(layers))
        super().__init__(embedding, blocks, RMSNorm(width), nn.Linear(width, vocabulary, bias=False))
        self.turned = width // heads // 2

    def logits(self, words: Tensor) -> Tensor:
        """Logits (batch, time, vocabulary) of the word after each of words, int (batch, time)."""
        x = self.embedding(words)
        speed = ROTARY_BASE ** (-torch.arange(self.turned, device=x.device) / self.turned)
        angle = torch.outer(torch.arange(words.shape[1], device=x.device), speed).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        out: Tensor = self.head(self.norm(x))
        return out


@family("llama")
def draw(rng: np.random.Generator) -> Drawn:
    """16 to 32 layers of width 2048 to 3072, one to three billion parameters, 512 to 1024 words in all."""
    layers, width = pick(rng, SIZES)
    length = pick(rng, [256, 512])
    model = Llama(layers, width, inner=width * 11 // 4, heads=width // 128, vocabulary=32_000)
    return model, word_batch(pick(rng, [512, 1024]) // length, length)
