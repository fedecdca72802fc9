"""Models whose steps take some tens of milliseconds on one processor core."""

import torch
from torch import Tensor, nn


class Transformer(nn.Module):
    def __init__(self, width=192, n_layers=3, words=1000):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 6, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(n_layers)
        )
        self.head = nn.Linear(width, words)

    def forward(self, words: Tensor) -> Tensor:
        x = self.embedding(words)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.cross_entropy(self.head(x).flatten(0, 1), words.flatten())


class Branches(nn.Module):
    def __init__(self, width=32, n_blocks=3):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.ModuleList(nn.Conv2d(width, width // 4, s, padding=s // 2) for s in (1, 3, 5, 7))
            for _ in range(n_blocks)
        )
        self.norms = nn.ModuleList(nn.GroupNorm(4, width) for _ in range(n_blocks))
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor, classes: Tensor) -> Tensor:
        x = self.stem(images)
        for branches, norm in zip(self.blocks, self.norms, strict=True):
            x = x + torch.relu(norm(torch.cat([b(x) for b in branches], 1)))
        return nn.functional.cross_entropy(self.head(x.mean((2, 3))), classes)


def transformer():
    torch.manual_seed(0)
    return Transformer(), (torch.randint(0, 1000, (4, 64)),)


def cnn():
    torch.manual_seed(0)
    return Branches(), (torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,)))
