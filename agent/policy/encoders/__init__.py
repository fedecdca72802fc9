"""Graph encoders: op features in, one embedding per op out.

To add one, write a module with an `Encoder` under `@encoder("name")` and import it at the end of this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from torch import Tensor, nn

from agent.policy.graph_batch import GraphBatch
from graphs.op_graph import OpGraph


class Encoder(nn.Module):
    """Embeds every node (compute op) of a batch of graphs.

    Args:
        n_features: width of the op features.
        hidden: width of the embeddings.
        rounds: how many layers, or how far an op looks along the edges.

    Attributes:
        max_nodes: of the largest graph that it can embed; None for no limit.
    """

    max_nodes: int | None = None

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__()

    def forward(self, batch: GraphBatch) -> Tensor:
        """Embeddings, float32 (n_nodes of all graphs, hidden).

        Permuting the nodes permutes them, but for an encoder that reads the program order.
        """
        raise NotImplementedError


ENCODERS: dict[str, type[Encoder]] = {}

EncoderClass = TypeVar("EncoderClass", bound=type[Encoder])


def encoder(name: str) -> Callable[[EncoderClass], EncoderClass]:
    """Register an encoder under a name."""

    def register(cls: EncoderClass) -> EncoderClass:
        ENCODERS[name] = cls
        return cls

    return register


def check_size(name: str, graphs: Iterable[OpGraph]) -> None:
    """Make sure that an encoder can embed some graphs.

    Raises:
        ValueError: a graph has more compute ops than it can.
    """
    most = ENCODERS[name].max_nodes
    for graph in graphs:
        n_nodes = int(graph.is_compute.sum())
        if most is not None and n_nodes > most:
            raise ValueError(
                f"graph '{graph.name}' has {n_nodes} ops to place; encoder '{name}' takes {most}: use sage"
            )


from agent.policy.encoders import gat, none, placeto, sage, transformer  # noqa: E402, F401  (importing registers)
