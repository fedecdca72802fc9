"""Causal language models whose feed-forward layers are mixtures of experts of fixed capacity.

In `moe` experts choose among the words that want them; in `switch` words choose, the first in a sequence are
served first, and words beyond the capacity are dropped.

Sources: Shazeer et al. 2017 (arXiv 1701.06538) for top-k routing; Fedus et al. 2021 (Switch, arXiv
2101.03961) for top-1 routing, capacity and balancing loss; Lepikhin et al. 2020 (GShard, arXiv 2006.16668)
for top-2 routing, dispatch and combine; Zoph et al. 2022 (arXiv 2202.08906) for the loss of the router.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

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
    PreNorm,
    Sizes,
    word_batch,
    word_loss,
)


@dataclass(frozen=True)
class Config:
    """One mixture of experts.

    Attributes:
        every: one block in so many has experts, the others a plain feed-forward layer.
        inner: width within an expert.
        top: experts that each word is sent to.
        capacity: words that the experts take together, relative to the words sent.
        shared: one more expert, in `moe`, that sees every word (DeepSeekMoE, arXiv 2401.06066).
        gated: argument of `FeedForward` in `moe`.
        joint: all experts of `switch` as one product of matrices, instead of a module each.
        einsum: one-hot products in `switch` that move the words to experts and back, instead of indices.
    """

    sizes: Sizes
    every: int
    inner: int
    experts: int
    top: int
    capacity: float
    shared: bool = False
    gated: bool = False
    joint: bool = False
    einsum: bool = False

    def feed_forward(self) -> FeedForward:
        """An expert, or a plain feed-forward layer."""
        return FeedForward(self.sizes.width, self.inner, gated=self.gated)


class Experts(nn.Module):
    """Feed-forward experts side by side; each takes the words that want it most, up to its capacity."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top, self.capacity = config.top, config.capacity
        self.router = nn.Linear(config.sizes.width, config.experts, bias=False)
        self.experts = nn.ModuleList(config.feed_forward() for _ in range(config.experts))
        self.shared = config.feed_forward() if config.shared else None

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
        out = start.index_add(0, torch.cat(taken), torch.cat(mixed).to(start.dtype))
        load = (routed > 0).float().mean(0)
        return out.view_as(x), len(self.experts) * (load * gates.mean(0)).sum()


class JointExperts(nn.Module):
    """Feed-forward experts whose weights are one tensor."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.sizes.width
        self.up = nn.Parameter(torch.zeros(config.experts, width, config.inner))
        self.down = nn.Parameter(torch.zeros(config.experts, config.inner, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (experts, slots, width) to the same shape."""
        return F.relu(x @ self.up) @ self.down


class ApartExperts(nn.ModuleList):
    """Feed-forward experts side by side."""

    def __init__(self, config: Config) -> None:
        super().__init__(config.feed_forward() for _ in range(config.experts))

    def forward(self, x: Tensor) -> Tensor:
        """Map (experts, slots, width) to the same shape."""
        return torch.stack([expert(words) for expert, words in zip(self, x.unbind(0), strict=True)])


class SwitchLayer(nn.Module):
    """Sends each word to the experts it chooses, while they have slots left for its sequence."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top, self.n_experts, self.einsum = config.top, config.experts, config.einsum
        self.slots = math.ceil(config.capacity * config.top * config.sizes.length / config.experts)
        self.router = nn.Linear(config.sizes.width, config.experts, bias=False)
        self.experts = JointExperts(config) if config.joint else ApartExperts(config)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (batch, time, width) to the same shape, and give the losses of the router."""
        logits = self.router(x)
        gates = torch.softmax(logits, -1)
        best, chosen = gates.topk(self.top, -1)
        if self.top > 1:
            best = best / best.sum(-1, keepdim=True)
        choices = (chosen.unsqueeze(-1) == torch.arange(self.n_experts, device=x.device)).to(x.dtype)
        # First choices come before second ones, and earlier words before later ones.
        queue = choices.transpose(1, 2).flatten(1, 2).cumsum(1)
        queue = queue.view(len(x), self.top, -1, self.n_experts).transpose(1, 2)
        slot = (queue * choices).sum(-1).long() - 1
        mixed = (
            self._by_products(x, choices, best, slot)
            if self.einsum
            else self._by_indices(x, chosen, best, slot)
        )
        load = choices[:, :, 0].mean((0, 1))
        balance = self.n_experts * (load * gates.mean((0, 1))).sum()
        return mixed, balance + 0.1 * logits.logsumexp(-1).square().mean()

    def _by_products(self, x: Tensor, choices: Tensor, best: Tensor, slot: Tensor) -> Tensor:
        """Maps x by one-hot `choices` (batch, time, top, experts); a slot beyond the last is in none."""
        to_slot = (slot.unsqueeze(-1) == torch.arange(self.slots, device=x.device)).to(x.dtype)
        dispatch = torch.einsum("btke,btkc->btec", choices, to_slot)
        combine = torch.einsum("btke,btkc->btec", choices * best.unsqueeze(-1), to_slot)
        sent = torch.einsum("btec,btm->ebcm", dispatch, x)
        computed = self.experts(sent.flatten(1, 2)).view(sent.shape)
        return torch.einsum("btec,ebcm->btm", combine, computed)

    def _by_indices(self, x: Tensor, chosen: Tensor, best: Tensor, slot: Tensor) -> Tensor:
        """Maps x by the numbers `chosen` (batch, time, top); the row after all slots is for dropped words."""
        batch, width = len(x), x.shape[-1]
        rows = self.n_experts * batch * self.slots
        sequence = torch.arange(batch, device=x.device).view(-1, 1, 1)
        row = (chosen * batch + sequence) * self.slots + slot
        row = torch.where(slot < self.slots, row, rows).flatten()
        words = x.unsqueeze(2).expand(-1, -1, self.top, -1).reshape(-1, width)
        sent = x.new_zeros(rows + 1, width).index_add(0, row, words)[:-1]
        computed = self.experts(sent.view(self.n_experts, -1, width)).flatten(0, 1)
        back = F.pad(computed, (0, 0, 0, 1)).index_select(0, row).view(batch, -1, self.top, width)
        return (back * best.unsqueeze(-1)).sum(2)


