"""The interface of an encoder, and the registry of all encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor, nn

from agent.policy.graph_batch import GraphBatch
from graphs.system.errors import InputError
from graphs.system.registry import Registry


class EncoderError(InputError):
    """An unknown encoder; the message says what would be right."""


class Encoder(nn.Module):
    """Embeds every node (compute op) of a batch of graphs.

    Args:
        hidden: width of the embeddings.
        rounds: number of layers, or of hops that messages travel along the edges.
    """

    def __init__(self, n_features: int, hidden: int, rounds: int) -> None:
        super().__init__()

    def forward(self, batch: GraphBatch) -> Tensor:
        """Embeds the nodes of a batch.

        Permuting the nodes permutes their embeddings, except for an encoder that reads the program order.

        Returns:
            float32 (n_nodes of all graphs, hidden).
        """
        raise NotImplementedError


MODULES = tuple(f"agent.policy.encoders.{name}" for name in ("sage", "gat", "none"))
ENCODERS = Registry[type[Encoder]]("encoder", EncoderError, MODULES, group="placewalk.encoders")
"""Every encoder by name; a new module is added to `MODULES`."""

EncoderClass = TypeVar("EncoderClass", bound=type[Encoder])


def encoder(name: str) -> Callable[[EncoderClass], EncoderClass]:
    """Registers an encoder under a name.

    Raises:
        EncoderError: the name is taken.
    """

    def register(cls: EncoderClass) -> EncoderClass:
        ENCODERS.register(name, cls, cls.__module__)
        return cls

    return register
