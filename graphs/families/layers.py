"""Layers, losses and batches that several families share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
        return self.out(mixed.transpose(1, 2).flatten(2))

    def _weights(self, query: Tensor, key: Tensor) -> Tensor:
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        return torch.softmax(scores.masked_fill(later(scores), -torch.inf) if self.causal else scores, -1)


def later(scores: Tensor) -> Tensor:
    """Marks the keys that come after each query among scores (..., queries, keys), bool (queries, keys)."""
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)


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
        return self.down(inner)


class RMSNorm(nn.Module):
    """Division by the root mean square, then a scale per channel (Zhang et al. 2019, arXiv 1910.07467)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


class PreNorm(nn.Module):
    """x + layer(norm(x)), summed over parallel layers if there are several."""

    def __init__(self, width: int, layers: Sequence[nn.Module]) -> None:
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
        return self.norm(x + self.layer(x))


class Embedding(nn.Module):
    """Sum of word and learned position embeddings."""

    def __init__(self, vocabulary: int, length: int, width: int) -> None:
        super().__init__()
        self.word = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(length, width))

    def forward(self, words: Tensor) -> Tensor:
        """Embed words, int (batch, time), as (batch, time, width)."""
        return self.word(words) + self.position


class Sizes(NamedTuple):
    """Sizes of a transformer over words; `length` counts the words of a sequence."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int


class LanguageModel(nn.Module):
    """Next-word cross-entropy of blocks between an embedding, and a norm and a head."""

    def __init__(
        self, embedding: nn.Module, blocks: nn.Sequential | nn.ModuleList, norm: nn.Module, head: nn.Linear
    ) -> None:
        super().__init__()
        self.embedding, self.blocks, self.norm, self.head = embedding, blocks, norm, head

    def logits(self, words: Tensor) -> Tensor:
        """Logits (batch, time, vocabulary) of the word after each of words, int (batch, time)."""
        return self.head(self.norm(self.blocks(self.embedding(words))))

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        return word_loss(self.logits(words), targets)


def word_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy of logits (batch, time, vocabulary) and targets, int (batch, time)."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def word_batch(batch: int, length: int) -> tuple[Tensor, Tensor]:
    """Two integers per word, each (batch, time), all zero."""
    words = torch.zeros(batch, length, dtype=torch.long)
    return words, torch.zeros_like(words)


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Batch normalisation by batch statistics alone: running statistics would add ops that do no work."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class ConvNorm(nn.Sequential):
    """Convolution that keeps the resolution (or divides it by `stride`), batch normalisation, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        convolution = nn.Conv2d(
            inputs,
            outputs,
            (height, width),
            stride,
            padding=(height // 2, width // 2),
            groups=groups,
            bias=False,
        )
        super().__init__(convolution, batch_norm(outputs))
        if relu:
            self.append(nn.ReLU())


class Classifier(nn.Module):
    """Cross-entropy of a linear classifier on the features' mean over positions.

    Args:
        features: maps images (batch, 3, side, side) to (batch, channels, ...).
        channels: size of dimension 1 of the features.
    """

    def __init__(self, features: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Loss of images (batch, 3, side, side) and labels, int (batch,)."""
        logits = self.head(self.features(images).flatten(2).mean(2))
        return F.cross_entropy(logits, labels)


def image_batch(batch: int, side: int) -> tuple[Tensor, Tensor]:
    """Images (batch, 3, side, side) and labels, int (batch,), all zero."""
    return torch.zeros(batch, 3, side, side), torch.zeros(batch, dtype=torch.long)
