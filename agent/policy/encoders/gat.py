"""Attention over neighbours, along and against the edges."""

from __future__ import annotations

import warnings

from torch import Tensor, nn

from agent.policy.encoders.base import encoder
from agent.policy.encoders.sage import Sage
from agent.policy.graph_batch import GraphBatch

HEADS = 4


class AttentionRound(nn.Module):
    """One round: own state, attention over producers, attention over consumers; normalised, residual."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        with warnings.catch_warnings():
            # It takes seconds to import, and warns once a process of its own use of TorchScript.
            warnings.simplefilter("ignore")
            from torch_geometric.nn import GATv2Conv
        self.norm = nn.LayerNorm(hidden)
        self.own = nn.Linear(hidden, hidden)
        self.from_producers = GATv2Conv(hidden, hidden // heads, heads, add_self_loops=False, bias=False)
        self.from_consumers = GATv2Conv(hidden, hidden // heads, heads, add_self_loops=False, bias=False)
        self.activation = nn.SiLU()

    def forward(self, state: Tensor, batch: GraphBatch) -> Tensor:
        message = self.norm(state)
        aggregate: Tensor = (
            self.own(message)
            + self.from_producers(message, batch.to_consumers)
            + self.from_consumers(message, batch.to_producers)
        )
        update: Tensor = self.activation(aggregate)
        return state + update


@encoder("gat")
class Gat(Sage):
    """Like `sage`, but messages are weighted by attention instead of averaged.

    Source: GATv2, Brody, Alon and Yahav 2022 (arXiv 2105.14491).
    """

    def make_round(self, hidden: int) -> nn.Module:
        """Makes a round of `HEADS` heads if they divide the width, else of one."""
        return AttentionRound(hidden, HEADS if hidden % HEADS == 0 else 1)
