"""The configuration of a training, and the problems that it makes."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.commands.train_flags import make_parser
from agent.contexts.engine import EngineConfig
from agent.learn.config import ConfigError, TrainConfig
from agent.learn.inputs import read_inputs
from agent.learn.problems import training_problems, validation_problems
from agent.studies.study_config import StudyConfig
from graphs.dataset import Split, split_graphs
from graphs.op_graph import OpGraph, build_graph
from tests.agent.learn.train_cases import SMALL, chains


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
        ({"familys": ["gpt"]}, "unknown key 'familys'"),
        ({"learning_rate": 0}, "more than 0"),
        ({"gae_lambda": 1.5}, "at most 1"),
        ({"families": {"a": 1}}, "list of strings"),
        ({"granularity": ["op", "row"]}, "granularity"),
        ({"measured_steps": 5}, "at least 20"),
        ({"context": "cloud"}, "use local or search or ablation or grid or distributed"),
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


SHARES = st.sampled_from([0, 0.05, 0.125, 0.25, 0.5])


@given(st.integers(1, 40), SHARES, SHARES)
def test_split_is_a_partition(n: int, holdout: float, validation: float) -> None:
    everything = graphs(n, "a")
    split = split_graphs(everything, holdout=holdout, validation=validation)
    names = [graph.name for part in (split.train, split.validation, split.held_out) for graph in part]
    assert sorted(names) == sorted(graph.name for graph in everything)
    assert everything[0] in split.train


def test_randomized_problems_are_the_same_for_a_seed_and_validated_on_the_clusters_as_they_are() -> None:
    graphs = [chains(2, 2, "a"), chains(3, 2, "b"), chains(2, 3, "c")]
    config = replace(SMALL, cluster=("2xk80", "4xh100"), randomizations=4)
    problems = training_problems(graphs, config, seed=0)
    assert [problem.graph.name for problem in problems] == ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    speeds = [problem.cluster.devices[0].flops_per_s for problem in problems]
    assert len(set(speeds)) == len(speeds)
    again = training_problems(graphs, config, seed=0)
    assert [problem.cluster.devices[0].flops_per_s for problem in again] == speeds
    assert {problem.n_devices for problem in problems} == {2, 3, 4}
    validated = [
        (problem.graph.name, problem.cluster.name) for problem in validation_problems(graphs, config)
    ]
    assert validated == [("a", "2xk80"), ("b", "4xh100"), ("c", "2xk80")]


def test_graphs_are_trained_on_at_every_granularity() -> None:
    ops = [{"name": name, "module": module} for name, module in (("a", "x"), ("b", "y"), ("c", "x"))]
    graph = build_graph("net", "nets", ops, [(0, 1e3, [1]), (1, 1e3, [2])])
    config = replace(SMALL, cluster=("2xk80",), granularity=("op", "module"))
    for problems in (training_problems([graph], config, seed=0), validation_problems([graph], config)):
        assert [problem.graph.name for problem in problems] == ["net", "net by module"]
        assert [len(problem.graph.units) for problem in problems] == [3, 2]


def test_random_clusters_are_drawn_for_each_graph_and_randomization_and_are_the_same_for_a_seed() -> None:
    graphs = [chains(2, 2, name) for name in "abcd"]
    config = replace(SMALL, cluster=("random",), randomizations=3)

    def shown(seed: int) -> list[tuple[str, str, float]]:
        problems = training_problems(graphs, config, seed)
        return [
            (each.graph.name, each.cluster.name, float(each.cluster.memory_bytes.sum())) for each in problems
        ]

    found = shown(0)
    assert [name for name, _, _ in found] == [name for name in "abcd" for _ in range(3)]
    assert len({memory for _, _, memory in found}) == len(found)
    assert found == shown(0)
    assert found != shown(1)
    for own in (config, replace(config, randomizations=0), replace(config, randomizations=0, seed=7)):
        validated = [problem.cluster.name for problem in validation_problems(graphs, own)]
        assert validated == [problem.cluster.name for problem in validation_problems(graphs, config)]
        assert len(set(validated)) > 1


def test_inputs_with_random_clusters_are_read_and_what_fits_on_none_is_named() -> None:
    ops = [{"name": "a", "type": "parameter", "resident_bytes": 1e13}, {"name": "b"}]
    huge = [build_graph(f"huge-{i}", "huge", ops, [(0, 1, [1])]) for i in range(4)]
    config = replace(SMALL, cluster=("random", "2xk80"))
    on_random, on_named = read_inputs(config, Split((chains(2, 2, "a"),), (), (huge[0],))).left_out
    assert on_random.startswith("random-")
    assert on_random.endswith(": huge-0")
    assert on_named == "2xk80: huge-0"
    config = replace(SMALL, cluster=("2xk80",))
    left_out = read_inputs(config, Split((chains(2, 2, "a"),), tuple(huge[:1]), tuple(huge[1:]))).left_out
    assert left_out == ("2xk80: huge-0, huge-1 and 2 more",)
