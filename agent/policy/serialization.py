"""Policies on disk: weights in `policy.safetensors`, what they are in `policy.json`; nothing is unpickled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from agent.policy import node_features
from agent.policy.encoders import ENCODERS
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import NetworkShape, PlacementNetwork
from agent.policy.policy import Policy
from envs.mdp.features import FEATURE_SETS, columns_of
from graphs.dataset import graph_hash
from graphs.io import json_fields
from graphs.io.json_files import FileFormatError, read_json, write_bytes_atomic, write_json_atomic
from graphs.op_graph import OpGraph

FORMAT = "placewalk.policy/1"
PRETRAINED = Path(__file__).parent / "pretrained"
MAX_WIDTH, MAX_ROUNDS = 4096, 64


class PolicyFileError(ValueError):
    """A policy that cannot be read; the message says which file, what is wrong, and what would be right."""


@dataclass(frozen=True)
class PolicyCard:
    """What `policy.json` says.

    Attributes:
        shape: of the network.
        seen: name, family and hash of every graph the policy was trained on or chosen by.
        config: of the training.
    """

    shape: NetworkShape
    seen: tuple[Mapping[str, str], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def has_seen(self, graph: OpGraph) -> bool:
        """Whether the policy was trained on a graph, or on an equal one of another name."""
        digest = graph_hash(graph)
        return any(entry["sha256"] == digest for entry in self.seen)


def describe_seen(graphs: Iterable[OpGraph]) -> tuple[Mapping[str, str], ...]:
    """The entries of `PolicyCard.seen` for some graphs."""
    return tuple(
        {"name": graph.name, "family": graph.family, "sha256": graph_hash(graph)} for graph in graphs
    )


def current_shape(encoder: str, hidden: int, rounds: int, feature_set: str = "rollout") -> NetworkShape:
    """The shape of a network for the features of this version."""
    return NetworkShape(
        encoder=encoder,
        hidden=hidden,
        rounds=rounds,
        node_features=len(node_features.NODE_FEATURES),
        graph_features=len(node_features.GRAPH_FEATURES),
        device_features=len(columns_of(feature_set)),
        feature_set=feature_set,
    )


def save_policy(folder: Path, network: PlacementNetwork, card: PolicyCard) -> None:
    """Write a policy's two files, each atomically; the card first, since only weights change within a run."""
    record = {
        "format": FORMAT,
        "feature_version": node_features.VERSION,
        "shape": asdict(card.shape),
        "seen": [dict(entry) for entry in card.seen],
        "config": dict(card.config),
    }
    write_json_atomic(folder / "policy.json", record)
    weights = {name: tensor.detach().cpu().contiguous() for name, tensor in network.state_dict().items()}
    write_bytes_atomic(folder / "policy.safetensors", save(weights, metadata={"format": FORMAT}))


def policy_folder(path: str | Path) -> Path:
    """Where a policy's files are: a folder as given, or that of the shipped policy for `pretrained`."""
    return PRETRAINED if str(path) == "pretrained" else Path(path)


def read_card(path: str | Path) -> PolicyCard:
    """Read what a policy is, without its weights.

    Args:
        path: a run's folder, or `pretrained`.

    Raises:
        PolicyFileError: no policy there, or `policy.json` does not conform.
    """
    file = policy_folder(path) / "policy.json"
    if not file.is_file():
        raise PolicyFileError(
            f"{policy_folder(path)}: holds no policy.json; give the folder of a trained run"
        )
    try:
        record = read_json(file)
        keys = {"format", "feature_version", "shape", "seen", "config"}
        values = json_fields.fields(record, str(file), keys, format=FORMAT)
        return PolicyCard(
            shape=_read_shape(values["shape"], f"{file}: shape"),
            seen=tuple(_read_seen(entry, f"{file}: seen") for entry in _array(values["seen"], file)),
            config=_check_version(values, file)["config"],
        )
    except FileFormatError as error:
        raise PolicyFileError(str(error)) from None


