"""A U-Net for images: two resolutions, skip connections, and attention in the middle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH, SIDE, BATCH = 16, 16, 2


class Block(nn.Module):
    """Two normalized convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, inside),
            nn.SiLU(inplace=True),
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(4, outside),
            nn.SiLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1),
        )
        self.shortcut = nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        # A copy, as the first activation of the body works in place.
        return self.body(x.clone()) + self.shortcut(x)


class Attention(nn.Module):
    """Attention between the places of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.heads = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        places = self.norm(x).flatten(2).transpose(1, 2)
        mixed, _ = self.heads(places, places, places, need_weights=False)
        return x + mixed.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Predicts the noise in an image; the loss is its mean squared error."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width), Block(width, 2 * width)])
        self.middle = nn.Sequential(Block(2 * width, 2 * width), Attention(2 * width))
        self.up = nn.ModuleList([Block(4 * width, width), Block(2 * width, width)])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        x, skips = self.first(image + noise), []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1))
        return nn.functional.mse_loss(self.last(x), noise)


def make() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Makes the network and a batch of images with noise."""
    torch.manual_seed(0)
    return UNet(WIDTH), (torch.randn(BATCH, 3, SIDE, SIDE), torch.randn(BATCH, 3, SIDE, SIDE))
