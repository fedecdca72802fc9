"""Residual networks: basic, bottleneck or grouped blocks, with or without squeeze-and-excitation.

Sources: He et al. 2016 (arXiv 1512.03385), Xie et al. 2017 (arXiv 1611.05431), Hu et al. 2018 (arXiv
1709.01507).
"""

from __future__ import annotations

from dataclasses import dataclass

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
        squeeze: whether blocks end in squeeze-and-excitation.
    """

    kind: str
    depths: tuple[int, ...]
    width: int
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


def _body(kind: str, inputs: int, width: int, stride: int) -> list[nn.Module]:
    if kind == "basic":
        return [ConvNorm(inputs, width, 3, stride=stride), ConvNorm(width, width, 3, relu=False)]
    groups = 32 if kind == "grouped" else 1
    return [
        ConvNorm(inputs, width),
        ConvNorm(width, width, 3, stride=stride, groups=groups),
        ConvNorm(width, 4 * width, relu=False),
    ]


class Block(nn.Module):
    """Convolutions beside a shortcut, which is projected where the shape changes."""

    def __init__(self, kind: str, inputs: int, width: int, stride: int, *, squeeze: bool) -> None:
        super().__init__()
        self.outputs = width if kind == "basic" else 4 * width
        gate = [Squeeze(self.outputs)] if squeeze else []
        self.body = nn.Sequential(*_body(kind, inputs, width, stride), *gate)
        changes = stride > 1 or inputs != self.outputs
        self.shortcut = (
            ConvNorm(inputs, self.outputs, stride=stride, relu=False) if changes else nn.Identity()
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, inputs, side, side) to (batch, outputs, side / stride, side / stride)."""
        return torch.relu(self.body(x) + self.shortcut(x))


def build(config: Config, classes: int) -> Classifier:
    """The network and its loss."""
    layers: list[nn.Module] = [ConvNorm(3, config.width, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
    channels = config.width
    for stage, depth in enumerate(config.depths):
        for index in range(depth):
            stride = 2 if stage and not index else 1
            block = Block(config.kind, channels, config.width << stage, stride, squeeze=config.squeeze)
            layers.append(block)
            channels = block.outputs
    return Classifier(nn.Sequential(*layers), channels, classes)


@family("resnet")
def draw(rng: np.random.Generator) -> Drawn:
    """3 or 4 stages of 1 to 5 blocks, width 64 to 128, images of 160 to 288 pixels, batch 16 to 96."""
    stages = int(rng.integers(3, 5))
    config = Config(
        kind=pick(rng, ["basic", "bottleneck", "grouped"]),
        depths=tuple(int(depth) for depth in rng.integers(1, 6, size=stages)),
        width=pick(rng, [64, 96, 128]),
        squeeze=bool(rng.random() < 0.3),
    )
    return build(config, 1000), image_batch(pick(rng, [16, 32, 64, 96]), pick(rng, [160, 192, 224, 288]))
