"""Policies on disk: weights in `policy.safetensors`, the rest in `policy.json`; nothing is unpickled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from agent.policy.compiled.head import CompiledPolicy
from agent.policy.mdp_config import MdpConfig
from agent.policy.node_features import GRAPH_FEATURES, NODE_FEATURES
from agent.policy.shape import NetworkShape, current_shape
from agent.policy.starts import start_names
from envs.placement.observation.features import DEVICE_FEATURES, FEATURE_SETS, columns_of
from graphs.identity import graph_hash, topology_hash
from graphs.op_graph import OpGraph
from graphs.system import json_fields
from graphs.system.errors import InputError
from graphs.system.json_files import FileFormatError, is_irregular, parse_json, write_all_atomic

if TYPE_CHECKING:
    from agent.policy.network import PlacementNetwork
    from agent.policy.policy import Policy

FORMAT = "placewalk.policy/4"
FAMILY = FORMAT.partition("/")[0]
PRETRAINED = Path(__file__).parent / "pretrained"
MAX_WIDTH, MAX_ROUNDS = 4096, 64


class PolicyFileError(InputError):
    """A policy that cannot be read; the message says which file, what is wrong, and what would be right."""


SEEN, SEEN_TOPOLOGY, NOT_SEEN = "yes", "topology", "no"
"""A policy was shown a graph, or one of its structure with other costs, or neither."""
KEYS = frozenset({"name", "family", "sha256", "topology"})
"""Of an entry of the list."""

Entry = Mapping[str, str]


def describe_seen(graphs: Iterable[OpGraph]) -> tuple[Entry, ...]:
    """Makes the entries of some graphs: name, family, and hashes of structure and costs, and of structure."""
    return tuple(
        {
            "name": graph.name,
            "family": graph.family,
            "sha256": graph_hash(graph),
            "topology": topology_hash(graph),
        }
        for graph in graphs
    )


def how_seen(graph: OpGraph, entries: Iterable[Entry]) -> str:
    """Says what of a graph the entries hold, whatever its names: `SEEN`, `SEEN_TOPOLOGY` or `NOT_SEEN`."""
    shown = [(entry["sha256"], entry["topology"]) for entry in entries]
    digest, topology = graph_hash(graph), topology_hash(graph)
    if any(digest == each for each, _ in shown):
        return SEEN
    return SEEN_TOPOLOGY if any(topology == each for _, each in shown) else NOT_SEEN


@dataclass(frozen=True)
class PolicyCard:
    """The contents of `policy.json`.

    Attributes:
        seen: name, family and hashes of every graph that the policy was trained on or chosen by.
    """

    shape: NetworkShape
    seen: tuple[Mapping[str, str], ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    def how_seen(self, graph: OpGraph) -> str:
        """Says what the policy was shown of a graph: `SEEN`, `SEEN_TOPOLOGY` or `NOT_SEEN`."""
        return how_seen(graph, self.seen)

    def about_orders(self, orders: Iterable[str]) -> str:
        """Says which of some orders the last training left out; empty if none, or if it is not known."""
        trained = list(dict.fromkeys(self.config.get("order", orders)))
        others = ", ".join(order for order in orders if order not in trained)
        if not (trained and others):
            return ""
        return f"the policy was last trained in {', '.join(trained)}; in {others} it may place worse"


@dataclass(frozen=True, eq=False)
class StoredPolicy:
    """The files of a policy, read once; another process gets the same bytes and makes its own policy of them.

    It makes it on arrival, so that the seconds that torch takes to load are those of no trial.

    Attributes:
        card: content of `policy.json`.
        digest: SHA-256, in hexadecimal, of just the bytes that `card` and `policy` are made of.
    """

    card: PolicyCard
    digest: str
    _weights: bytes
    _file: Path

    def policy(self) -> Policy:
        """Makes a policy that can act on any graph and cluster.

        Raises:
            PolicyFileError: the encoder is unknown, or the weights are corrupt or of another network than the
                card says.
        """
        import torch

        make_network, make_policy = torch_classes()
        try:
            weights: dict[str, NDArray[np.float32]] = load(self._weights)
        except (SafetensorError, KeyError) as error:  # a type that NumPy lacks is a KeyError
            raise PolicyFileError(f"{self._file}: is no safetensors file: {error}") from None
        try:
            with torch.device("meta"):
                network = make_network(self.card.shape)
        except InputError as error:
            raise PolicyFileError(f"{self._file.with_name('policy.json')}: shape: {error}") from None
        expected = {name: tuple(tensor.shape) for name, tensor in network.state_dict().items()}
        _check_weights(weights, expected, self._file)
        tensors = {name: torch.from_numpy(array) for name, array in weights.items()}
        network.load_state_dict(tensors, assign=True)
        return make_policy(network, MdpConfig.from_settings(self.card.config))

    @cached_property
    def actor(self) -> CompiledPolicy:
        """The policy that `policy` makes, compiled, made once."""
        return self.policy().compiled()

    def how_seen(self, graphs: Iterable[OpGraph]) -> dict[str, str]:
        """Says what the policy was shown of each graph, by name, as `PolicyCard.how_seen` does."""
        return {graph.name: self.card.how_seen(graph) for graph in graphs}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "actor"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        _ = self.actor


def save_policy(folder: Path, network: PlacementNetwork, card: PolicyCard) -> None:
    """Writes a policy's two files, as `write_all_atomic` does."""
    write_all_atomic(policy_files(folder, network, card))


