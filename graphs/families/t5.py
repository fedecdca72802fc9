"""Encoder-decoder transformers with cross-attention and relative biases, in the manner of T5.

Source: Raffel et al. 2020 (arXiv 1910.10683). Feed-forward layers are those of the other transformers here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families import Drawn, family, pick
from graphs.families.layers import FeedForward, RMSNorm, later, word_loss

BUCKETS, FARTHEST = 32, 128


@dataclass(frozen=True)
class Config:
    """One encoder-decoder; `inner` is the width within its feed-forward layers."""

    encoder_layers: int
    decoder_layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int
    gated: bool
    tied: bool


def relative_buckets(queries: int, keys: int, *, causal: bool, device: torch.device) -> Tensor:
    """Numbers the distances from queries to keys, int (queries, keys): the farther, the coarser."""
    distance = torch.arange(queries, device=device).unsqueeze(1) - torch.arange(keys, device=device)
    n_buckets = BUCKETS if causal else BUCKETS // 2
    ahead = 0 if causal else (distance < 0) * n_buckets
    distance = distance.clamp(min=0) if causal else distance.abs()
    exact = n_buckets // 2
    far = (distance.clamp(min=1) / exact).log() / math.log(FARTHEST / exact) * (n_buckets - exact)
    wide = (exact + far.long()).clamp(max=n_buckets - 1)
    return torch.where(distance < exact, distance, wide) + ahead


class RelativeBias(nn.Module):
    """A number for each head and bucket of distances, -inf ahead of a causal query."""

    def __init__(self, heads: int, *, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.table = nn.Embedding(BUCKETS, heads)

    def forward(self, x: Tensor) -> Tensor:
        """Biases (heads, time, time) for words (batch, time, width)."""
        time = x.shape[1]
        buckets = relative_buckets(time, time, causal=self.causal, device=x.device)
        bias: Tensor = self.table(buckets).permute(2, 0, 1)
        return bias.masked_fill(later(bias), -torch.inf) if self.causal else bias


class Attention(nn.Module):
    """Attention of words to a memory, with biases and without a scale."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, memory: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map x (batch, time, width) to the same shape; memory may be longer or shorter."""
        query, key, value = (
            layer(words).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, words in ((self.query, x), (self.key, memory), (self.value, memory))
        )
        scores = query @ key.transpose(-2, -1)
        mixed = torch.softmax(scores if bias is None else scores + bias, -1) @ value
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Self-attention, in a decoder attention to the memory, then feed-forward, each normalised before."""

    def __init__(self, config: Config, *, crosses: bool) -> None:
        super().__init__()
        width = config.width
        self.attention, self.norm = Attention(width, config.heads), RMSNorm(width)
        self.cross = Attention(width, config.heads) if crosses else None
        self.cross_norm = RMSNorm(width) if crosses else None
        self.feed_forward = FeedForward(width, config.inner, gated=config.gated)
        self.feed_forward_norm = RMSNorm(width)

    def forward(self, x: Tensor, bias: Tensor, memory: Tensor | None) -> Tensor:
        """Map x (batch, time, width) to the same shape."""
        normed = self.norm(x)
        x = x + self.attention(normed, normed, bias)
        if self.cross is not None and self.cross_norm is not None and memory is not None:
            x = x + self.cross(self.cross_norm(x), memory)
        return x + self.feed_forward(self.feed_forward_norm(x))


class Stack(nn.Module):
    """The encoder, or the decoder, which attends to the encoder's memory."""

    def __init__(self, config: Config, layers: int, *, decodes: bool) -> None:
        super().__init__()
        self.bias = RelativeBias(config.heads, causal=decodes)
        self.blocks = nn.ModuleList(Block(config, crosses=decodes) for _ in range(layers))
        self.norm = RMSNorm(config.width)

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        """Map embedded words (batch, time, width) to the same shape."""
        bias = self.bias(x)
        for block in self.blocks:
            x = block(x, bias, memory)
        return self.norm(x)


class Translator(nn.Module):
    """Next-word cross-entropy of a target text, given a source text."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.encoder = Stack(config, config.encoder_layers, decodes=False)
        self.decoder = Stack(config, config.decoder_layers, decodes=True)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.weight

    def logits(self, source: Tensor, words: Tensor) -> Tensor:
        """Logits (batch, time, vocabulary) of the word after each of words, int (batch, time)."""
        memory = self.encoder(self.embedding(source))
        return self.head(self.decoder(self.embedding(words), memory))

    def forward(self, source: Tensor, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time), given source, int (batch, source time)."""
        return word_loss(self.logits(source, words), targets)


@family("t5")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 8 layers each way, width 256 to 1024, 128 to 512 source words, 1k to 8k in all."""
    width = pick(rng, [256, 512, 768, 1024])
    config = Config(
        encoder_layers=int(rng.integers(1, 9)),
        decoder_layers=int(rng.integers(1, 9)),
        width=width,
        inner=width * pick(rng, [2, 3, 4]),
        heads=width // 64,
        vocabulary=pick(rng, [16_384, 32_128]),
        gated=bool(rng.random() < 0.5),
        tied=bool(rng.random() < 0.5),
    )
    length = pick(rng, [128, 256, 512])
    batch = pick(rng, [1024, 2048, 4096, 8192]) // length
    source, targets = (
        torch.zeros(batch, length // part, dtype=torch.long) for part in (1, pick(rng, [2, 4]))
    )
    return Translator(config), (source, targets, torch.zeros_like(targets))
