"""Randomly wired networks: stages whose nodes are connected by a random graph.

They are convolutional, position-wise with attention, or recurrent, and serve as training graphs with many
kinds of wiring. Source: Xie et al. 2019 (arXiv 1904.01569), section 3; the kinds other than convolutional are
ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import Drawn, family, pick
from graphs.families.layers import (
    Attention,
    Classifier,
    ConvNorm,
    Embedding,
    FeedForward,
    image_batch,
    word_batch,
    word_loss,
)

Wiring = tuple[tuple[int, ...], ...]
"""Per node the earlier nodes that it sums; none: it reads the stage's input."""


def draw_wiring(rng: np.random.Generator, nodes: int) -> Wiring:
    """A random graph of the kinds that Xie et al. try, all edges from the lower node to the higher."""
    seed = int(rng.integers(2**31))
    if nodes < 4:
        graph = nx.gnp_random_graph(nodes, 0.5, seed=seed)
    else:
        draws: list[Callable[[], nx.Graph]] = [
            lambda: nx.gnp_random_graph(nodes, 2.0 / nodes + 0.05, seed=seed),
            lambda: nx.barabasi_albert_graph(nodes, 1 + seed % 3, seed=seed),
            lambda: nx.watts_strogatz_graph(nodes, 2 + 2 * (seed % 2), 0.25 + 0.5 * (seed % 2), seed=seed),
        ]
        graph = pick(rng, draws)()
    return tuple(tuple(sorted(other for other in graph[node] if other < node)) for node in range(nodes))


class Stage(nn.Module):
    """Nodes that sum what they read and transform it; the mean of those that none reads is the output.

    Args:
        layers: one per node; each maps a tensor to one of the same shape.
    """

    def __init__(self, wiring: Wiring, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.wiring = wiring
        self.layers = nn.ModuleList(layers)
        read = {source for sources in wiring for source in sources}
        self.leaves = [node for node in range(len(wiring)) if node not in read]

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor to one of the same shape."""
        states: list[Tensor] = []
        for sources, layer in zip(self.wiring, self.layers, strict=True):
            states.append(layer(_sum([states[source] for source in sources]) if sources else x))
        out = _sum([states[leaf] for leaf in self.leaves])
        return out / len(self.leaves) if len(self.leaves) > 1 else out


def _sum(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for tensor in tensors[1:]:
        total = total + tensor
    return total


class Gate(nn.Module):
    """x + sigmoid(x V) (tanh(x W) - x), a highway (Srivastava et al. 2015, arXiv 1505.00387)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.both = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., width) to the same shape."""
        gate, value = self.both(x).chunk(2, -1)
        return x + torch.sigmoid(gate) * (torch.tanh(value) - x)


def _attention(width: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(width), Attention(width, width // 64, causal=True, joint=True, fused=True)
    )


def _separable(channels: int, kernel: int) -> nn.Module:
    depthwise = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels, bias=False)
    return nn.Sequential(nn.ReLU(), depthwise, ConvNorm(channels, channels, relu=False))


Layer = Callable[[int], nn.Module]
IMAGE: dict[str, Layer] = {
    "convolution": lambda channels: ConvNorm(channels, channels, 3),
    "grouped": lambda channels: ConvNorm(channels, channels, 3, groups=8),
    "pointwise": lambda channels: ConvNorm(channels, channels),
    "separable": lambda channels: _separable(channels, 3),
    "separable5": lambda channels: _separable(channels, 5),
    "pool": lambda channels: nn.MaxPool2d(3, 1, 1),
}
WORDS: dict[str, Layer] = {
    "attention": _attention,
    "feed-forward": lambda width: nn.Sequential(nn.LayerNorm(width), FeedForward(width, 4 * width)),
    "gated": lambda width: nn.Sequential(nn.LayerNorm(width), FeedForward(width, 2 * width, gated=True)),
    "dense": lambda width: nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.GELU()),
}
STATE: dict[str, Layer] = {
    "dense": lambda width: nn.Sequential(nn.Linear(width, width), nn.Tanh()),
    "gate": Gate,
    "feed-forward": lambda width: FeedForward(width, 2 * width),
}


@dataclass(frozen=True)
class Config:
    """One network of the family.

    Attributes:
        wirings: wirings of each stage.
        layers: name of every node's layer, per stage.
        width: channels of the first stage, or width of words and states.
    """

    wirings: tuple[Wiring, ...]
    layers: tuple[tuple[str, ...], ...]
    width: int

    def stages(self, kinds: dict[str, Layer], growth: int = 1) -> list[Stage]:
        """The stages; each is `growth` times as wide as the one before."""
        widths = [self.width * growth**number for number in range(len(self.wirings))]
        return [
            Stage(wiring, [kinds[name](width) for name in names])
            for wiring, names, width in zip(self.wirings, self.layers, widths, strict=True)
        ]


class ImageNetwork(nn.Module):
    """A stem, and stages at half the resolution and twice the channels of the one before."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        widths = [config.width * 2**number for number in range(len(config.wirings))]
        inputs = [3, *widths[:-1]]
        self.entries = nn.ModuleList(
            ConvNorm(before, width, 3, stride=2) for before, width in zip(inputs, widths, strict=True)
        )
        self.stages = nn.ModuleList(config.stages(IMAGE, growth=2))
        self.channels = widths[-1]

    def forward(self, images: Tensor) -> Tensor:
        """Features (batch, channels, side, side) of images (batch, 3, side, side)."""
        for entry, stage in zip(self.entries, self.stages, strict=True):
            images = stage(entry(images))
        return images


