"""Causal language models whose feed-forward layers are mixtures of experts of fixed capacity.

Sources: Shazeer et al. 2017 (arXiv 1701.06538) for top-k routing; Fedus et al. 2021 (arXiv 2101.03961) for
the capacity and the balancing loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families.registry import Drawn, family, pick
from graphs.families.transformer import Attention, Embedding, FeedForward, PreNorm, word_batch, word_loss


@dataclass(frozen=True)
class Config:
    """One mixture of experts.

    Attributes:
        layers: blocks; every `every`-th one has experts, the others a plain feed-forward layer.
        top: experts that each word is sent to.
        capacity: words that the experts take together, relative to the words sent.
        shared: whether one more expert sees every word (DeepSeekMoE, arXiv 2401.06066).
    """

    layers: int
    every: int
    width: int
    inner: int
    heads: int
    length: int
    vocabulary: int
    experts: int
    top: int
    capacity: float
    shared: bool
    gated: bool


class Experts(nn.Module):
    """Feed-forward experts side by side; each takes the words that want it most, up to its capacity."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width, inner, gated = config.width, config.inner, config.gated
        self.top, self.capacity = config.top, config.capacity
        self.router = nn.Linear(width, config.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(width, inner, gated=gated) for _ in range(config.experts))
        self.shared = FeedForward(width, inner, gated=gated) if config.shared else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (batch, time, width) to the same shape, and give the balancing loss."""
        words = x.flatten(0, 1)
        gates = torch.softmax(self.router(words), -1)
        best, chosen = gates.topk(self.top, -1)
        routed = torch.zeros_like(gates).scatter(-1, chosen, best / best.sum(-1, keepdim=True))
        slots = min(len(words), math.ceil(self.capacity * self.top * len(words) / len(self.experts)))
        taken, mixed = [], []
        for expert, wanted in zip(self.experts, routed.unbind(-1), strict=True):
            weight, index = wanted.topk(slots)
            taken.append(index)
            mixed.append(expert(words.index_select(0, index)) * weight.unsqueeze(-1))
        start = torch.zeros_like(words) if self.shared is None else self.shared(words)
        out = start.index_add(0, torch.cat(taken), torch.cat(mixed))
        load = (routed > 0).float().mean(0)
        return out.view_as(x), len(self.experts) * (load * gates.mean(0)).sum()


class ExpertBlock(nn.Module):
    """Attention, then experts, each normalised before."""

    def __init__(self, config: Config, attention: nn.Module, experts: nn.Module) -> None:
        super().__init__()
        self.attention = PreNorm(config.width, [attention])
        self.norm = nn.LayerNorm(config.width)
        self.experts = experts

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (batch, time, width) to the same shape, and give the balancing loss."""
        x = self.attention(x)
        mixed, balance = self.experts(self.norm(x))
        return x + mixed, balance


class DenseBlock(nn.Module):
    """Attention, then one feed-forward layer, each normalised before."""

    def __init__(self, config: Config, attention: nn.Module) -> None:
        super().__init__()
        feed_forward = FeedForward(config.width, config.inner, gated=config.gated)
        self.layers = nn.Sequential(PreNorm(config.width, [attention]), PreNorm(config.width, [feed_forward]))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Map x (batch, time, width) to the same shape; there is nothing to balance."""
        return self.layers(x), None


class LanguageModel(nn.Module):
    """Next-word cross-entropy plus the mean balancing loss of the expert layers, each made by `experts`."""

    def __init__(self, config: Config, experts: Callable[..., nn.Module] = Experts) -> None:
        super().__init__()
        self.embedding = Embedding(config.vocabulary, config.length, config.width)
        self.blocks = nn.ModuleList()
        for layer in range(config.layers):
            attention = Attention(config.width, config.heads, causal=True, joint=True, fused=False)
            if (layer + 1) % config.every:
                self.blocks.append(DenseBlock(config, attention))
            else:
                self.blocks.append(ExpertBlock(config, attention, experts(config)))
        self.norm = nn.LayerNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        x, balances = self.embedding(words), []
        for block in self.blocks:
            x, balance = block(x)
            if balance is not None:
                balances.append(balance)
        loss = word_loss(self.head(self.norm(x)), targets)
        return loss + 0.01 * torch.stack(balances).mean()


@family("moe")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 8 layers, 4 to 16 experts of which each word uses 1 or 2, width 512 to 1536, 2k to 8k words."""
    every = pick(rng, [1, 2])
    width = pick(rng, [512, 768, 1024, 1536])
    config = Config(
        layers=every * int(rng.integers(1, 5)),
        every=every,
        width=width,
        inner=width * pick(rng, [2, 4]),
        heads=width // 64,
        length=pick(rng, [128, 256, 512]),
        vocabulary=pick(rng, [8_192, 16_384]),
        experts=pick(rng, [4, 6, 8, 12, 16]),
        top=pick(rng, [1, 2]),
        capacity=pick(rng, [1.0, 1.25]),
        shared=bool(rng.random() < 0.3),
        gated=bool(rng.random() < 0.4),
    )
    words = pick(rng, [2048, 4096, 8192])
    return LanguageModel(config), word_batch(words // config.length, config.length)