class ExpertBlock(nn.Module):
    """Attention, then experts, each normalised before."""

    def __init__(self, width: int, attention: nn.Module, experts: nn.Module) -> None:
        super().__init__()
        self.attention = PreNorm(width, [attention])
        self.norm = nn.LayerNorm(width)
        self.experts = experts

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Map x (batch, time, width) to the same shape, and give the balancing loss."""
        x = self.attention(x)
        mixed, balance = self.experts(self.norm(x))
        return x + mixed, balance


class DenseBlock(nn.Module):
    """Attention, then one feed-forward layer, each normalised before."""

    def __init__(self, width: int, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(PreNorm(width, [attention]), PreNorm(width, [feed_forward]))

    def forward(self, x: Tensor) -> tuple[Tensor, None]:
        """Map x (batch, time, width) to the same shape; there is nothing to balance."""
        return self.layers(x), None


class ExpertModel(LanguageModel):
    """Next-word cross-entropy plus the mean balancing loss of the expert layers, each made by `experts`."""

    def __init__(self, config: Config, experts: Callable[[Config], nn.Module] = Experts) -> None:
        sizes = config.sizes
        embedding, blocks = Embedding(sizes.vocabulary, sizes.length, sizes.width), nn.ModuleList()
        for layer in range(1, sizes.layers + 1):
            attention = Attention(sizes.width, sizes.heads, causal=True, joint=True, fused=False)
            kind, make = (DenseBlock, Config.feed_forward) if layer % config.every else (ExpertBlock, experts)
            blocks.append(kind(sizes.width, attention, make(config)))
        head = nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        super().__init__(embedding, blocks, nn.LayerNorm(sizes.width), head)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        x, balances = self.embedding(words), []
        for block in self.blocks:
            x, balance = block(x)
            if balance is not None:
                balances.append(balance)
        return word_loss(self.head(self.norm(x)), targets) + 0.01 * torch.stack(balances).mean()


def _draw_sizes(
    rng: np.random.Generator,
    widths: Sequence[int],
    vocabularies: Sequence[int],
    experts: Sequence[int],
    capacities: Sequence[float],
) -> dict[str, Any]:
    """Fields of a `Config` besides its variants, drawn from those given."""
    every, width = pick(rng, [1, 2]), pick(rng, widths)
    layers, inner = every * int(rng.integers(1, 5)), width * pick(rng, [2, 4])
    sizes = Sizes(layers, width, width // 64, pick(rng, [128, 256, 512]), pick(rng, vocabularies))
    config = {"sizes": sizes, "every": every, "inner": inner, "experts": pick(rng, experts)}
    return config | {"top": pick(rng, [1, 2]), "capacity": pick(rng, capacities)}


@family("moe")
def draw_moe(rng: np.random.Generator) -> Drawn:
    """1 to 8 layers, 4 to 16 experts of which each word uses 1 or 2, width 512 to 1536, 2k to 8k words."""
    sizes = _draw_sizes(rng, [512, 768, 1024, 1536], [8_192, 16_384], [4, 6, 8, 12, 16], [1.0, 1.25])
    config = Config(**sizes, shared=bool(rng.random() < 0.3), gated=bool(rng.random() < 0.4))
    return ExpertModel(config), _words(rng, config)


@family("switch")
def draw_switch(rng: np.random.Generator) -> Drawn:
    """1 to 8 layers, 4 to 16 experts of which each word chooses 1 or 2, width 384 to 1024, 2k to 8k words."""
    sizes = _draw_sizes(rng, [384, 512, 768, 1024], [8_192, 16_384, 32_128], [4, 8, 16], [1.0, 1.25, 2.0])
    config = Config(**sizes, joint=bool(rng.random() < 0.4), einsum=bool(rng.random() < 0.5))
    return ExpertModel(config, SwitchLayer), _words(rng, config)


def _words(rng: np.random.Generator, config: Config) -> tuple[Tensor, Tensor]:
    length = config.sizes.length
    return word_batch(pick(rng, [2048, 4096, 8192]) // length, length)
