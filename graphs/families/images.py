"""Classifiers of images: residual networks, networks of parallel branches, and vision transformers.

Sources: He et al. 2016 (arXiv 1512.03385), Xie et al. 2017 (arXiv 1611.05431), Hu et al. 2018 (arXiv
1709.01507) and Gastaldi 2017 (parallel branches, arXiv 1705.07485) for resnet; Szegedy et al. 2015 (arXiv
1409.4842) and 2016 (arXiv 1512.00567) for inception; Dosovitskiy et al. 2021 (arXiv 2010.11929) and Touvron
et al. 2022 (parallel layers, arXiv 2203.09795) for vit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families import Drawn, family, pick
from graphs.families.layers import Attention, Classifier, ConvNorm, FeedForward, PreNorm, image_batch

CLASSES = 1000


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


RESIDUALS: dict[str, Callable[[int, int, int], list[nn.Module]]] = {
    "basic": _basic,
    "bottleneck": _bottleneck,
    "grouped": partial(_bottleneck, groups=32),
}
"""Layers of a residual branch, by kind, from input channels, width and stride."""


class Block(nn.Module):
    """Residual branches beside a shortcut, which is projected where the shape changes."""

    def __init__(
        self, kind: str, inputs: int, width: int, *, stride: int, branches: int, squeeze: bool
    ) -> None:
        super().__init__()
        self.outputs = width if kind == "basic" else 4 * width
        self.branches = nn.ModuleList()
        for _ in range(branches):
            branch = nn.Sequential(*RESIDUALS[kind](inputs, width, stride))
            self.branches.append(branch.append(Squeeze(self.outputs)) if squeeze else branch)
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


def resnet(
    kind: str, depths: Sequence[int], width: int, *, branches: int, squeeze: bool, classes: int = CLASSES
) -> Classifier:
    """A residual network and its loss.

    Args:
        kind: key of `RESIDUALS`.
        depths: blocks per stage; channels double and the resolution halves from stage to stage.
        width: channels inside the blocks of the first stage.
        branches: parallel residual branches of a block.
        squeeze: true if branches end in squeeze-and-excitation.
    """
    layers: list[nn.Module] = [ConvNorm(3, width, 7, stride=2), nn.MaxPool2d(3, 2, 1)]
    channels = width
    for stage, depth in enumerate(depths):
        for index in range(depth):
            stride = 2 if stage and not index else 1
            block = Block(kind, channels, width << stage, stride=stride, branches=branches, squeeze=squeeze)
            layers.append(block)
            channels = block.outputs
    return Classifier(nn.Sequential(*layers), channels, classes)


@family("resnet")
def draw_resnet(rng: np.random.Generator) -> Drawn:
    """2 to 4 stages of 1 to 6 blocks, width 64 to 128, images of 160 to 288 pixels, batch 16 to 96."""
    stages, deepest = int(rng.integers(2, 5)), pick(rng, [2, 4, 6])
    network = resnet(
        pick(rng, ["basic", "bottleneck", "grouped"]),
        [int(depth) for depth in rng.integers(1, deepest + 1, size=stages)],
        pick(rng, [64, 96, 128]),
        branches=pick(rng, [1, 1, 2, 3]),
        squeeze=bool(rng.random() < 0.3),
    )
    return network, image_batch(pick(rng, [16, 32, 64, 96]), pick(rng, [160, 192, 224, 288]))


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
"""Kernels of the convolutions of each kind of branch of inception, first to last."""


class Branches(nn.Module):
    """Branches side by side, concatenated over channels."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenated outputs (batch, channels, side, side) of all branches on x."""
        return torch.cat([branch(x) for branch in self.branches], 1)


def _branch(inputs: int, width: int, kernels: Sequence[Kernel], stride: int = 1) -> nn.Sequential:
    """Convolutions one after the other, the last one with the stride."""
    sizes, strides = [inputs] + [width] * len(kernels), [1] * (len(kernels) - 1) + [stride]
    parts = zip(sizes, kernels, strides, strict=False)
    return nn.Sequential(*(ConvNorm(size, width, kernel, stride=step) for size, kernel, step in parts))


