"""Models too large for the shipped set, by name: `evaluate.py --model graphs.families.large:gpt2_xl`.

Each function returns (module, inputs) on the meta device. They are no families: nothing is drawn.

Sources: Radford et al. 2019 (GPT-2); Touvron et al. 2023 (LLaMA, arXiv 2302.13971); Zhang and Sennrich 2019
(RMS normalisation, arXiv 1910.07467); Su et al. 2021 (rotary positions, arXiv 2104.09864); Wu et al. 2016
(eight layers of LSTM, arXiv 1609.08144).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import gpt, nmt
from graphs.families.registry import Drawn
from graphs.families.transformer import word_batch, word_loss

ROTARY_BASE = 10_000.0


def gpt2_xl() -> Drawn:
    """GPT-2 XL: 1.6 billion parameters in 48 layers; one sequence of 1,024 words."""
    config = gpt.Config(
        layers=48,
        width=1600,
        heads=25,
        length=1024,
        vocabulary=50_257,
        parallel=False,
        joint=True,
        fused=False,
        gated=False,
        tied=True,
    )
    with torch.device("meta"):
        return gpt.LanguageModel(config), word_batch(1, config.length)


def llama_7b() -> Drawn:
    """LLaMA 7B: 6.7 billion parameters in 32 layers; one sequence of 2,048 words."""
    with torch.device("meta"):
        return Llama(layers=32, width=4096, inner=11_008, heads=32, vocabulary=32_000), word_batch(1, 2048)


def seq2seq() -> Drawn:
    """Eight layers of LSTM each way, unrolled over sentences of 78 words: some 50,000 ops."""
    config = nmt.Config(
        layers=8,
        hidden=1024,
        vocabulary=32_000,
        attention="additive",
        input_feeding=True,
        bidirectional=True,
        residual=True,
    )
    batch, words = 128, 78
    with torch.device("meta"):
        source, target, labels = (torch.zeros(words, batch, dtype=torch.long) for _ in range(3))
        return nmt.Translator(config), (source, target, labels, torch.zeros(batch, config.hidden))


class RMSNorm(nn.Module):
    """Division by the root mean square, then a scale per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scale


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
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        mixed = torch.softmax(scores.masked_fill(future, -torch.inf), -1) @ value
        out: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return out


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


class SwiGlu(nn.Module):
    """A feed-forward layer gated by SiLU, without biases (Shazeer 2020, arXiv 2002.05202)."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class LlamaBlock(nn.Module):
    """Attention, then feed-forward, each normalised before."""

    def __init__(self, width: int, inner: int, heads: int) -> None:
        super().__init__()
        self.attention_norm, self.attention = RMSNorm(width), RotaryAttention(width, heads)
        self.feed_forward_norm, self.feed_forward = RMSNorm(width), SwiGlu(width, inner)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Map x (batch, time, width) to the same shape."""
        x = x + self.attention(self.attention_norm(x), cos, sin)
        out: Tensor = x + self.feed_forward(self.feed_forward_norm(x))
        return out


class Llama(nn.Module):
    """Next-word cross-entropy of a LLaMA."""

    def __init__(self, layers: int, width: int, inner: int, heads: int, vocabulary: int) -> None:
        super().__init__()
        self.turned = width // heads // 2
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(width, inner, heads) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        x = self.embedding(words)
        speed = ROTARY_BASE ** (-torch.arange(self.turned, device=x.device) / self.turned)
        angle = torch.outer(torch.arange(words.shape[1], device=x.device), speed).repeat(1, 2)
        cos, sin = angle.cos(), angle.sin()
        for block in self.blocks:
            x = block(x, cos, sin)
        return word_loss(self.head(self.norm(x)), targets)
