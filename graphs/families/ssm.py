"""Causal language models of state-space blocks, in the manner of Mamba, in some draws with attention between.

The scan is computed in chunks: a product of matrices within each, and a state handed from one to the next.

Sources: Gu and Dao 2023 (Mamba, arXiv 2312.00752); Dao and Gu 2024 (scalar decays and chunks, arXiv
2405.21060); Lieber et al. 2024 (attention between, arXiv 2403.19887).
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import Drawn, family, pick
from graphs.families.layers import (
    Attention,
    FeedForward,
    LanguageModel,
    PreNorm,
    RMSNorm,
    Sizes,
    later,
    word_batch,
)

KERNEL = 4
"""Words that the convolution before a scan sees."""


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
        future = later(between)
        weights = queries @ keys.transpose(-2, -1) * between.masked_fill(future, -torch.inf).exp()
        output = weights @ values
        decayed = values * (total[..., -1:] - total).exp().unsqueeze(-1)
        added = keys.transpose(-2, -1) @ decayed
        if state is None:
            state = added
        else:
            output = output + queries @ state * total.exp().unsqueeze(-1)
            state = state * total[..., -1:].exp().unsqueeze(-1) + added
        outputs.append(output)
    return torch.cat(outputs, 2)


class SelectiveScan(nn.Module):
    """A gated, causal convolution and scan whose decay, write and read depend on the word.

    Args:
        heads: parts of the inner channels, each with a decay of its own.
        states: numbers that a head remembers of each of its channels.
        chunks: parts of the sequence that are scanned one after the other.
    """

    def __init__(self, width: int, heads: int, states: int, chunks: int) -> None:
        super().__init__()
        inner, self.chunks = 2 * width, chunks
        self.enter, self.gate = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.convolution = nn.Conv1d(inner, inner, KERNEL, groups=inner)
        self.write, self.read = (nn.Linear(inner, states, bias=False) for _ in range(2))
        self.step = nn.Linear(inner, heads)
        self.log_speed = nn.Parameter(torch.zeros(heads))
        self.skip = nn.Parameter(torch.ones(inner))
        self.norm, self.out = RMSNorm(inner), nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        seen = F.pad(self.enter(x).transpose(1, 2), (KERNEL - 1, 0))
        inner = F.silu(self.convolution(seen)).transpose(1, 2)
        step = F.softplus(self.step(inner))
        decay = (-self.log_speed.exp() * step).transpose(1, 2)
        values = (inner.view(*step.shape, -1) * step.unsqueeze(-1)).transpose(1, 2)
        write, read = (layer(inner).unsqueeze(1) for layer in (self.write, self.read))
        mixed = scan(values, decay, write, read, self.chunks).transpose(1, 2).flatten(2)
        return self.out(self.norm((mixed + inner * self.skip) * F.silu(self.gate(x))))


def state_space_model(
    sizes: Sizes, *, states: int, chunks: int, attention_every: int, feed_forward: bool
) -> LanguageModel:
    """A causal language model of state-space blocks.

    Args:
        states, chunks: arguments of `SelectiveScan`.
        attention_every: every so many layers attention takes the place of the scan; 0 for never.
        feed_forward: true if a feed-forward layer follows each.
    """
    width = sizes.width
    embedding, blocks = nn.Embedding(sizes.vocabulary, width), nn.Sequential()
    for layer in range(1, sizes.layers + 1):
        mixer: nn.Module
        if attention_every and layer % attention_every == 0:
            mixer = Attention(width, width // 64, causal=True, joint=True, fused=False)
        else:
            mixer = SelectiveScan(width, sizes.heads, states, chunks)
        blocks.append(PreNorm(width, [mixer]))
        if feed_forward:
            blocks.append(PreNorm(width, [FeedForward(width, 4 * width)]))
    head = nn.Linear(width, sizes.vocabulary, bias=False)
    return LanguageModel(embedding, blocks, RMSNorm(width), head)


@family("ssm")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 12 layers of width 512 to 1536, 1 to 8 chunks of 64 to 256 words, 2k to 8k words in all."""
    layers = pick(rng, [1, 2, 3, 4, 6, 8, 12])
    width = pick(rng, [512, 768, 1024, 1536])
    chunks = pick(rng, [count for count in (1, 2, 4, 8) if layers * count <= 24])
    length = chunks * pick(rng, [64, 128, 256])
    states = pick(rng, [16, 64, 128])
    model = state_space_model(
        Sizes(layers, width, width // 32, length, vocabulary=pick(rng, [8_192, 16_384, 32_768])),
        states=states,
        chunks=chunks,
        attention_every=pick(rng, [0, 0, 4]),
        feed_forward=bool(rng.random() < 0.3),
    )
    return model, word_batch(max(pick(rng, [2048, 4096, 8192]) // length, 1), length)
