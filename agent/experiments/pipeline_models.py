"""Models whose pipelines are measured on processor cores: most of their ops take 100 us and more.

Each function is for `--model`, such as `agent.experiments.pipeline_models:gpt`; it gives one microbatch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from graphs.families import gpt as language_models
from graphs.families import resnet as residual_networks
from graphs.families.vision import ConvNorm

Made = tuple[nn.Module, tuple[Tensor, ...]]
WORDS, CLASSES, LEVELS = 4000, 100, 3


class UNet(nn.Module):
    """Predicts the noise in an image over three resolutions, with skips from the way down to the way up."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = [width << level for level in range(LEVELS + 1)]
        self.first = ConvNorm(3, width, 3)
        self.down = nn.ModuleList(ConvNorm(widths[at], widths[at + 1], 3, stride=2) for at in range(LEVELS))
        self.middle = nn.Sequential(*(ConvNorm(widths[-1], widths[-1], 3) for _ in range(2)))
        self.up = nn.ModuleList(
            ConvNorm(widths[at + 1] + widths[at], widths[at], 3) for at in reversed(range(LEVELS))
        )
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error of the predicted noise; both are (batch, 3, side, side)."""
        x, skips = self.first(image), list[Tensor]()
        for block in self.down.children():
            skips.append(x)
            x = block(x)
        x = self.middle(x)
        for block in self.up.children():
            x = block(torch.cat([nn.functional.interpolate(x, scale_factor=2.0), skips.pop()], 1))
        return nn.functional.mse_loss(self.last(x), noise)


def gpt() -> Made:
    """Six layers of a GPT of width 256, on 2 x 128 words."""
    torch.manual_seed(0)
    config = language_models.Config(
        layers=6,
        width=256,
        heads=4,
        length=128,
        vocabulary=WORDS,
        parallel=False,
        joint=True,
        fused=False,
        gated=False,
        tied=False,
    )
    words = torch.randint(WORDS, (2, 129))
    return language_models.LanguageModel(config), (words[:, :-1].contiguous(), words[:, 1:].contiguous())


def unet() -> Made:
    """A U-Net of width 32, on 4 images of 32 x 32."""
    torch.manual_seed(0)
    return UNet(32), (torch.randn(4, 3, 32, 32), torch.randn(4, 3, 32, 32))


def resnet() -> Made:
    """A residual network of four stages of two basic blocks, width 32, on 4 images of 64 x 64."""
    torch.manual_seed(0)
    config = residual_networks.Config("basic", (2, 2, 2, 2), width=32, branches=1, squeeze=False)
    classes = torch.randint(CLASSES, (4,))
    return residual_networks.build(config, CLASSES), (torch.randn(4, 3, 64, 64), classes)