def load_policy(path: str | Path) -> Policy:
    """Read a policy that can act on any graph and cluster.

    Args:
        path: a run's folder, or `pretrained`.

    Raises:
        PolicyFileError: a missing, corrupt or foreign file, or one of another version.
    """
    card = read_card(path)
    file = policy_folder(path) / "policy.safetensors"
    try:
        weights = load(file.read_bytes())
    except OSError as error:
        raise PolicyFileError(f"{file}: cannot be read: {error.strerror}") from None
    except SafetensorError as error:
        raise PolicyFileError(f"{file}: is no safetensors file: {error}") from None
    with torch.device("meta"):
        network = PlacementNetwork(card.shape)
    _check_weights(weights, network, file)
    network.load_state_dict(weights, assign=True)
    return Policy(network, walks=MdpConfig.from_settings(card.config))


def _read_shape(value: object, where: str) -> NetworkShape:
    sizes = {item.name for item in fields(NetworkShape)} - {"encoder", "feature_set"}
    record = json_fields.fields(value, where, {"encoder", *sizes}, {"feature_set"})
    feature_set = json_fields.text(record.get("feature_set", "lookahead"), f"{where}.feature_set")
    if feature_set not in FEATURE_SETS:
        raise PolicyFileError(
            f"{where}: unknown feature set {feature_set!r}; known are {', '.join(FEATURE_SETS)}"
        )
    if json_fields.text(record["encoder"], f"{where}.encoder") not in ENCODERS:
        raise PolicyFileError(
            f"{where}: unknown encoder {record['encoder']!r}; known are {', '.join(ENCODERS)}"
        )
    widths = {name: json_fields.integer(record[name], f"{where}.{name}") for name in sorted(sizes)}
    shape = NetworkShape(encoder=record["encoder"], feature_set=feature_set, **widths)
    if not (1 <= shape.hidden <= MAX_WIDTH and 1 <= shape.rounds <= MAX_ROUNDS):
        raise PolicyFileError(
            f"{where}: hidden {shape.hidden}, rounds {shape.rounds}; "
            f"use 1 to {MAX_WIDTH} and 1 to {MAX_ROUNDS}"
        )
    expected = current_shape(shape.encoder, shape.hidden, shape.rounds, shape.feature_set)
    if shape != expected:
        raise PolicyFileError(f"{where}: is for other features than this version's; train the policy anew")
    return shape


def _array(value: object, file: Path) -> list[Any]:
    return json_fields.array(value, f"{file}: seen")


def _read_seen(value: object, where: str) -> Mapping[str, str]:
    record = json_fields.fields(value, where, {"name", "family", "sha256"})
    return {key: json_fields.text(record[key], f"{where}.{key}") for key in record}


def _check_version(values: Mapping[str, Any], file: Path) -> Mapping[str, Any]:
    if values["feature_version"] != node_features.VERSION:
        raise PolicyFileError(
            f"{file}: features of version {values['feature_version']!r}, this is {node_features.VERSION}; "
            "train the policy anew"
        )
    if not isinstance(values["config"], dict):
        raise PolicyFileError(f"{file}: config is no object")
    return values


def _check_weights(weights: Mapping[str, Tensor], network: PlacementNetwork, file: Path) -> None:
    expected = network.state_dict()
    for name in sorted(expected.keys() ^ weights.keys()):
        state = "is missing" if name in expected else "is not part of the network"
        raise PolicyFileError(f"{file}: tensor '{name}' {state}; the file is not of this policy")
    for name, tensor in weights.items():
        if tensor.shape != expected[name].shape or tensor.dtype != expected[name].dtype:
            raise PolicyFileError(
                f"{file}: tensor '{name}' is {tensor.dtype} {tuple(tensor.shape)}, "
                f"expected {expected[name].dtype} {tuple(expected[name].shape)}"
            )
        if not torch.isfinite(tensor).all():
            raise PolicyFileError(f"{file}: tensor '{name}' holds NaN or infinity; train the policy anew")