def policy_files(folder: Path, network: PlacementNetwork, card: PolicyCard) -> dict[Path, bytes]:
    """Returns the content of a policy's two files in a folder, the card first."""
    shape = card.shape
    record = {
        "format": FORMAT,
        "shape": {
            "encoder": shape.encoder,
            "hidden": shape.hidden,
            "rounds": shape.rounds,
            "feature_set": shape.feature_set,
        },
        **_feature_names(shape.feature_set),
        "seen": [dict(entry) for entry in card.seen],
        "config": dict(card.config),
    }
    text = json.dumps(record, indent=2, allow_nan=False) + "\n"
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in network.state_dict().items()}
    data = save(weights, metadata={"format": FORMAT})
    return {folder / "policy.json": text.encode(), folder / "policy.safetensors": data}


def read_policy(path: str | Path) -> StoredPolicy:
    """Reads a policy's files, once.

    Args:
        path: folder of a run, or `pretrained`.

    Raises:
        PolicyFileError: a file is missing, or `policy.json` does not conform; `StoredPolicy.policy` checks
            the encoder and the weights.
    """
    folder = PRETRAINED if str(path) == "pretrained" else Path(path)
    card_file, file = folder / "policy.json", folder / "policy.safetensors"
    if not card_file.is_file():
        raise PolicyFileError(f"{folder}: holds no policy.json; give the folder of a trained run")
    card_data, weights = _read_bytes(card_file), _read_bytes(file)
    parts = (hashlib.sha256(data).digest() for data in (card_data, weights))
    digest = hashlib.sha256(b"".join(parts)).hexdigest()
    return StoredPolicy(_parse_card(card_data, card_file), digest, weights, file)


def load_policy(path: str | Path) -> Policy:
    """Reads a policy that can act on any graph and cluster.

    Args:
        path: folder of a run, or `pretrained`.

    Raises:
        PolicyFileError: a missing, corrupt or foreign file, or one of another version.
    """
    return read_policy(path).policy()


def _read_bytes(file: Path) -> bytes:
    if is_irregular(file):
        raise PolicyFileError(f"{file}: is no regular file; expected a policy's")
    try:
        return file.read_bytes()
    except OSError as error:
        raise PolicyFileError(f"{file}: cannot be read: {error.strerror}") from None


def _parse_card(data: bytes, file: Path) -> PolicyCard:
    try:
        record = parse_json(data.decode("utf-8"), str(file))
        _check_version(record, file)
        lists = ("node_features", "graph_features", "device_features")
        values = json_fields.fields(
            record, str(file), {"format", "shape", *lists, "seen", "config"}, format=FORMAT
        )
        shape = _parse_shape(values["shape"], f"{file}: shape")
        for key, expected in _feature_names(shape.feature_set).items():
            if json_fields.array(values[key], f"{file}: {key}") != expected:
                others = "is for other features than this version's"
                raise PolicyFileError(f"{file}: {key}: {others}; train the policy again")
        _check_config(values["config"], f"{file}: config")
        seen = json_fields.array(values["seen"], f"{file}: seen")
        return PolicyCard(
            shape, tuple(_parse_seen(entry, f"{file}: seen") for entry in seen), values["config"]
        )
    except UnicodeDecodeError as error:
        raise PolicyFileError(f"{file}: is not UTF-8 (byte {error.start})") from None
    except FileFormatError as error:
        raise PolicyFileError(str(error)) from None