def inception(stages: Sequence[Sequence[Sequence[int]]], width: int, classes: int = CLASSES) -> Classifier:
    """A network of parallel branches and its loss.

    Args:
        stages: per resolution its blocks, per block its branches (indices of `BRANCHES`); every block has a
            pooling branch besides.
        width: channels of one branch at the first resolution; they grow by half at each further one.
    """
    channels = 64
    layers: list[nn.Module] = [ConvNorm(3, 32, 3, stride=2), ConvNorm(32, channels, 3), nn.MaxPool2d(3, 2, 1)]
    for stage, blocks in enumerate(stages):
        if stage:
            short = _branch(channels, width, BRANCHES[1][1:], stride=2)
            long = _branch(channels, width, BRANCHES[3], stride=2)
            layers.append(Branches(short, long, nn.MaxPool2d(3, 2, 1)))
            channels, width = channels + 2 * width, width * 3 // 2
        for kinds in blocks:
            pooling = nn.Sequential(nn.AvgPool2d(3, 1, 1), ConvNorm(channels, width))
            layers.append(Branches(*(_branch(channels, width, BRANCHES[kind]) for kind in kinds), pooling))
            channels = width * (len(kinds) + 1)
    return Classifier(nn.Sequential(*layers), channels, classes)


@family("inception")
def draw_inception(rng: np.random.Generator) -> Drawn:
    """1 to 3 resolutions of 1 to 3 blocks of 3 to 6 branches, images of 192 to 299 pixels, batch 16 to 64."""
    stages = [
        [rng.integers(len(BRANCHES), size=rng.integers(2, 6)).tolist() for _ in range(rng.integers(1, 4))]
        for _ in range(rng.integers(1, 4))
    ]
    network = inception(stages, width=pick(rng, [48, 64, 96, 128]))
    return network, image_batch(pick(rng, [16, 32, 64]), pick(rng, [192, 224, 299]))


class Patches(nn.Module):
    """Patch embedding plus learned positions."""

    def __init__(self, side: int, patch: int, width: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, width, patch, patch)
        self.position = nn.Parameter(torch.zeros((side // patch) ** 2, width))

    def forward(self, images: Tensor) -> Tensor:
        """Embed images (batch, 3, side, side) as (batch, patches, width)."""
        return self.project(images).flatten(2).transpose(1, 2) + self.position


class ChannelsFirst(nn.Module):
    """Swap (batch, patches, width) to (batch, width, patches), as `Classifier` expects."""

    def forward(self, x: Tensor) -> Tensor:
        """Swap dimensions 1 and 2."""
        return x.transpose(1, 2)


def vit(
    patches: Patches, layers: int, heads: int, *, branches: int, classes: int = CLASSES, **kinds: bool
) -> Classifier:
    """A vision transformer and its loss.

    Args:
        branches: parallel attention layers, and parallel feed-forward layers, of a block.
        kinds: `joint` and `fused` of `Attention`.
    """
    width = patches.project.out_channels
    parts: list[nn.Module] = [patches]
    for _ in range(layers):
        attention = [Attention(width, heads, causal=False, **kinds) for _ in range(branches)]
        parts.append(PreNorm(width, attention))
        parts.append(PreNorm(width, [FeedForward(width, 4 * width) for _ in range(branches)]))
    return Classifier(nn.Sequential(*parts, nn.LayerNorm(width), ChannelsFirst()), width, classes)


@family("vit")
def draw_vit(rng: np.random.Generator) -> Drawn:
    """1 to 12 layers of 1 to 3 branches, width 384 to 1280, images of 160 to 288 pixels, batch 16 to 128."""
    branches = int(rng.integers(1, 4))
    width = pick(rng, [384, 576, 768, 1024, 1280])
    patch = pick(rng, [16, 32])
    layers = int(rng.integers(1, 12 // branches + 1))
    side = pick(rng, [160, 224, 288])
    network = vit(
        Patches(side, patch, width),
        layers,
        width // 64,
        branches=branches,
        joint=bool(rng.random() < 0.5),
        fused=bool(rng.random() < 0.3),
    )
    return network, image_batch(pick(rng, [16, 32, 64, 128]), side)
