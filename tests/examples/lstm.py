"""A language model of two `nn.LSTM` layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

WORDS, WIDTH, STEPS, BATCH = 60, 24, 5, 3


class LanguageModel(nn.Module):
    """Predicts every next word; the loss is its cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(words))
        return nn.functional.cross_entropy(self.head(states).flatten(0, 1), following.flatten())


def make() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Makes the model and a batch, (time, batch)."""
    torch.manual_seed(0)
    words = torch.randint(WORDS, (STEPS + 1, BATCH))
    return LanguageModel(), (words[:-1], words[1:])
