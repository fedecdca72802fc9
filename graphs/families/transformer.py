"""Parts of the transformer families: attention, feed-forward layers and the ways to combine them."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head self-attention.

    Args:
        joint: one projection for queries, keys and values, instead of three parallel ones.
        fused: one kernel for scores, softmax and mix, instead of an op each.
    """

    def __init__(self, width: int, heads: int, *, causal: bool, joint: bool, fused: bool) -> None:
        super().__init__()
        self.heads, self.causal, self.fused = heads, causal, fused
        self.project = nn.ModuleList(
            [nn.Linear(width, 3 * width)] if joint else [nn.Linear(width, width) for _ in range(3)]
        )
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        parts = [part for layer in self.project for part in layer(x).split(x.shape[-1], -1)]
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if self.fused:
            mixed = F.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        else:
            mixed = self._weights(query, key) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        if self.causal:
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            scores = scores.masked_fill(future, -torch.inf)
        return torch.softmax(scores, -1)


class FeedForward(nn.Module):
    """Two linear layers with a GELU between, or a SiLU gate in parallel (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int, inner: int, *, gated: bool = False) -> None:
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.gate = nn.Linear(width, inner) if gated else None
        self.down = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        inner = F.gelu(self.up(x)) if self.gate is None else self.up(x) * F.silu(self.gate(x))
        out: Tensor = self.down(inner)
        return out


class PreNorm(nn.Module):
    """x + layer(norm(x)), summed over parallel layers if there are several."""

    def __init__(self, width: int, layers: list[nn.Module]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in layers)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        out = x
        for norm, layer in zip(self.norms, self.layers, strict=True):
            out = out + layer(norm(x))
        return out


class PostNorm(nn.Module):
    """norm(x + layer(x))."""

    def __init__(self, width: int, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        out: Tensor = self.norm(x + self.layer(x))
        return out


def sequential_block(width: int, attention: nn.Module, feed_forward: nn.Module) -> nn.Module:
    """Attention, then feed-forward, each normalised before (GPT-2, ViT)."""
    return nn.Sequential(PreNorm(width, [attention]), PreNorm(width, [feed_forward]))


def parallel_block(width: int, attention: nn.Module, feed_forward: nn.Module) -> nn.Module:
    """Attention and feed-forward side by side (GPT-J, PaLM)."""
    return PreNorm(width, [attention, feed_forward])


def post_norm_block(width: int, attention: nn.Module, feed_forward: nn.Module) -> nn.Module:
    """Attention, then feed-forward, each normalised after (BERT)."""
    return nn.Sequential(PostNorm(width, attention), PostNorm(width, feed_forward))


class Embedding(nn.Module):
    """Sum of word and learned position embeddings."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))

    def forward(self, words: Tensor) -> Tensor:
        """Embed words, int (batch, time), as (batch, time, width)."""
        out: Tensor = self.word(words) + self.position
        return out


def word_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits (batch, time, vocabulary) and targets, int (batch, time)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def word_batch(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Two integers per word, each (batch, time), all zero."""
    words = torch.zeros(batch, length, dtype=torch.long)
    return words, torch.zeros_like(words)
