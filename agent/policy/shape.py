"""The shape of a policy's network: the numbers and names that it is built from."""

from __future__ import annotations

from dataclasses import dataclass

from agent.policy.node_features import GRAPH_FEATURES, NODE_FEATURES
from envs.placement.observation.features import columns_of


@dataclass(frozen=True)
class NetworkShape:
    """The numbers and names that a network is built from.

    Attributes:
        encoder: name in `ENCODERS`.
        hidden: width of embeddings and of the head.
        node_features, graph_features, device_features: widths of the inputs.
        feature_set: key of `FEATURE_SETS`.
    """

    encoder: str
    hidden: int
    rounds: int
    node_features: int
    graph_features: int
    device_features: int
    feature_set: str = "lookahead"


def current_shape(encoder: str, hidden: int, rounds: int, feature_set: str = "rollout") -> NetworkShape:
    """Makes the shape of a network for the features of this version."""
    return NetworkShape(
        encoder=encoder,
        hidden=hidden,
        rounds=rounds,
        node_features=len(NODE_FEATURES),
        graph_features=len(GRAPH_FEATURES),
        device_features=len(columns_of(feature_set)),
        feature_set=feature_set,
    )
