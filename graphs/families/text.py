"""Transformers over words: bidirectional ones in the manner of BERT, causal ones in that of GPT and LLaMA.

Sources: Devlin et al. 2019 (BERT, arXiv 1810.04805); Radford et al. 2019 (GPT-2); Wang and Komatsuzaki 2021
(GPT-J: attention and feed-forward in parallel); Touvron et al. 2023 (LLaMA, arXiv 2302.13971); Su et al. 2021
(rotary positions, arXiv 2104.09864); Shazeer 2020 (SwiGLU, arXiv 2002.05202).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import Drawn, family, pick
from graphs.families.layers import (
    Attention,
    Embedding,
    FeedForward,
    LanguageModel,
    PostNorm,
    PreNorm,
    RMSNorm,
    Sizes,
    later,
    word_batch,
)

ROTARY_BASE = 10_000.0
SIZES = (
    *((22, 2048), (24, 2048), (32, 2048)),
    *((16, 2560), (20, 2560), (24, 2560), (28, 2560)),
    *((18, 3072), (24, 3072)),
)
"""Layers and width of the draws of llama. With Adam each keeps 19 to 47 GB of weights, gradients and moments,
and its activations: none fits on one device of 16 GB, all fit on four."""


class MaskedWordModel(nn.Module):
    """Cross-entropy of the masked words and, if there is a sentence head, of the class of the sequence.

    Args:
        fused: argument of `Attention`.
        dropout: probability after the embedding and after each block, 0 for none.
    """

    def __init__(self, sizes: Sizes, *, fused: bool, dropout: float, sentence_head: bool) -> None:
        super().__init__()
        width = sizes.width
        drop = [nn.Dropout(dropout)] if dropout else []
        self.embedding = Embedding(sizes.vocabulary, sizes.length, width)
        self.segment = nn.Embedding(2, width)
        layers: list[nn.Module] = [nn.LayerNorm(width), *drop]
        for _ in range(sizes.layers):
            attention = Attention(width, sizes.heads, causal=False, joint=False, fused=fused)
            feed_forward = FeedForward(width, 4 * width)
            layers += [nn.Sequential(PostNorm(width, attention), PostNorm(width, feed_forward)), *drop]
        self.blocks = nn.Sequential(*layers)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, sizes.vocabulary)
        self.head.weight = self.embedding.word.weight
        classify = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
        self.sentence_head = classify if sentence_head else None

    def forward(
        self, words: Tensor, segments: Tensor, masked: Tensor, targets: Tensor, labels: Tensor
    ) -> Tensor:
        """Loss of a batch.

        Args:
            words, segments: int (batch, time).
            masked: positions of the masked words in the flattened batch, int (n,).
            targets: the words that were masked, int (n,).
            labels: classes of the sequences, int (batch,).
        """
        encoded = self.blocks(self.embedding(words) + self.segment(segments))
        guesses = self.head(self.transform(encoded.flatten(0, 1).index_select(0, masked)))
        loss = F.cross_entropy(guesses, targets)
        if self.sentence_head is None:
            return loss
        return loss + F.cross_entropy(self.sentence_head(encoded[:, 0]), labels)


def gpt(sizes: Sizes, *, parallel: bool, joint: bool, fused: bool, gated: bool, tied: bool) -> LanguageModel:
    """A causal language model.

    Args:
        parallel: attention and feed-forward side by side (GPT-J, PaLM), instead of one after the other.
        joint, fused: arguments of `Attention`.
        gated: argument of `FeedForward`.
        tied: one weight for embedding and head.
    """
    width = sizes.width
    embedding, blocks = Embedding(sizes.vocabulary, sizes.length, width), nn.Sequential()
    for _ in range(sizes.layers):
        attention = Attention(width, sizes.heads, causal=True, joint=joint, fused=fused)
        parts: list[nn.Module] = [attention, FeedForward(width, 4 * width, gated=gated)]
        apart = [PreNorm(width, [part]) for part in parts] if not parallel else []
        blocks.append(nn.Sequential(*apart) if apart else PreNorm(width, parts))
    head = nn.Linear(width, sizes.vocabulary, bias=False)
    if tied:
        head.weight = embedding.word.weight
    return LanguageModel(embedding, blocks, nn.LayerNorm(width), head)


@family("gpt")
def draw_gpt(rng: np.random.Generator) -> Drawn:
    """1 to 24 layers of width 512 to 2048, sequences of 256 to 1024 words, 1k to 8k words in all."""
    width = pick(rng, [512, 768, 1024, 1536, 2048])
    sizes = Sizes(
        layers=pick(rng, [1, 2, 3, 4, 6, 8, 12, 16, 24]),
        width=width,
        heads=width // pick(rng, [64, 128]),
        length=pick(rng, [256, 512, 1024]),
        vocabulary=pick(rng, [8_192, 16_384, 32_768]),
    )
    chances = {"parallel": 0.5, "joint": 0.5, "fused": 0.3, "gated": 0.4, "tied": 0.5}
    model = gpt(sizes, **{kind: bool(rng.random() < chance) for kind, chance in chances.items()})
    return model, word_batch(pick(rng, [1024, 2048, 4096, 8192]) // sizes.length, sizes.length)


@family("bert")
def draw_bert(rng: np.random.Generator) -> Drawn:
    """1 to 12 layers of width 384 to 1280, sequences of 64 to 512 words, 2k to 16k words in all."""
    width = pick(rng, [384, 512, 768, 1024, 1280])
    layers, length = int(rng.integers(1, 13)), pick(rng, [64, 128, 256, 512])
    model = MaskedWordModel(
        Sizes(layers, width, width // 64, length, vocabulary=30_522),
        fused=bool(rng.random() < 0.3),
        dropout=pick(rng, [0.0, 0.1]),
        sentence_head=bool(rng.random() < 0.5),
    )
    words, segments = word_batch(pick(rng, [2048, 4096, 8192, 16_384]) // length, length)
    masked = torch.zeros(words.numel() * 15 // 100, dtype=torch.long)
    labels = torch.zeros(len(words), dtype=torch.long)
    return model, (words, segments, masked, torch.zeros_like(masked), labels)


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
        return self.out(mixed.transpose(1, 2).flatten(2))


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
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention, then feed-forward, each normalised before."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(width), RotaryAttention(width, heads)
        self.feed_forward_norm, self.feed_forward = RMSNorm(width), SwiGlu(width, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map x (batch, time, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        return x + self.feed_forward(self.feed_forward_norm(x))


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
        return self.head(self.norm(x))


@family("llama")
def draw_llama(rng: np.random.Generator) -> Drawn:
    """16 to 32 layers of width 2048 to 3072, one to three billion parameters, 512 to 1024 words in all."""
    layers, width = pick(rng, SIZES)
    length = pick(rng, [256, 512])
    model = Llama(layers, width, inner=width * 11 // 4, heads=width // 128, vocabulary=32_000)
    return model, word_batch(pick(rng, [512, 1024]) // length, length)
