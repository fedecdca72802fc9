"""Families that nothing was tuned on: they are drawn for the sealed test set alone.

Each function draws a module and its inputs, as `graphs.families` does; modules return their loss.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from agent.experiments.equal_time.sealed_mixers import conformer, mixer
from graphs.families.registry import Drawn, pick
from graphs.families.transformer import Attention, FeedForward, PreNorm
from graphs.families.vision import ConvNorm


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
        """Mean squared error of noise predicted from images, both (batch, 3, side, side)."""
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


class ModulatedBlock(nn.Module):
    """Attention and feed-forward, each scaled and shifted by a condition (Peebles and Xie 2023)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        self.attention = Attention(width, width // 64, causal=False, joint=False, fused=True)
        self.feed_forward = FeedForward(width, 4 * width)
        self.norms = nn.ModuleList(nn.LayerNorm(width, elementwise_affine=False) for _ in range(2))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map (batch, patches, width) and (batch, 1, width) to the shape of the former."""
        parts = self.modulation(F.silu(condition)).chunk(6, -1)
        for at, layer in enumerate((self.attention, self.feed_forward)):
            scale, shift, gate = parts[3 * at : 3 * at + 3]
            x = x + gate * layer(self.norms[at](x) * (1 + scale) + shift)
        return x


class DiffusionTransformer(nn.Module):
    """Modulated blocks over latent patches."""

    def __init__(self, width: int, layers: int, channels: int) -> None:
        super().__init__()
        self.embed, self.condition = nn.Linear(channels, width), nn.Linear(256, width)
        self.blocks = nn.ModuleList(ModulatedBlock(width) for _ in range(layers))
        self.head = nn.Linear(width, channels)

    def forward(self, latents: Tensor, times: Tensor, noise: Tensor) -> Tensor:
        """Mean squared error of noise (batch, patches, channels); `times` is (batch, 1, 256)."""
        x, condition = self.embed(latents), self.condition(times)
        for block in self.blocks:
            x = block(x, condition)
        return F.mse_loss(self.head(x), noise)


class Towers(nn.Module):
    """Towers of unlike width for two inputs, and the loss of telling pairs apart (Radford et al. 2021)."""

    def __init__(self, widths: tuple[int, int], layers: tuple[int, int]) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(
                nn.Linear(256, width),
                *(
                    PreNorm(width, [layer])
                    for _ in range(n)
                    for layer in (
                        Attention(width, width // 64, causal=False, joint=True, fused=True),
                        FeedForward(width, 4 * width),
                    )
                ),
            )
            for width, n in zip(widths, layers, strict=True)
        )
        self.heads = nn.ModuleList(nn.Linear(width, 256) for width in widths)

    def forward(self, words: Tensor, patches: Tensor, pairs: Tensor) -> Tensor:
        """Loss of two batches (batch, time, 256); `pairs`, int (batch,), says which rows belong together."""
        found = [
            F.normalize(head(tower(x).mean(1)), dim=1)
            for tower, head, x in zip(self.towers, self.heads, (words, patches), strict=True)
        ]
        return F.cross_entropy(10 * found[0] @ found[1].T, pairs)


class Recommender(nn.Module):
    """Embeddings of many features, their products in pairs, and layers on top (Naumov et al. 2019)."""

    def __init__(self, tables: list[int], width: int, layers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(rows, width) for rows in tables)
        n_pairs = (len(tables) + 1) * len(tables) // 2
        self.bottom = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, width), nn.ReLU())
        inner = [part for _ in range(layers) for part in (nn.Linear(1024, 1024), nn.ReLU())]
        self.top = nn.Sequential(nn.Linear(n_pairs + width, 1024), nn.ReLU(), *inner, nn.Linear(1024, 1))

    def forward(self, dense: Tensor, sparse: Tensor, clicks: Tensor) -> Tensor:
        """Loss of clicks (batch, 1); dense is (batch, 16), sparse int (batch, n_tables)."""
        bottom = self.bottom(dense)
        parts = [
            bottom,
            *(table(column) for table, column in zip(self.tables, sparse.unbind(1), strict=True)),
        ]
        stacked = torch.stack(parts, 1)
        products = stacked @ stacked.transpose(1, 2)
        rows, columns = zip(*((a, b) for a in range(len(parts)) for b in range(a)), strict=True)
        pairs = products[:, list(rows), list(columns)]
        return F.binary_cross_entropy_with_logits(self.top(torch.cat([pairs, bottom], 1)), clicks)


def unet(rng: np.random.Generator) -> Drawn:
    """3 to 5 levels of 1 to 3 convolutions, width 48 to 96, images of 64 to 128 pixels, batch 8 to 32."""
    side, batch = pick(rng, [64, 128]), pick(rng, [8, 16, 32])
    module = UNet(pick(rng, [48, 64, 96]), int(rng.integers(3, 6)), int(rng.integers(1, 4)))
    return module, (torch.zeros(batch, 3, side, side), torch.zeros(batch, 3, side, side))


def dit(rng: np.random.Generator) -> Drawn:
    """3 to 12 blocks of width 384 to 1024, 64 to 256 patches, batch 8 to 32."""
    batch, patches = pick(rng, [8, 16, 32]), pick(rng, [64, 256])
    module = DiffusionTransformer(pick(rng, [384, 768, 1024]), int(rng.integers(3, 13)), 16)
    latents = torch.zeros(batch, patches, 16)
    return module, (latents, torch.zeros(batch, 1, 256), torch.zeros_like(latents))


def towers(rng: np.random.Generator) -> Drawn:
    """Two towers of 2 to 8 layers each, widths 256 to 1024, batch 32 to 128."""
    batch = pick(rng, [32, 64, 128])
    widths = pick(rng, [256, 512]), pick(rng, [512, 768, 1024])
    module = Towers(widths, (int(rng.integers(2, 9)), int(rng.integers(2, 9))))
    return module, (
        torch.zeros(batch, 64, 256),
        torch.zeros(batch, 196, 256),
        torch.zeros(batch, dtype=torch.long),
    )


def recommender(rng: np.random.Generator) -> Drawn:
    """8 to 26 tables of up to a million rows, width 32 to 128, 1 to 4 layers on top, batch 512 to 4096."""
    tables = [int(10 ** rng.uniform(2, 6)) for _ in range(int(rng.integers(8, 27)))]
    batch = pick(rng, [512, 2048, 4096])
    module = Recommender(tables, pick(rng, [32, 64, 128]), int(rng.integers(1, 5)))
    sparse = torch.zeros(batch, len(tables), dtype=torch.long)
    return module, (torch.zeros(batch, 16), sparse, torch.zeros(batch, 1))


SEALED_FAMILIES: Mapping[str, Callable[[np.random.Generator], Drawn]] = {
    "unet": unet,
    "dit": dit,
    "towers": towers,
    "recommender": recommender,
    "conformer": conformer,
    "mixer": mixer,
}
"""Drawers by name; they are called with the meta device in force."""