def _check_version(record: object, file: Path) -> None:
    """Refuses a policy of another version as such, whatever keys it has."""
    version = str(record.get("format")) if isinstance(record, dict) else ""
    if version != FORMAT and version.startswith(f"{FAMILY}/"):
        raise PolicyFileError(
            f"{file}: format is {json_fields.quoted(version)}, this version reads '{FORMAT}'; "
            "train the policy again"
        )


def _check_config(config: object, where: str) -> None:
    """Checks those settings of the training that the policy acts by, as the training checks its flags."""
    if not isinstance(config, dict):
        raise PolicyFileError(f"{where} is no object")
    try:
        start = MdpConfig.from_settings(config, where).start
    except InputError as error:
        raise PolicyFileError(str(error)) from None
    for order in json_fields.array(config.get("order", []), f"{where}: order"):
        json_fields.name(order, f"{where}: order")
    if start not in start_names():
        raise PolicyFileError(f"{where}: start is {start!r}; use {', '.join(start_names())}")


def _feature_names(feature_set: str) -> dict[str, list[str]]:
    """Names of this version's features, by key of `policy.json`."""
    return {
        "node_features": [feature.name for feature in NODE_FEATURES],
        "graph_features": [feature.name for feature in GRAPH_FEATURES],
        "device_features": [DEVICE_FEATURES[column].name for column in columns_of(feature_set)],
    }


def _parse_shape(value: object, where: str) -> NetworkShape:
    record = json_fields.fields(value, where, {"encoder", "hidden", "rounds", "feature_set"})
    feature_set = json_fields.text(record["feature_set"], f"{where}.feature_set")
    if feature_set not in FEATURE_SETS:
        raise PolicyFileError(
            f"{where}: unknown feature set {feature_set!r}; known are {', '.join(FEATURE_SETS)}"
        )
    encoder = json_fields.text(record["encoder"], f"{where}.encoder")
    hidden = json_fields.integer(record["hidden"], f"{where}.hidden")
    rounds = json_fields.integer(record["rounds"], f"{where}.rounds")
    if not (1 <= hidden <= MAX_WIDTH and 1 <= rounds <= MAX_ROUNDS):
        raise PolicyFileError(
            f"{where}: hidden {hidden}, rounds {rounds}; use 1 to {MAX_WIDTH} and 1 to {MAX_ROUNDS}"
        )
    return current_shape(encoder, hidden, rounds, feature_set)


def _parse_seen(value: object, where: str) -> Mapping[str, str]:
    record = json_fields.fields(value, where, KEYS)
    return {key: json_fields.text(record[key], f"{where}.{key}") for key in record}


def torch_classes() -> tuple[type[PlacementNetwork], type[Policy]]:
    """Loads the classes of networks and policies, and torch with them."""
    from agent.policy import network, policy

    return network.PlacementNetwork, policy.Policy


def _check_weights(
    weights: Mapping[str, NDArray[Any]], expected: Mapping[str, tuple[int, ...]], file: Path
) -> None:
    for name in sorted(expected.keys() ^ weights.keys()):
        state = "is missing" if name in expected else "is not part of the network"
        raise PolicyFileError(f"{file}: tensor '{name}' {state}; the file is not of this policy")
    for name, array in weights.items():
        if array.shape != expected[name] or array.dtype != np.float32:
            raise PolicyFileError(
                f"{file}: tensor '{name}' is {array.dtype} {array.shape}, expected float32 {expected[name]}"
            )
        if not np.isfinite(array).all():
            raise PolicyFileError(f"{file}: tensor '{name}' holds NaN or infinity; train the policy again")
