"""Bidirectional encoders with a masked-word head and, in some draws, a sentence-order head.

Source: Devlin et al. 2019 (arXiv 1810.04805).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families.registry import Drawn, family, pick
from graphs.families.transformer import (
    Attention,
    Embedding,
    FeedForward,
    post_norm_block,
    word_batch,
)


@dataclass(frozen=True)
class Config:
    """One encoder; `fused` is explained in `transformer`.

    Attributes:
        dropout: probability after the embedding and after each block, 0 for none.
        sentence_head: whether a second head classifies the sequence.
    """

    layers: int
    width: int
    heads: int
    length: int
    vocabulary: int
    fused: bool
    dropout: float
    sentence_head: bool


class MaskedWordModel(nn.Module):
    """Cross-entropy of the masked words, plus that of the sentence head if there is one."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        drop = [nn.Dropout(config.dropout)] if config.dropout else []
        self.embedding = Embedding(config.vocabulary, config.length, width)
        self.segment = nn.Embedding(2, width)
        layers: list[nn.Module] = [nn.LayerNorm(width), *drop]
        for _ in range(config.layers):
            attention = Attention(width, config.heads, causal=False, joint=False, fused=config.fused)
            layers += [post_norm_block(width, attention, FeedForward(width, 4 * width)), *drop]
        self.blocks = nn.Sequential(*layers)
        self.transform = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.LayerNorm(width))
        self.head = nn.Linear(width, config.vocabulary)
        self.head.weight = self.embedding.word.weight
        self.sentence_head = (
            nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 2))
            if config.sentence_head
            else None
        )

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


@family("bert")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 12 layers of width 384 to 1280, sequences of 64 to 512 words, 2k to 16k words in all."""
    width = pick(rng, [384, 512, 768, 1024, 1280])
    config = Config(
        layers=int(rng.integers(1, 13)),
        width=width,
        heads=width // 64,
        length=pick(rng, [64, 128, 256, 512]),
        vocabulary=30_522,
        fused=bool(rng.random() < 0.3),
        dropout=pick(rng, [0.0, 0.1]),
        sentence_head=bool(rng.random() < 0.5),
    )
    words, segments = word_batch(pick(rng, [2048, 4096, 8192, 16_384]) // config.length, config.length)
    masked = torch.zeros(words.numel() * 15 // 100, dtype=torch.long)
    labels = torch.zeros(len(words), dtype=torch.long)
    return MaskedWordModel(config), (words, segments, masked, torch.zeros_like(masked), labels)
