"""Causal language models whose words choose experts of fixed capacity; words beyond it are dropped.

In `moe` experts choose among the words that want them; here the first words in a sequence are served first.

Sources: Lepikhin et al. 2020 (GShard, arXiv 2006.16668) for top-2 routing, dispatch and combine; Fedus et al.
2021 (Switch, arXiv 2101.03961) for top-1 routing; Zoph et al. 2022 (arXiv 2202.08906) for the router's loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import moe
from graphs.families.registry import Drawn, family, pick
from graphs.families.transformer import FeedForward, word_batch


@dataclass(frozen=True)
class Config(moe.Config):
    """One mixture of experts.

    Attributes:
        joint: whether all experts are one product of matrices, instead of a module each.
        einsum: whether one-hot products move the words to experts and back, instead of indices.
    """

    joint: bool
    einsum: bool


class JointExperts(nn.Module):
    """Feed-forward experts whose weights are one tensor."""

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.zeros(experts, width, inner))
        self.down = nn.Parameter(torch.zeros(experts, inner, width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (experts, slots, width) to the same shape."""
        return F.relu(x @ self.up) @ self.down


class ApartExperts(nn.ModuleList):
    """Feed-forward experts side by side."""

    def __init__(self, experts: int, width: int, inner: int) -> None:
        super().__init__(FeedForward(width, inner) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        """Map (experts, slots, width) to the same shape."""
        return torch.stack([expert(words) for expert, words in zip(self, x.unbind(0), strict=True)])


class SwitchLayer(nn.Module):
    """Sends each word to the experts it chooses, while they have slots left for its sequence."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.top, self.n_experts, self.einsum = config.top, config.experts, config.einsum
        self.slots = math.ceil(config.capacity * config.top * config.length / config.experts)
        self.router = nn.Linear(config.width, config.experts, bias=False)
        kind = JointExperts if config.joint else ApartExperts
        self.experts = kind(config.experts, config.width, config.inner)

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
        found = self.experts(sent.flatten(1, 2)).view(sent.shape)
        return torch.einsum("btec,ebcm->btm", combine, found)

    def _by_indices(self, x: Tensor, chosen: Tensor, best: Tensor, slot: Tensor) -> Tensor:
        """Maps x by the numbers `chosen` (batch, time, top); the row after all slots is for dropped words."""
        batch, width = len(x), x.shape[-1]
        rows = self.n_experts * batch * self.slots
        sequence = torch.arange(batch, device=x.device).view(-1, 1, 1)
        row = (chosen * batch + sequence) * self.slots + slot
        row = torch.where(slot < self.slots, row, rows).flatten()
        words = x.unsqueeze(2).expand(-1, -1, self.top, -1).reshape(-1, width)
        sent = x.new_zeros(rows + 1, width).index_add(0, row, words)[:-1]
        found = self.experts(sent.view(self.n_experts, -1, width)).flatten(0, 1)
        back = F.pad(found, (0, 0, 0, 1)).index_select(0, row).view(batch, -1, self.top, width)
        return (back * best.unsqueeze(-1)).sum(2)


@family("switch")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 8 layers, 4 to 16 experts of which each word chooses 1 or 2, width 384 to 1024, 2k to 8k words."""
    every = pick(rng, [1, 2])
    width = pick(rng, [384, 512, 768, 1024])
    config = Config(
        layers=every * int(rng.integers(1, 5)),
        every=every,
        width=width,
        inner=width * pick(rng, [2, 4]),
        heads=width // 64,
        length=pick(rng, [128, 256, 512]),
        vocabulary=pick(rng, [8_192, 16_384, 32_128]),
        experts=pick(rng, [4, 8, 16]),
        top=pick(rng, [1, 2]),
        capacity=pick(rng, [1.0, 1.25, 2.0]),
        shared=False,
        gated=False,
        joint=bool(rng.random() < 0.4),
        einsum=bool(rng.random() < 0.5),
    )
    words = pick(rng, [2048, 4096, 8192])
    return moe.LanguageModel(config, SwitchLayer), word_batch(words // config.length, config.length)
