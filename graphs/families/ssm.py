"""Causal language models of state-space blocks, in the manner of Mamba, in some draws with attention between.

The scan is computed in chunks: a product of matrices within each, and a state handed from one to the next.

Sources: Gu and Dao 2023 (Mamba, arXiv 2312.00752); Dao and Gu 2024 (scalar decays and chunks, arXiv
2405.21060); Lieber et al. 2024 (attention between, arXiv 2403.19887).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families.llama import RMSNorm
from graphs.families.registry import Drawn, family, pick
from graphs.families.transformer import Attention, FeedForward, PreNorm, word_batch, word_loss


@dataclass(frozen=True)
class Config:
    """One model of state-space blocks.

    Attributes:
        heads: parts of the inner channels, each with a decay of its own.
        states: numbers that a head remembers of each of its channels.
        chunks: parts of the sequence that are scanned one after the other.
        kernel: words that the convolution before the scan sees.
        attention_every: every so many layers attention takes the place of the scan; 0 for never.
        feed_forward: whether a feed-forward layer follows each.
    """

    layers: int
    width: int
    heads: int
    states: int
    length: int
    chunks: int
    kernel: int
    vocabulary: int
    attention_every: int
    feed_forward: bool


def scan(x: Tensor, log_decay: Tensor, write: Tensor, read: Tensor, chunks: int) -> Tensor:
    """Scans h = exp(log_decay) h + x write^T over the time, and reads y = h read, in chunks.

    Args:
        x: inputs, (batch, heads, time, channels).
        log_decay: at most 0, (batch, heads, time).
        write, read: (batch, 1, time, states), for all heads alike.

    Returns:
        y, (batch, heads, time, channels).
    """
    state, outputs = None, []
    parts = zip(*(part.chunk(chunks, 2) for part in (x, log_decay, write, read)), strict=True)
    for values, decays, keys, queries in parts:
        total = decays.cumsum(-1)
        between = total.unsqueeze(-1) - total.unsqueeze(-2)
        future = torch.ones(between.shape[-2:], dtype=torch.bool, device=x.device).triu(1)
        weights = queries @ keys.transpose(-2, -1) * between.masked_fill(future, -torch.inf).exp()
        output = weights @ values
        kept = values * (total[..., -1:] - total).exp().unsqueeze(-1)
        added = keys.transpose(-2, -1) @ kept
        if state is None:
            state = added
        else:
            output = output + queries @ state * total.exp().unsqueeze(-1)
            state = state * total[..., -1:].exp().unsqueeze(-1) + added
        outputs.append(output)
    return torch.cat(outputs, 2)


class SelectiveScan(nn.Module):
    """A gated, causal convolution and scan whose decay, write and read depend on the word."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        inner, self.kernel = 2 * config.width, config.kernel
        self.chunks = config.chunks
        self.enter, self.gate = (nn.Linear(config.width, inner, bias=False) for _ in range(2))
        self.convolution = nn.Conv1d(inner, inner, config.kernel, groups=inner)
        self.write, self.read = (nn.Linear(inner, config.states, bias=False) for _ in range(2))
        self.step = nn.Linear(inner, config.heads)
        self.log_speed = nn.Parameter(torch.zeros(config.heads))
        self.skip = nn.Parameter(torch.ones(inner))
        self.norm, self.out = RMSNorm(inner), nn.Linear(inner, config.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        seen = F.pad(self.enter(x).transpose(1, 2), (self.kernel - 1, 0))
        inner = F.silu(self.convolution(seen)).transpose(1, 2)
        step = F.softplus(self.step(inner))
        decay = (-self.log_speed.exp() * step).transpose(1, 2)
        values = (inner.view(*step.shape, -1) * step.unsqueeze(-1)).transpose(1, 2)
        write, read = (layer(inner).unsqueeze(1) for layer in (self.write, self.read))
        mixed = scan(values, decay, write, read, self.chunks).transpose(1, 2).flatten(2)
        out: Tensor = self.out(self.norm((mixed + inner * self.skip) * F.silu(self.gate(x))))
        return out


class LanguageModel(nn.Module):
    """Next-word cross-entropy of a stack of state-space blocks."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.width
        self.embedding = nn.Embedding(config.vocabulary, width)
        layers: list[nn.Module] = []
        for layer in range(1, config.layers + 1):
            attends = config.attention_every and layer % config.attention_every == 0
            mixer = (
                Attention(width, width // 64, causal=True, joint=True, fused=False)
                if attends
                else SelectiveScan(config)
            )
            layers.append(PreNorm(width, [mixer]))
            if config.feed_forward:
                layers.append(PreNorm(width, [FeedForward(width, 4 * width)]))
        self.blocks = nn.Sequential(*layers)
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, config.vocabulary, bias=False)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        return word_loss(self.head(self.norm(self.blocks(self.embedding(words)))), targets)


@family("ssm")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 12 layers of width 512 to 1536, 1 to 8 chunks of 64 to 256 words, 2k to 8k words in all."""
    layers = pick(rng, [1, 2, 3, 4, 6, 8, 12])
    width = pick(rng, [512, 768, 1024, 1536])
    chunks = pick(rng, [each for each in (1, 2, 4, 8) if layers * each <= 24])
    length = chunks * pick(rng, [64, 128, 256])
    config = Config(
        layers=layers,
        width=width,
        heads=width // 32,
        states=pick(rng, [16, 64, 128]),
        length=length,
        chunks=chunks,
        kernel=4,
        vocabulary=pick(rng, [8_192, 16_384, 32_768]),
        attention_every=pick(rng, [0, 0, 4]),
        feed_forward=bool(rng.random() < 0.3),
    )
    return LanguageModel(config), word_batch(max(pick(rng, [2048, 4096, 8192]) // length, 1), length)
