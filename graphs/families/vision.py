"""Parts of the image families: convolution with batch normalisation, and a classifier with its loss."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def batch_norm(channels: int) -> nn.BatchNorm2d:
    """Batch normalisation by batch statistics alone: running statistics would add ops that do no work."""
    return nn.BatchNorm2d(channels, track_running_stats=False)


class ConvNorm(nn.Sequential):
    """Convolution that keeps the resolution (or divides it by `stride`), batch normalisation, ReLU."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int | tuple[int, int] = 1,
        *,
        stride: int = 1,
        groups: int = 1,
        relu: bool = True,
    ) -> None:
        height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
        convolution = nn.Conv2d(
            inputs,
            outputs,
            (height, width),
            stride,
            padding=(height // 2, width // 2),
            groups=groups,
            bias=False,
        )
        super().__init__(convolution, batch_norm(outputs))
        if relu:
            self.append(nn.ReLU())


class Classifier(nn.Module):
    """Cross-entropy of a linear classifier on the features' mean over positions.

    Args:
        features: maps images (batch, 3, side, side) to (batch, channels, ...).
        channels: size of dimension 1 of the features.
    """

    def __init__(self, features: nn.Module, channels: int, classes: int) -> None:
        super().__init__()
        self.features = features
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Loss of images (batch, 3, side, side) and labels, int (batch,)."""
        logits = self.head(self.features(images).flatten(2).mean(2))
        return F.cross_entropy(logits, labels)


def image_batch(batch: int, side: int) -> tuple[Tensor, Tensor]:
    """Images (batch, 3, side, side) and labels, int (batch,), all zero."""
    return torch.zeros(batch, 3, side, side), torch.zeros(batch, dtype=torch.long)
