"""A recommender after DLRM: tables of categories, looked up in bags, beside a perceptron of numbers.

Its tables are far larger than what is computed with them, so it is for `gpu+cpu`.
Source: Naumov et al. 2019 (arXiv 1906.00091), section 2.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn

TABLES, ROWS, WIDTH, NUMBERS, BATCH, BAG = 4, 500, 16, 8, 32, 3


def perceptron(*widths: int) -> nn.Sequential:
    """Layers with an activation after each."""
    layers = [nn.Linear(a, b) for a, b in pairwise(widths)]
    return nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


class Recommender(nn.Module):
    """Predicts a click from numbers and bags of categories; the loss is its cross-entropy."""

    def __init__(self, *, sparse: bool) -> None:
        super().__init__()
        tables = [nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=sparse) for _ in range(TABLES)]
        self.tables = nn.ModuleList(tables)
        self.bottom = perceptron(NUMBERS, 32, WIDTH)
        pairs = (TABLES + 1) * TABLES // 2
        self.top = nn.Sequential(perceptron(WIDTH + pairs, 32), nn.Linear(32, 1))

    def forward(self, numbers: Tensor, bags: Tensor, clicked: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        looked_up = [table(bag) for table, bag in zip(self.tables, bags.unbind(), strict=True)]
        vectors = torch.stack([dense, *looked_up], 1)
        products = vectors @ vectors.transpose(1, 2)
        row, column = torch.tril_indices(TABLES + 1, TABLES + 1, -1)
        score = self.top(torch.cat([dense, products[:, row, column]], 1)).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(score, clicked)


def make(*, sparse: bool = False) -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    """Makes the model and a batch."""
    torch.manual_seed(0)
    inputs = torch.randn(BATCH, NUMBERS), torch.randint(ROWS, (TABLES, BATCH, BAG)), torch.rand(BATCH).round()
    return Recommender(sparse=sparse), inputs


def make_sparse() -> tuple[nn.Module, tuple[Tensor, Tensor, Tensor]]:
    """Makes the model with sparse gradients of its tables."""
    return make(sparse=True)
