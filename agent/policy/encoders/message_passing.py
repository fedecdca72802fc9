"""Messages along and against the edges: averaged (GraphSAGE), weighted by attention (GATv2), or none."""

from __future__ import annotations

from torch import Tensor, nn

from agent.policy.encoders.base import encoder
from agent.policy.graph_data import Batch, GATv2Conv, SAGEConv

HEADS = 4


class Round(nn.Module):
    """One round of messages: own state, states of producers, states of consumers; normalised, residual.

    Args:
        hidden: width of the states.
        along: convolution along the edges; reads the node's own state, too.
        against: convolution against the edges.
    """

    def __init__(self, hidden: int, along: nn.Module, against: nn.Module) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(hidden)
        self.along, self.against = along, against
        self.activation = nn.SiLU()

    def forward(self, state: Tensor, edges: Tensor) -> Tensor:
        message = self.norm(state)
        aggregate = self.along(message, edges) + self.against(message, edges.flip(0))
        update: Tensor = self.activation(aggregate)
        return state + update


@encoder("sage")
class Sage(nn.Module):
    """Mean message passing in both directions with separate weights, `rounds` times.

    Source: Hamilton, Ying and Leskovec 2017 (arXiv 1706.02216), mean aggregator without sampling.
    """

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__()
        self.input_proj = nn.Linear(n_features, hidden)
        self.rounds = nn.ModuleList(Round(hidden, *self.convolutions(hidden)) for _ in range(rounds))
        self.norm = nn.LayerNorm(hidden)

    def convolutions(self, hidden: int) -> tuple[nn.Module, nn.Module]:
        """Makes the convolutions of a round, along and against the edges."""
        return SAGEConv(hidden, hidden), SAGEConv(hidden, hidden, root_weight=False, bias=False)

    def forward(self, data: Batch) -> Tensor:
        state = self.input_proj(data.x)
        for one_round in self.rounds:
            state = one_round(state, data.edge_index)
        return self.norm(state)


@encoder("gat")
class Gat(Sage):
    """Like `sage`, but messages are weighted by attention instead of averaged.

    Source: GATv2, Brody, Alon and Yahav 2022 (arXiv 2105.14491).
    """

    def convolutions(self, hidden: int) -> tuple[nn.Module, nn.Module]:
        """Makes convolutions of `HEADS` heads if they divide the width, else of one."""
        heads = HEADS if hidden % HEADS == 0 else 1
        sizes = hidden, hidden // heads, heads
        along = GATv2Conv(*sizes, add_self_loops=False, residual=True)
        return along, GATv2Conv(*sizes, add_self_loops=False, bias=False)


@encoder("none")
class NoMessages(nn.Module):
    """A perceptron on the op features, `rounds` hidden layers deep; the ablation of the graph."""

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Linear(n_features, hidden)]
        for _ in range(rounds):
            layers += [nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, hidden)]
        self.layers = nn.Sequential(*layers)

    def forward(self, data: Batch) -> Tensor:
        return self.layers(data.x)
