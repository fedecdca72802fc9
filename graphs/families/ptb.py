"""ENAS-like recurrent language models: a random tree of gated nodes, unrolled over time.

Source: Pham et al. 2018 (arXiv 1802.03268), section 2.1; as placement benchmark: Addanki et al. 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families.registry import Drawn, family, pick

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


@dataclass(frozen=True)
class Config:
    """One language model of the family.

    Attributes:
        parents: parent of nodes 1, 2, ...; node 0 reads the word and the state.
        activations: one per node, names in `ACTIVATIONS`.
        tied: whether the softmax shares the embedding's weights.
        stepwise: whether each time step has its own softmax and loss, instead of one over all steps.
    """

    parents: tuple[int, ...]
    activations: tuple[str, ...]
    hidden: int
    vocabulary: int
    tied: bool
    stepwise: bool


class RecurrentCell(nn.Module):
    """A tree of highway nodes h' = h + c (f(h W) - h), c = sigmoid(h V); their leaves' mean is the state."""

    def __init__(self, parents: tuple[int, ...], activations: tuple[str, ...], hidden: int) -> None:
        super().__init__()
        self.parents = parents
        self.activations = activations
        self.leaves = [node for node in range(len(activations)) if node not in parents]
        self.word = nn.Linear(hidden, 2 * hidden, bias=False)
        self.state = nn.Linear(hidden, 2 * hidden, bias=False)
        self.edges = nn.ModuleList(nn.Linear(hidden, 2 * hidden, bias=False) for _ in parents)

    def forward(self, word: Tensor, state: Tensor) -> Tensor:
        """Next state (batch, hidden) from a word's embedding and the state, both (batch, hidden)."""
        mixed = self.word(word) + self.state(state)
        nodes = [_highway(state, mixed, self.activations[0])]
        for edge, parent, activation in zip(self.edges, self.parents, self.activations[1:], strict=True):
            nodes.append(_highway(nodes[parent], edge(nodes[parent]), activation))
        total = nodes[self.leaves[0]]
        for leaf in self.leaves[1:]:
            total = total + nodes[leaf]
        return total / len(self.leaves) if len(self.leaves) > 1 else total


def _highway(carry: Tensor, mixed: Tensor, activation: str) -> Tensor:
    gate, value = mixed.chunk(2, dim=1)
    return carry + torch.sigmoid(gate) * (ACTIVATIONS[activation](value) - carry)


class LanguageModel(nn.Module):
    """Next-word cross-entropy of a recurrent cell unrolled over the whole sequence."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.hidden)
        self.cell = RecurrentCell(config.parents, config.activations, config.hidden)
        self.softmax = nn.Linear(config.hidden, config.vocabulary, bias=not config.tied)
        if config.tied:
            self.softmax.weight = self.embedding.weight
        self.stepwise = config.stepwise

    def forward(self, words: Tensor, targets: Tensor, state: Tensor) -> Tensor:
        """Loss of words and targets, int (time, batch), from a state (batch, hidden)."""
        states = []
        for word in self.embedding(words).unbind(0):
            state = self.cell(word, state)
            states.append(state)
        if not self.stepwise:
            return F.cross_entropy(self.softmax(torch.cat(states)), targets.flatten())
        losses = [
            F.cross_entropy(self.softmax(state), target)
            for state, target in zip(states, targets.unbind(0), strict=True)
        ]
        return torch.stack(losses).mean()


@family("ptb")
def draw(rng: np.random.Generator) -> Drawn:
    """Trees of 2 to 8 nodes over 2 to 20 time steps, batch 64 to 512, hidden size 512 to 2048."""
    nodes = int(rng.integers(2, 9))
    steps = int(np.clip(rng.integers(8, 97) // nodes, 2, 20))
    config = Config(
        parents=tuple(int(rng.integers(node)) for node in range(1, nodes)),
        activations=tuple(pick(rng, tuple(ACTIVATIONS)) for _ in range(nodes)),
        hidden=pick(rng, [512, 1024, 1536, 2048]),
        vocabulary=10_000,
        tied=bool(rng.random() < 0.5),
        stepwise=bool(rng.random() < 0.4),
    )
    batch = pick(rng, [64, 128, 256, 512])
    words = torch.zeros(steps, batch, dtype=torch.long)
    return LanguageModel(config), (words, torch.zeros_like(words), torch.zeros(batch, config.hidden))
