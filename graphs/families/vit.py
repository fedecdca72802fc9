"""Vision transformers, some with several attention and feed-forward layers in parallel.

Sources: Dosovitskiy et al. 2021 (arXiv 2010.11929); Touvron et al. 2022 (arXiv 2203.09795) for parallel
layers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families.registry import Drawn, family, pick
from graphs.families.transformer import Attention, FeedForward, PreNorm
from graphs.families.vision import Classifier, image_batch


@dataclass(frozen=True)
class Config:
    """One vision transformer; `joint` and `fused` are explained in `transformer`.

    Attributes:
        branches: parallel attention layers, and parallel feed-forward layers, of a block.
        side, patch: of image and patch, in pixels.
    """

    layers: int
    branches: int
    width: int
    heads: int
    side: int
    patch: int
    joint: bool
    fused: bool


class Patches(nn.Module):
    """Patch embedding plus learned positions."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, config.width, config.patch, config.patch)
        self.position = nn.Parameter(torch.zeros((config.side // config.patch) ** 2, config.width))

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (batch, 3, side, side) as (batch, patches, width)."""
        out: Tensor = self.project(images).flatten(2).transpose(1, 2) + self.position
        return out


class ChannelsFirst(nn.Module):
    """Swap (batch, patches, width) to (batch, width, patches), as `Classifier` expects."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap dimensions 1 and 2."""
        return x.transpose(1, 2)


def build(config: Config, classes: int) -> Classifier:
    """The network and its loss."""
    width = config.width
    layers: list[nn.Module] = [Patches(config)]

    def attention() -> nn.Module:
        return Attention(width, config.heads, causal=False, joint=config.joint, fused=config.fused)

    for _ in range(config.layers):
        layers.append(PreNorm(width, [attention() for _ in range(config.branches)]))
        layers.append(PreNorm(width, [FeedForward(width, 4 * width) for _ in range(config.branches)]))
    return Classifier(nn.Sequential(*layers, nn.LayerNorm(width), ChannelsFirst()), width, classes)


@family("vit")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 12 layers of 1 to 3 branches, width 384 to 1280, images of 160 to 288 pixels, batch 16 to 128."""
    branches = int(rng.integers(1, 4))
    width = pick(rng, [384, 576, 768, 1024, 1280])
    patch = pick(rng, [16, 32])
    config = Config(
        layers=int(rng.integers(1, 12 // branches + 1)),
        branches=branches,
        width=width,
        heads=width // 64,
        side=pick(rng, [160, 224, 288]),
        patch=patch,
        joint=bool(rng.random() < 0.5),
        fused=bool(rng.random() < 0.3),
    )
    return build(config, 1000), image_batch(pick(rng, [16, 32, 64, 128]), config.side)
