"""No message passing: every op is embedded alone."""

from __future__ import annotations

from torch import Tensor, nn

from agent.policy.encoders.base import Encoder, encoder
from agent.policy.graph_batch import GraphBatch


@encoder("none")
class NoMessages(Encoder):
    """A perceptron on the op features, `rounds` hidden layers deep; the ablation of the graph."""

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__(n_features, hidden, rounds)
        layers: list[nn.Module] = [nn.Linear(n_features, hidden)]
        for _ in range(rounds):
            layers += [nn.LayerNorm(hidden), nn.SiLU(), nn.Linear(hidden, hidden)]
        self.layers = nn.Sequential(*layers)

    def forward(self, batch: GraphBatch) -> Tensor:
        embedding: Tensor = self.layers(batch.nodes)
        return embedding