class WordNetwork(nn.Module):
    """Next-word loss after stages, each with a shortcut around it."""

    def __init__(self, config: Config, vocabulary: int, length: int) -> None:
        super().__init__()
        self.embedding = Embedding(vocabulary, length, config.width)
        self.stages = nn.ModuleList(config.stages(WORDS))
        self.head = nn.Linear(config.width, vocabulary, bias=False)

    def forward(self, words: Tensor, targets: Tensor) -> Tensor:
        """Loss of words and targets, int (batch, time)."""
        x = self.embedding(words)
        for stage in self.stages:
            x = x + stage(x)
        return word_loss(self.head(x), targets)


class RecurrentNetwork(nn.Module):
    """Regression of a sequence by stages that read input and state, and write the state, at every step."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.read = nn.Linear(config.width, config.width)
        self.stages = nn.ModuleList(config.stages(STATE))
        self.head = nn.Linear(config.width, config.width)

    def forward(self, inputs: Tensor, targets: Tensor, state: Tensor) -> Tensor:
        """Loss of inputs and targets (time, batch, width) from a state (batch, width)."""
        losses = []
        for x, target in zip(inputs.unbind(0), targets.unbind(0), strict=True):
            state = state + self.read(x)
            for stage in self.stages:
                state = stage(state)
            losses.append(F.mse_loss(self.head(state), target))
        return torch.stack(losses).mean()


def _draw_config(
    rng: np.random.Generator, kinds: dict[str, Layer], nodes: int, width: int, stages: int
) -> Config:
    """Stages of about `nodes` nodes together, of two or three of the kinds of layer."""
    names = tuple(kinds)
    palette = [names[kind] for kind in rng.permutation(len(names))[: int(rng.integers(2, 4))]]
    sizes = [max(2, int(size)) for size in nodes * rng.dirichlet(np.full(stages, 3.0))]
    wirings = tuple(draw_wiring(rng, size) for size in sizes)
    return Config(wirings, tuple(tuple(pick(rng, palette) for _ in wiring) for wiring in wirings), width)


@family("randwire")
def draw(rng: np.random.Generator) -> Drawn:
    """8 to 40 nodes in 1 to 3 stages, on images of side 32 or 64, on words, or over 3 to 12 time steps."""
    kind = pick(rng, ["image", "words", "state"])
    stages, nodes = int(rng.integers(1, 4)), int(rng.integers(8, 41))
    if kind == "image":
        config = _draw_config(rng, IMAGE, nodes, pick(rng, [64, 96, 128, 192]), stages)
        network = ImageNetwork(config)
        inputs = image_batch(pick(rng, [32, 64, 128, 256]), pick(rng, [32, 64]))
        return Classifier(network, network.channels, 10), inputs
    batch, width = pick(rng, [4, 8, 16, 32]), pick(rng, [256, 512, 768, 1024])
    if kind == "words":
        length, vocabulary = pick(rng, [64, 128, 256]), pick(rng, [1_000, 8_000, 32_000])
        config = _draw_config(rng, WORDS, nodes, width, stages)
        return WordNetwork(config, vocabulary, length), word_batch(batch, length)
    steps = int(np.clip(rng.integers(40, 161) // nodes, 3, 12))
    config = _draw_config(rng, STATE, min(nodes, 16), 2 * width, min(stages, 2))
    sequence = torch.zeros(steps, 16 * batch, 2 * width)
    return RecurrentNetwork(config), (sequence, torch.zeros_like(sequence), sequence[0])
