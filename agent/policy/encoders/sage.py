"""GraphSAGE along and against the edges."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from agent.policy.encoders.base import Encoder, encoder
from agent.policy.graph_batch import GraphBatch


class Round(nn.Module):
    """One round of messages: own state, mean of producers, mean of consumers; normalised, residual."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.own = nn.Linear(hidden, hidden)
        self.from_producers = nn.Linear(hidden, hidden, bias=False)
        self.from_consumers = nn.Linear(hidden, hidden, bias=False)
        self.activation = nn.SiLU()

    def forward(self, state: Tensor, batch: GraphBatch) -> Tensor:
        message = self.norm(state)
        layers = self.own, self.from_producers, self.from_consumers
        weight = torch.cat([layer.weight for layer in layers], dim=1)
        aggregate = functional.linear(batch.with_neighbours(message), weight, self.own.bias)
        update: Tensor = self.activation(aggregate)
        return state + update


@encoder("sage")
class Sage(Encoder):
    """Mean message passing in both directions with separate weights, `rounds` times.

    Source: Hamilton, Ying and Leskovec 2017 (arXiv 1706.02216), mean aggregator without sampling.
    """

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__(n_features, hidden, rounds)
        self.input_proj = nn.Linear(n_features, hidden)
        self.rounds = nn.ModuleList(self.make_round(hidden) for _ in range(rounds))
        self.norm = nn.LayerNorm(hidden)

    def make_round(self, hidden: int) -> nn.Module:
        """Makes a layer that maps the state and the batch to the new state, (n_nodes, hidden)."""
        return Round(hidden)

    def forward(self, batch: GraphBatch) -> Tensor:
        state = self.input_proj(batch.nodes)
        for one_round in self.rounds:
            state = one_round(state, batch)
        embedding: Tensor = self.norm(state)
        return embedding
