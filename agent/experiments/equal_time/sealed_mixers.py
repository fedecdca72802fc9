"""Conformers and mixers: families of the sealed test set that mix words or patches by more than attention."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from graphs.families.registry import Drawn, pick
from graphs.families.transformer import Attention, FeedForward, PreNorm, word_loss
from graphs.families.vision import Classifier, ConvNorm, image_batch


class Transposed(nn.Module):
    """A layer of tensors whose dimensions 1 and 2 are swapped."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, a, b) to the same shape."""
        out: Tensor = self.layer(x.transpose(1, 2)).transpose(1, 2)
        return out


class ConformerBlock(nn.Module):
    """Half a feed-forward layer, attention, a gated convolution, half a feed-forward layer."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        convolution = nn.Sequential(
            nn.Conv1d(width, 2 * width, 1),
            nn.GLU(1),
            nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width),
            nn.BatchNorm1d(width, track_running_stats=False),
            nn.SiLU(),
            nn.Conv1d(width, width, 1),
        )
        attention = Attention(width, width // 64, causal=False, joint=False, fused=False)
        self.halves = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), FeedForward(width, 4 * width)) for _ in range(2)
        )
        self.mix = nn.Sequential(PreNorm(width, [attention]), PreNorm(width, [Transposed(convolution)]))
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, time, width) to the same shape."""
        before, after = self.halves
        x = self.mix(x + 0.5 * before(x))
        out: Tensor = self.norm(x + 0.5 * after(x))
        return out


class Conformer(nn.Module):
    """A speech recogniser: convolutions to a quarter of the time, then blocks (Gulati et al. 2020)."""

    def __init__(self, width: int, layers: int, kernel: int, bands: int, classes: int) -> None:
        super().__init__()
        self.shrink = nn.Sequential(ConvNorm(1, 64, 3, stride=2), ConvNorm(64, 64, 3, stride=2))
        self.embed = nn.Linear(64 * (bands // 4), width)
        self.blocks = nn.Sequential(*(ConformerBlock(width, kernel) for _ in range(layers)))
        self.head = nn.Linear(width, classes)

    def forward(self, sound: Tensor, labels: Tensor) -> Tensor:
        """Loss of sound (batch, time, bands) and labels, int (batch, time / 4)."""
        frames = self.shrink(sound.unsqueeze(1)).transpose(1, 2).flatten(2)
        return word_loss(self.head(self.blocks(self.embed(frames))), labels)


class MixerBlock(nn.Module):
    """A perceptron over patches (Tolstikhin et al. 2021) or a convolution (Liu et al. 2022), and channels."""

    def __init__(self, width: int, side: int, *, convolves: bool) -> None:
        super().__init__()
        over_patches = nn.Sequential(nn.LayerNorm(side**2), FeedForward(side**2, 2 * side**2))
        over_space = nn.Sequential(
            nn.Unflatten(2, (side, side)),
            nn.Conv2d(width, width, 7, padding=3, groups=width),
            nn.Flatten(2),
        )
        self.mix = over_space if convolves else over_patches
        self.channels = Transposed(PreNorm(width, [FeedForward(width, 4 * width)]))

    def forward(self, x: Tensor) -> Tensor:
        """Map (batch, width, patches) to the same shape."""
        out: Tensor = self.channels(x + self.mix(x))
        return out


def conformer(rng: np.random.Generator) -> Drawn:
    """2 to 12 blocks of width 256 or 512, 400 or 800 frames of 80 bands, batch 4 to 16."""
    batch, frames = pick(rng, [4, 8, 16]), pick(rng, [400, 800])
    layers, kernel = int(rng.integers(2, 13)), pick(rng, [15, 31])
    module = Conformer(pick(rng, [256, 512]), layers, kernel, bands=80, classes=1024)
    return module, (torch.zeros(batch, frames, 80), torch.zeros(batch, frames // 4, dtype=torch.long))


def mixer(rng: np.random.Generator) -> Drawn:
    """2 to 12 blocks of perceptrons, or four stages of 1 to 5 convolutions; 224 pixels, batch 16 to 64."""
    convolves = bool(rng.random() < 0.5)
    width, side = (pick(rng, [64, 96, 128]), 56) if convolves else (pick(rng, [384, 512, 768]), 14)
    stages: list[nn.Module] = [nn.Conv2d(3, width, 224 // side, 224 // side), nn.Flatten(2)]
    for stage in range(4 if convolves else 1):
        if stage:
            stages += [nn.Unflatten(2, (side, side)), nn.Conv2d(width, 2 * width, 2, 2), nn.Flatten(2)]
            width, side = 2 * width, side // 2
        n_blocks = int(rng.integers(1, 6)) if convolves else int(rng.integers(2, 13))
        stages += [MixerBlock(width, side, convolves=convolves) for _ in range(n_blocks)]
    return Classifier(nn.Sequential(*stages), width, 1000), image_batch(pick(rng, [16, 32, 64]), 224)
