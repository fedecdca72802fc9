"""Inception-like networks: blocks of random parallel branches.

Sources: Szegedy et al. 2015 (arXiv 1409.4842) and 2016 (arXiv 1512.00567) for the branches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families.registry import Drawn, family, pick
from graphs.families.vision import Classifier, ConvNorm, image_batch

Kernel = tuple[int, int]

BRANCHES: tuple[tuple[Kernel, ...], ...] = (
    ((1, 1),),
    ((1, 1), (3, 3)),
    ((1, 1), (5, 5)),
    ((1, 1), (3, 3), (3, 3)),
    ((1, 1), (1, 7), (7, 1)),
    ((1, 1), (7, 1), (1, 7), (7, 1), (1, 7)),
    ((1, 1), (1, 3), (3, 1)),
)
"""Kernels of the convolutions of each kind of branch, first to last."""


@dataclass(frozen=True)
class Config:
    """One network of the family.

    Attributes:
        stages: per resolution its blocks, per block its branches (indices of `BRANCHES`); every block has a
            pooling branch besides.
        width: channels of one branch at the first resolution; they grow by half at each further one.
    """

    stages: tuple[tuple[tuple[int, ...], ...], ...]
    width: int


class Branches(nn.Module):
    """Branches side by side, concatenated over channels."""

    def __init__(self, branches: list[nn.Module]) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenated outputs (batch, channels, side, side) of all branches on x."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _branch(inputs: int, width: int, kernels: tuple[Kernel, ...], stride: int = 1) -> nn.Sequential:
    sizes = [inputs] + [width] * len(kernels)
    last = len(kernels) - 1
    return nn.Sequential(
        *(
            ConvNorm(sizes[i], width, kernel, stride=stride if i == last else 1)
            for i, kernel in enumerate(kernels)
        )
    )


def _block(inputs: int, width: int, kinds: tuple[int, ...]) -> tuple[Branches, int]:
    pooling = nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(inputs, width))
    branches = [_branch(inputs, width, BRANCHES[kind]) for kind in kinds]
    return Branches([*branches, pooling]), width * (len(kinds) + 1)


def _reduction(inputs: int, width: int) -> tuple[Branches, int]:
    short = _branch(inputs, width, ((3, 3),), stride=2)
    long = _branch(inputs, width, ((1, 1), (3, 3), (3, 3)), stride=2)
    return Branches([short, long, nn.MaxPool2d(3, 2, 1)]), inputs + 2 * width


def build(config: Config, classes: int) -> Classifier:
    """The network and its loss."""
    channels, width = 64, config.width
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, stride=2), ConvNorm(32, channels, 3), nn.MaxPool2d(3, 2, 1)]
    for stage, blocks in enumerate(config.stages):
        if stage:
            reduction, channels = _reduction(channels, width)
            layers.append(reduction)
            width = width * 3 // 2
        for kinds in blocks:
            block, channels = _block(channels, width, kinds)
            layers.append(block)
    return Classifier(nn.Sequential(*layers), channels, classes)


@family("inception")
def draw(rng: np.random.Generator) -> Drawn:
    """1 to 3 resolutions of 1 to 3 blocks of 3 to 6 branches, images of 192 to 299 pixels, batch 16 to 64."""
    stages = tuple(
        tuple(
            tuple(int(kind) for kind in rng.integers(len(BRANCHES), size=rng.integers(2, 6)))
            for _ in range(rng.integers(1, 4))
        )
        for _ in range(rng.integers(1, 4))
    )
    config = Config(stages, width=pick(rng, [48, 64, 96, 128]))
    return build(config, 1000), image_batch(pick(rng, [16, 32, 64]), pick(rng, [192, 224, 299]))
