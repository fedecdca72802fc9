"""A model with what is hard to send: sparse gradients, tied weights, several results, views, buffers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

INPUTS = (torch.tensor([[1, 2, 2], [3, 0, 4]]),)


class Net(nn.Module):
    """A bag of embeddings with sparse gradients, an embedding that is tied to the head, and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 8, sparse=True, mode="sum")
        self.words = nn.Embedding(7, 8)
        self.norm = nn.BatchNorm1d(8)
        self.mix = nn.Linear(16, 8)
        self.head = nn.Linear(8, 7)
        self.head.weight = self.words.weight
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        both = torch.cat([self.bag(ids), self.words(ids).sum(1)], 1)
        first, second = self.head(self.norm(self.mix(both)).tanh()).split([3, 4], 1)
        return (first.softmax(1).t().exp() @ second).square().mean()
