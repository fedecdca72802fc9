"""The problems of a training: those that fit, and clusters drawn at random."""

from dataclasses import replace

from agent.learn.inputs import read_inputs
from agent.learn.problems import problems_of, training_problems, validation_problems
from envs.problem import Problem
from graphs.op_graph import build_graph
from graphs.split import Split
from tests.agent.learn.train_cases import SMALL, chains


def test_problems_out_of_memory_are_left_out() -> None:
    ops = [{"name": "a", "type": "parameter", "resident_bytes": 1e12}, {"name": "b"}]
    huge = build_graph("huge", "huge", ops, [(0, 1, [1])])
    small = chains(2, 2, "small")
    problems: list[Problem] = problems_of([huge, small], ["2xk80", "4xh100"])
    assert [problem.graph.name for problem in problems] == ["small", "small"]


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


def test_random_clusters_are_mixed_with_named_ones_and_keep_all_devices() -> None:
    config = replace(SMALL, cluster=("2xk80", "random"), randomizations=30)
    problems = training_problems([chains(2, 2, "a")], config, seed=0)
    random = [each.cluster for each in problems if each.cluster.name != "2xk80"]
    assert 5 <= len(random) <= 25
    assert all(cluster.name.endswith(f"-{cluster.n_devices}") for cluster in random)


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
