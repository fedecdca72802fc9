"""The parts of a policy's network that can be left out: inputs that become zeros, rounds that do nothing.

Names: `device/GROUP` or `device/FEATURE` (features of a candidate device), `node/FEATURE` or `node/PREFIX`
(features of an op whose names begin so), `graph/FEATURE`, `head/op|graph|devices|pool` (what the heads read),
`encoder/round-K` (from 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agent.policy.node_features import GRAPH_FEATURES, NODE_FEATURES
from envs.mdp.features import DEVICE_FEATURES, GROUPS, columns_of
from graphs.system.errors import InputError

NODE_GROUPS = ("cost", "b_level", "t_level", "unit", "phase", "type")
"""Beginnings of names of node features that are left out together."""
HEAD_INPUTS = ("op", "graph", "devices", "pool")


class PartError(InputError):
    """A part that no network has, or not this one; the message says which it has."""


@dataclass(frozen=True, eq=False)
class InputFactors:
    """The inputs of a network that are kept: factors, 0 or 1.

    Attributes:
        devices: of the columns of a feature set.
        nodes, graphs: of the node and graph features.
        heads: by name in `HEAD_INPUTS`.
        rounds: indices of the rounds of the encoder that do nothing.
    """

    devices: tuple[float, ...]
    nodes: tuple[float, ...]
    graphs: tuple[float, ...]
    heads: dict[str, float]
    rounds: frozenset[int]


def part_names(feature_set: str, rounds: int) -> list[str]:
    """Names of all parts of a network, groups before single features."""
    features = [DEVICE_FEATURES[at] for at in columns_of(feature_set)]
    groups = [group for group in GROUPS if any(feature.group == group for feature in features)]
    return [
        *(f"device/{group}" for group in groups),
        *(f"node/{group}" for group in NODE_GROUPS),
        *(f"head/{name}" for name in HEAD_INPUTS),
        *(f"encoder/round-{number}" for number in range(1, rounds + 1)),
        *(f"device/{feature.name}" for feature in features),
        *(f"node/{feature.name}" for feature in NODE_FEATURES),
        *(f"graph/{feature.name}" for feature in GRAPH_FEATURES),
    ]


def kept_without(parts: Sequence[str], feature_set: str, rounds: int) -> InputFactors:
    """Returns the inputs of a network without some parts.

    Raises:
        PartError: an unknown part.
    """
    known = set(part_names(feature_set, rounds))
    for part in parts:
        if part not in known:
            raise PartError(
                f"no part '{part}' in a network with feature set {feature_set} and {rounds} rounds; use "
                "device/GROUP, node/FEATURE, graph/FEATURE, head/op|graph|devices|pool or encoder/round-K"
            )
    features = [DEVICE_FEATURES[at] for at in columns_of(feature_set)]
    out = set(parts)
    return InputFactors(
        devices=_factors(
            {f"device/{feature.name}", f"device/{feature.group}"}.isdisjoint(out) for feature in features
        ),
        nodes=_factors(
            f"node/{feature.name}" not in out
            and not any(f"node/{group}" in out and feature.name.startswith(group) for group in NODE_GROUPS)
            for feature in NODE_FEATURES
        ),
        graphs=_factors(f"graph/{feature.name}" not in out for feature in GRAPH_FEATURES),
        heads={name: float(f"head/{name}" not in out) for name in HEAD_INPUTS},
        rounds=frozenset(at for at in range(rounds) if f"encoder/round-{at + 1}" in out),
    )


def _factors(kept: Iterable[bool]) -> tuple[float, ...]:
    return tuple(map(float, kept))
