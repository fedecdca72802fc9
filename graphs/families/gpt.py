"""Causal language models in the manner of GPT-2, GPT-J and their successors.

Sources: Radford et al. 2019 (GPT-2); Wang and Komatsuzaki 2021 (GPT-J: parallel attention and feed-forward).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor, nn

from graphs.families.registry import Drawn, family, pick
from graphs.families.transformer import (
    Attention,
    Embedding,
    FeedForward,
    parallel_block,
    sequential_block,
    word_batch,
    word_loss,
)


@dataclass(frozen=True)
class Config:
    """One language model; `parallel`, `joint`, `fused`, `gated` are explained in `transformer`."""

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    parallel: bool
    joint: bool
    fused: bool
    gated: bool
    tied: bool


class LanguageModel(nn.Module):
    """Next-word cross-entropy of a causal transformer."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        combine = parallel_block if config.parallel else sequential_block
        self.embedding = Embedding(config.vocabulary, config.length, width)
        self.blocks = nn.Sequential(
            *(
                combine(
                    width,
                    Attention(width, config.heads, causal=True, joint=config.joint, fused=config.fused),
                    FeedForward(width, 4 * width, gated=config.gated),
                )
                for _ in range(config.layers)
            )
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, config.vocabulary, bias=False)
        if config.tied:
            self.head.weight = self.embedding.word.weight

    def logits(self, words: Tensor) -> Tensor:
        """Logits (batch, time, vocabulary) of the word after each of words, int (batch, time)."""
        out: Tensor = self.head(self.norm(self.blocks(self.embedding(words))))
        return out

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        return word_loss(self.logits(words), targets)


@family("gpt")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 24 layers of width 512 to 2048, sequences of 256 to 1024 words, 1k to 8k words in all."""
    width = pick(rng, [512, 768, 1024, 1536, 2048])
    config = Config(
        layers=pick(rng, [1, 2, 3, 4, 6, 8, 12, 16, 24]),
        width=width,
        heads=width // pick(rng, [64, 128]),
        length=pick(rng, [256, 512, 1024]),
        vocabulary=pick(rng, [8_192, 16_384, 32_768]),
        parallel=bool(rng.random() < 0.5),
        joint=bool(rng.random() < 0.5),
        fused=bool(rng.random() < 0.3),
        gated=bool(rng.random() < 0.4),
        tied=bool(rng.random() < 0.5),
    )
    words = pick(rng, [1024, 2048, 4096, 8192])
    return LanguageModel(config), word_batch(words // config.length, config.length)
