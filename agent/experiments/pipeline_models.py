"""Models whose pipelines are measured on processor cores: most of their time is in ops of 100 us and more.

Each function is for `--model`, such as `agent.experiments.pipeline_models:gpt`; it gives one microbatch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agent.experiments.equal_time.sealed_models import UNet
from graphs.families import gpt as language_models
from graphs.families import resnet as residual_networks

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
