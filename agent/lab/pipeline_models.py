"""Models whose pipelines are measured on processor cores: most of their time is in ops of 100 us and more.

Each function is for `--model`, such as `agent.lab.pipeline_models:gpt`; it gives one microbatch.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import gpt as language_models
from graphs.families import resnet as residual_networks
from graphs.families.vision import ConvNorm

Made = tuple[nn.Module, tuple[Tensor, ...]]
WORDS, CLASSES = 4000, 100


def gpt() -> Made:
    """A GPT of six layers of width 256, on 2 x 128 words."""
    torch.manual_seed(0)
    flags = {"parallel": False, "joint": True, "fused": False, "gated": False, "tied": False}
    config = language_models.Config(layers=6, width=256, heads=4, length=128, vocabulary=WORDS, **flags)
    words = torch.randint(WORDS, (2, 129))
    return language_models.LanguageModel(config), (words[:, :-1].contiguous(), words[:, 1:].contiguous())


def unet() -> Made:
    """A U-Net of three resolutions, two convolutions each, width 32, on 4 images of 32 x 32."""
    torch.manual_seed(0)
    return UNet(32, 3, 2), (torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32))


def resnet() -> Made:
    """A residual network of four resolutions, two basic blocks each, width 32, on 4 images of 64 x 64."""
    torch.manual_seed(0)
    config = residual_networks.Config("basic", (2, 2, 2, 2), width=32, branches=1, squeeze=False)
    images, classes = torch.randn(4, 3, 64, 64), torch.randint(CLASSES, (4,))
    return residual_networks.build(config, CLASSES), (images, classes)


class UNet(nn.Module):
    """Convolutions down and up again, with skips at each resolution (Ronneberger et al. 2015).

    Args:
        width: channels at full resolution; each level below has twice as many.
    """

    def __init__(self, width: int, levels: int, convolutions: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(levels)]
        self.down = nn.ModuleList(
            _stack(before, after, convolutions)
            for before, after in zip([3, *widths[:-1]], widths, strict=True)
        )
        self.up = nn.ModuleList(
            _stack(below + here, here, convolutions)
            for below, here in zip(widths[:0:-1], widths[-2::-1], strict=True)
        )
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, images: Tensor, noise: Tensor) -> Tensor:
        """Returns the mean squared error of noise predicted from images, both (batch, 3, side, side)."""
        x, skips = images, []
        for at, block in enumerate(self.down):
            x = block(F.max_pool2d(x, 2) if at else x)
            skips.append(x)
        for block, skip in zip(self.up, skips[-2::-1], strict=True):
            x = block(torch.cat([F.interpolate(x, scale_factor=2.0), skip], 1))
        return F.mse_loss(self.head(x), noise)


def _stack(inputs: int, outputs: int, convolutions: int) -> nn.Sequential:
    sizes = [inputs, *[outputs] * convolutions]
    return nn.Sequential(*(ConvNorm(a, b, 3) for a, b in itertools.pairwise(sizes)))
