"""The registry of encoders."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from torch import nn

from graphs.system.errors import InputError
from graphs.system.registry import Registry


class EncoderError(InputError):
    """An unknown encoder; the message says what would be right."""


MODULES = ("agent.policy.encoders.message_passing",)
ENCODERS = Registry[type[nn.Module]]("encoder", EncoderError, MODULES, group="placewalk.encoders")
"""Every encoder by name; a new module is added to `MODULES`."""

EncoderClass = TypeVar("EncoderClass", bound=type[nn.Module])


def encoder(name: str) -> Callable[[EncoderClass], EncoderClass]:
    """Registers a `torch.nn.Module` that embeds every node (compute op) of graphs.

    It is made from the number of features, the width of the embeddings and the number of layers or hops:
    `__init__(n_features, hidden, rounds)`. Its `forward` maps a `torch_geometric.data.Batch`, whose graphs
    `graph_data` makes, to float32 (n_nodes of all, hidden). Permuting the nodes permutes their embeddings,
    except for an encoder that reads the program order.

    Raises:
        EncoderError: the name is taken.
    """

    def register(cls: EncoderClass) -> EncoderClass:
        ENCODERS.register(name, cls, cls.__module__)
        return cls

    return register
