"""Policies on disk: what is written is read back; whatever else is there is refused in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load, save

from agent.policy.network import PlacementNetwork
from agent.policy.node_features import GRAPH_FEATURES, NODE_FEATURES
from agent.policy.serialization import (
    PolicyCard,
    PolicyFileError,
    describe_seen,
    load_policy,
    read_policy,
    save_policy,
)
from agent.policy.shape import current_shape
from envs.placement.observation.features import DEVICE_FEATURES, FEATURE_SETS
from tests.agent.placement_cases import random_problem, training_graph


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a small policy."""
    torch.manual_seed(0)
    network = PlacementNetwork(current_shape("sage", 8, 1))
    seen = describe_seen([training_graph(), random_problem(0).graph])
    save_policy(tmp_path, network, PolicyCard(network.shape, seen, {"seed": 3}))
    return tmp_path


def test_round_trip(saved: Path) -> None:
    torch.manual_seed(0)
    expected = PlacementNetwork(current_shape("sage", 8, 1)).state_dict()
    found = load_policy(saved).network.state_dict()
    assert expected.keys() == found.keys()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


@pytest.mark.parametrize("feature_set", FEATURE_SETS)
def test_a_card_lists_the_features_that_the_policy_sees(saved: Path, feature_set: str) -> None:
    network = PlacementNetwork(current_shape("sage", 8, 1, feature_set))
    save_policy(saved, network, replace(read_policy(saved).card, shape=network.shape))
    card = json.loads((saved / "policy.json").read_text())
    groups = FEATURE_SETS[feature_set]
    assert card["device_features"] == [each.name for each in DEVICE_FEATURES if each.group in groups]
    assert card["node_features"] == [each.name for each in NODE_FEATURES]
    assert card["graph_features"] == [each.name for each in GRAPH_FEATURES]
    assert load_policy(saved).network.shape == network.shape


@pytest.mark.parametrize("key", ["node_features", "graph_features", "device_features"])
@pytest.mark.parametrize("spoil", [lambda names: names[1:], lambda names: [*names[1:], names[0]]])
def test_a_policy_for_other_features_is_refused(
    saved: Path, key: str, spoil: Callable[[list[str]], list[str]]
) -> None:
    file = saved / "policy.json"
    card = json.loads(file.read_text())
    file.write_text(json.dumps(card | {key: spoil(card[key])}))
    with pytest.raises(PolicyFileError, match=f"^{file}: {key}: is for other features .*train .* again$"):
        read_policy(saved)


def test_a_policy_of_another_version_is_refused_as_such(saved: Path) -> None:
    file = saved / "policy.json"
    file.write_text(json.dumps({"format": "placewalk.policy/3", "feature_version": 1}))
    message = "'placewalk.policy/3', this version reads 'placewalk.policy/4'; train the policy again"
    with pytest.raises(PolicyFileError, match=f"^{file}: format is {message}$"):
        load_policy(saved)


def test_the_digest_is_of_the_bytes_that_were_read(saved: Path) -> None:
    stored = read_policy(saved)
    assert read_policy(saved).digest == stored.digest
    before = stored.policy().network.state_dict()
    for name in ("policy.json", "policy.safetensors"):
        file = saved / name
        data = file.read_bytes()
        file.write_bytes(data + b" ")
        assert read_policy(saved).digest != stored.digest
        file.write_bytes(data)
    (saved / "policy.safetensors").unlink()
    after = stored.policy().network.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_card_knows_what_was_seen(saved: Path) -> None:
    card = read_policy(saved).card
    assert card.config == {"seed": 3}
    graph = training_graph()
    renamed = replace(graph, name="other", family="", op_names=tuple(f"x{op}" for op in range(graph.n_ops)))
    assert card.how_seen(graph) == card.how_seen(renamed) == "yes"
    assert card.how_seen(replace(graph, flops=graph.flops * 2)) == "topology"
    assert card.how_seen(training_graph(n_layers=2)) == "no"


