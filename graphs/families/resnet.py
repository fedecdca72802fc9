"""Residual networks: basic, bottleneck or grouped blocks, some with parallel branches or gates.

Sources: He et al. 2016 (arXiv 1512.03385), Xie et al. 2017 (arXiv 1611.05431), Hu et al. 2018 (arXiv
1709.01507), Gastaldi 2017 (arXiv 1705.07485) for parallel residual branches.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families.registry import Drawn, family, pick
from graphs.families.vision import Classifier, ConvNorm, image_batch


@dataclass(frozen=True)
class Config:
    """One network of the family.

    Attributes:
        kind: `basic`, `bottleneck` or `grouped`.
        depths: blocks per stage; channels double and the resolution halves from stage to stage.
        width: channels inside the blocks of the first stage.
        branches: parallel residual branches of a block.
        squeeze: whether branches end in squeeze-and-excitation.
    """

    kind: str
    depths: tuple[int, ...]
    width: int
    branches: int
    squeeze: bool


class Squeeze(nn.Module):
    """Scale channels by gates computed from their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down = nn.Conv2d(channels, channels // 16, 1)
        self.up = nn.Conv2d(channels // 16, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Gated x (batch, channels, side, side)."""
        means = x.mean((2, 3), keepdim=True)
        return x * torch.sigmoid(self.up(torch.relu(self.down(means))))


def _basic(inputs: int, width: int, stride: int) -> list[nn.Module]:
    return [ConvNorm(inputs, width, 3, stride=stride), ConvNorm(width, width, 3, relu=False)]


def _bottleneck(inputs: int, width: int, stride: int, groups: int = 1) -> list[nn.Module]:
    middle = ConvNorm(width, width, 3, stride=stride, groups=groups)
    return [ConvNorm(inputs, width), middle, ConvNorm(width, 4 * width, relu=False)]


BRANCHES: dict[str, Callable[[int, int, int], list[nn.Module]]] = {
    "basic": _basic,
    "bottleneck": _bottleneck,
    "grouped": partial(_bottleneck, groups=32),
}
"""Layers of a residual branch, by kind, from input channels, width and stride."""


class Block(nn.Module):
    """Residual branches beside a shortcut, which is projected where the shape changes."""

    def __init__(self, config: Config, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.outputs = width if config.kind == "basic" else 4 * width
        self.branches = nn.ModuleList()
        for _ in range(config.branches):
            branch = nn.Sequential(*BRANCHES[config.kind](inputs, width, stride))
            self.branches.append(branch.append(Squeeze(self.outputs)) if config.squeeze else branch)
        changes = stride > 1 or inputs != self.outputs
        self.shortcut = (
            ConvNorm(inputs, self.outputs, stride=stride, relu=False) if changes else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, side, side) to (batch, outputs, side / stride, side / stride)."""
        out = self.shortcut(x)
        for branch in self.branches:
            out = out + branch(x)
        return torch.relu(out)


def build(config: Config, classes: int) -> Classifier:
    """The network and its loss."""
    layers: list[nn.Module] = [ConvNorm(3, config.width, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
    channels = config.width
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            stride = 2 if stage and not index else 1
            block = Block(config, channels, config.width << stage, stride)
            layers.append(block)
            channels = block.outputs
    return Classifier(nn.Sequential(*layers), channels, classes)


@family("resnet")
def draw(rng: np.random.Generator) -> Drawn:
    """2 to 4 stages of 1 to 6 blocks, width 64 to 128, images of 160 to 288 pixels, batch 16 to 96."""
    stages, deepest = int(rng.integers(2, 5)), pick(rng, [2, 4, 6])
    config = Config(
        kind=pick(rng, ["basic", "bottleneck", "grouped"]),
        depths=tuple(int(depth) for depth in rng.integers(1, deepest + 1, size=stages)),
        width=pick(rng, [64, 96, 128]),
        branches=pick(rng, [1, 1, 2, 3]),
        squeeze=bool(rng.random() < 0.3),
    )
    return build(config, 1000), image_batch(pick(rng, [16, 32, 64, 96]), pick(rng, [160, 192, 224, 288]))
