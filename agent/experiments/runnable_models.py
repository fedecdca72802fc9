"""Models whose placements are measured on processor cores: most of their ops take 100 us and more.

Each function is for `--model`, such as `agent.experiments.runnable_models:encoder`.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WORDS = 2000


def layers(width: int, count: int) -> nn.Sequential:
    """Layers of a transformer, without dropout."""
    return nn.Sequential(
        *(
            nn.TransformerEncoderLayer(width, 6, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(count)
        )
    )


class Encoder(nn.Module):
    """Layers of a transformer over words, and the cross-entropy of every word."""

    def __init__(self, width: int, n_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = layers(width, n_layers)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        x = self.layers(self.embedding(words))
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


class Branches(nn.Module):
    """Blocks of parallel convolutions, as in Inception, and the cross-entropy of the class."""

    def __init__(self, width: int, n_blocks: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width, width // 4, size, padding=size // 2) for size in (1, 3, 5, 7))
            for _ in range(n_blocks)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(n_blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        x = self.stem(images)
        for branches, norm in zip(self.blocks.children(), self.norms, strict=True):
            x = x + torch.relu(norm(torch.cat([branch(x) for branch in branches.children()], 1)))
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), classes)


class TwoTowers(nn.Module):
    """A tower for words and one for images, and the contrastive loss between them (Radford et al. 2021)."""

    def __init__(self, width: int, n_layers: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.stem = nn.Conv2d(3, width, 8, stride=8)
        self.words, self.images = layers(width, n_layers), layers(width, n_layers)

    def forward(self, words: Tensor, images: Tensor) -> Tensor:
        x = self.words(self.embedding(words)).mean(1)
        y = self.images(self.stem(images).flatten(2).transpose(1, 2)).mean(1)
        similarity = nn.functional.normalize(x, dim=1) @ nn.functional.normalize(y, dim=1).T
        return nn.functional.cross_entropy(10 * similarity, torch.arange(len(x), device=x.device))


def encoder() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Three layers of a transformer on 4 x 128 words."""
    torch.manual_seed(0)
    return Encoder(384, 3), (torch.randint(WORDS, (4, 128)),)


def branches() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Four blocks of four convolutions on 16 images of 32 x 32."""
    torch.manual_seed(0)
    return Branches(64, 4), (torch.randn(16, 3, 32, 32), torch.randint(10, (16,)))


def two_towers() -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Two layers for 8 x 64 words, two for 8 images of 64 x 64."""
    torch.manual_seed(0)
    return TwoTowers(384, 2), (torch.randint(WORDS, (8, 64)), torch.randn(8, 3, 64, 64))