def change(key: str, value: object) -> Callable[[dict[str, Any]], object]:
    """Set a key of the card; `shape.x` reaches into the shape."""

    def apply(record: dict[str, Any]) -> object:
        *outer, last = key.split(".")
        inner = record[outer[0]] if outer else record
        inner[last] = value
        return record

    return apply


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (change("format", "placewalk.opgraph/1"), "format"),
        (change("extra", 1), "unknown key"),
        (change("device_features", {}), "array"),
        (change("config", {"mdp": "wander"}), "config: mdp is 'wander'; use construct or improve"),
        (change("config", {"passes": 101}), "config: passes is 101; use at most 100"),
        (change("config", {"start": "annealing"}), "config: start is 'annealing'; use best, "),
        *((change("config", {"order": order}), "config: order: is") for order in ("topo", None, [1])),
        (change("seen", {}), "array"),
        (change("seen", [{"name": "x"}]), "missing"),
        (change("shape.encoder", "gnn"), "policy.json: shape: unknown encoder 'gnn'; use one of sage, "),
        (change("shape.feature_set", "blind"), "unknown feature set"),
        (change("shape.hidden", 10**9), "hidden"),
        (change("shape.rounds", 2), "tensor"),
        (change("shape.hidden", 16), "tensor"),
        (change("shape.feature_set", "state"), "features"),
        (change("shape.layers", 3), "unknown key"),
        (lambda record: [record], "object"),
    ],
)
def test_a_wrong_card_is_refused(
    saved: Path, spoil: Callable[[dict[str, Any]], object], message: str
) -> None:
    file = saved / "policy.json"
    file.write_text(json.dumps(spoil(json.loads(file.read_text()))))
    with pytest.raises(PolicyFileError, match=message) as caught:
        load_policy(saved)
    assert "\n" not in str(caught.value)
    assert str(saved) in str(caught.value)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: b"", "no safetensors"),
        (lambda data: data[: len(data) // 2], "no safetensors"),
        (lambda data: b"PK\x03\x04" + data, "no safetensors"),
        (lambda data: save({"x": torch.zeros(2)}), "not of this policy|not part"),
        (lambda data: save(dict(list(load(data).items())[1:])), "is missing"),
        (lambda data: save({name: t * float("nan") for name, t in load(data).items()}), "NaN"),
        (lambda data: save({name: t.double() for name, t in load(data).items()}), "float64"),
        (lambda data: save({name: t.flatten() for name, t in load(data).items()}), "expected"),
    ],
)
def test_wrong_weights_are_refused(saved: Path, spoil: Callable[[bytes], bytes], message: str) -> None:
    file = saved / "policy.safetensors"
    file.write_bytes(spoil(file.read_bytes()))
    with pytest.raises(PolicyFileError, match=message) as caught:
        load_policy(saved)
    assert "\n" not in str(caught.value)


@given(at=st.integers(0, 10**6), byte=st.integers(0, 255))
def test_a_changed_byte_never_crashes(tmp_path_factory: pytest.TempPathFactory, at: int, byte: int) -> None:
    folder = tmp_path_factory.mktemp("policy")
    network = PlacementNetwork(current_shape("none", 2, 1))
    save_policy(folder, network, PolicyCard(network.shape))
    for name in ("policy.json", "policy.safetensors"):
        file = folder / name
        data = bytearray(file.read_bytes())
        data[at % len(data)] = byte
        file.write_bytes(bytes(data))
    # A changed digit or weight may still be a policy; anything else that is raised fails the test.
    with suppress(PolicyFileError):
        load_policy(folder)


@pytest.mark.parametrize("missing", ["policy.json", "policy.safetensors"])
def test_a_missing_file_is_named(saved: Path, missing: str) -> None:
    (saved / missing).unlink()
    with pytest.raises(PolicyFileError, match=missing):
        load_policy(saved)
