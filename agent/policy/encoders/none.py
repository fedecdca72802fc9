"""No message passing: every op is embedded alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from agent.policy.encoders.base import encoder

if TYPE_CHECKING:
    from agent.policy.graph_data import Batch


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
        embedding: Tensor = self.layers(data.x)
        return embedding
