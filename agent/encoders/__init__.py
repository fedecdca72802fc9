"""Graph encoders: op features in, one embedding per op out.

To add one, write a module with an `Encoder` under `@encoder("name")` and import it at the end of this file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

from agent.graph_batch import GraphBatch


class Encoder(nn.Module):
    """Embeds every node (compute op) of a batch of graphs.

    Args:
        n_features: width of the op features.
        hidden: width of the embeddings.
        rounds: how many layers, or how far an op looks along the edges.
    """

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


from agent.encoders import gat, none, placeto, sage, transformer  # noqa: E402, F401  (importing registers)
