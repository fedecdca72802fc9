"""The configuration of a training."""

from __future__ import annotations

import json
import re

import pytest

from agent.commands.train_flags import make_parser
from agent.contexts.engine import EngineConfig
from agent.learn.config import ConfigError, TrainConfig
from agent.studies.study_config import StudyConfig
from graphs.op_graph import OpGraph, build_graph
from graphs.split import split_graphs


def test_round_trip() -> None:
    config = TrainConfig(name="x", families=("gpt", "moe"), minutes=2.5)
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json())), "file") == config


def test_flags_and_fields_are_the_same() -> None:
    options = {action.dest for action in make_parser()._actions} - {"help", "config", "resume", "compile"}
    settings = (TrainConfig(), StudyConfig(), EngineConfig())
    assert options == {name for each in settings for name in each.to_json()}


def test_whole_numbers_are_numbers_and_strings_lists_of_one() -> None:
    config = TrainConfig.from_json({"minutes": 3, "cluster": "2xk80"}, "file")
    assert config.minutes == 3.0
    assert config.cluster == ("2xk80",)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([], "file: holds list"),
        ({"familys": ["gpt"]}, "unknown key 'familys'"),
        ({"seed": -1}, "seed is -1; use at least 0"),
        ({"seed": True}, "seed is True; use a whole number"),
        ({"seed": 1.5}, "seed is 1.5"),
        ({"minutes": float("nan")}, "finite"),
        ({"learning_rate": 0}, "more than 0"),
        ({"gae_lambda": 1.5}, "at most 1"),
        ({"families": [1]}, "list of strings"),
        ({"families": {"a": 1}}, "list of strings"),
        ({"mdp": "wander"}, "mdp is 'wander'; use construct or improve"),
        ({"reward": "guessed"}, "reward is 'guessed'; use simulated or measured"),
        ({"granularity": ["op", "row"]}, "granularity"),
        ({"measured_steps": 5}, "at least 20"),
        ({"context": "cloud"}, "use local or search or ablation or grid or distributed"),
        ({"name": None}, "use a string"),
        ({"cluster": []}, "cluster is empty"),
    ],
)
def test_bad_values_are_named(values: object, message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        TrainConfig.from_json(values, "file")
    assert str(caught.value).startswith("file: ")
    assert "\n" not in str(caught.value)


def graphs(n: int, family: str) -> list[OpGraph]:
    return [build_graph(f"{family}-{i}", family, [{"name": "a"}], []) for i in range(n)]


def test_split_by_hand() -> None:
    split = split_graphs(graphs(8, "a") + graphs(1, "b"), holdout=0.25, validation=0.125)
    assert [graph.name for graph in split.held_out] == ["a-3", "a-7"]
    assert [graph.name for graph in split.validation] == ["a-1"]
    assert [graph.name for graph in split.train] == ["a-0", "a-2", "a-4", "a-5", "a-6", "b-0"]


@pytest.mark.parametrize("n", [1, 2, 5, 24, 33])
@pytest.mark.parametrize("holdout", [0, 0.1, 0.25, 0.5])
@pytest.mark.parametrize("validation", [0, 0.125, 0.5])
def test_split_is_a_partition(n: int, holdout: float, validation: float) -> None:
    everything = graphs(n, "a")
    split = split_graphs(everything, holdout=holdout, validation=validation)
    names = [graph.name for part in (split.train, split.validation, split.held_out) for graph in part]
    assert sorted(names) == sorted(graph.name for graph in everything)
    assert everything[0] in split.train
