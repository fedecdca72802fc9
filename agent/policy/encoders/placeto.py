"""Messages down and up the graph, then means over all ancestors, descendants and unrelated ops."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agent.policy.encoders.base import Encoder, encoder
from agent.policy.graph_batch import GraphBatch


@encoder("placeto")
class Placeto(Encoder):
    """Passes messages from parents and, separately, from children; pools the ops by their relation.

    Source: Placeto, Addanki et al. 2019 (arXiv 1906.08879), with means for sums, so that an embedding does
    not grow with the graph.
    """

    max_nodes = 20_000
    """The relation between all pairs of ops is kept, a byte a pair."""

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__(n_features, hidden, rounds)
        self.n_rounds = rounds
        self.input_proj = nn.Sequential(nn.Linear(n_features, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.down = _perceptron(hidden)
        self.up = _perceptron(hidden)
        self.merge = nn.Linear(2 * hidden, hidden)
        self.of_related = nn.ModuleList(_perceptron(hidden) for _ in range(3))
        self.out = nn.Sequential(nn.Linear(4 * hidden, hidden), nn.LayerNorm(hidden))

    def forward(self, batch: GraphBatch) -> Tensor:
        projected = self.input_proj(batch.nodes)
        down, up = projected, projected
        for _ in range(self.n_rounds):
            down = projected + self.down(batch.mean_of_producers(down))
            up = projected + self.up(batch.mean_of_consumers(up))
        own = self.merge(torch.cat([down, up], dim=1))
        pooled = zip(self.of_related, means_of_related(batch, own), strict=True)
        embedding: Tensor = self.out(torch.cat([own, *(layers(mean) for layers, mean in pooled)], dim=1))
        return embedding


def _perceptron(hidden: int) -> nn.Module:
    return nn.Sequential(
        nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden)
    )


def means_of_related(batch: GraphBatch, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Averages the states of each op's ancestors, descendants and all other ops; zero where there are none.

    Returns:
        Three tensors (n_nodes, width).
    """
    columns: list[tuple[Tensor, ...]] = []
    for part, first in zip(batch.parts, batch.start.tolist(), strict=True):
        own = state[first : first + len(part.nodes)]
        related = part.ancestors | part.ancestors.T
        unrelated = ~related.fill_diagonal_(True)
        relations = (part.ancestors, part.ancestors.T, unrelated)
        columns.append(tuple(_mean(relation.to(own.dtype), own) for relation in relations))
    above, below, rest = (torch.cat(column) for column in zip(*columns, strict=True))
    return above, below, rest


def _mean(related: Tensor, state: Tensor) -> Tensor:
    return related @ state / related.sum(1, keepdim=True).clamp(1)
