"""Known answers of the searches: cross-entropy, METIS, and annealing from heuristics and rollouts."""

import numpy as np
import pytest

from agent.placers.base import PLACERS, Budget
from agent.placers.metis import _partition, _unit_graph
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_many
from graphs.dataset import load_family
from graphs.op_graph import build_graph
from tests.agent.placement_cases import GB, make_cluster, random_problem, training_graph

HEURISTICS = [name for name, placer in PLACERS.items() if placer.is_heuristic]


def place(name, problem, evaluations=200, seed=0):
    return PLACERS[name].place(problem, Budget(evaluations), np.random.default_rng(seed))


def two_cliques(n=6):
    """Two chains of heavy traffic and one light tensor between them."""
    ops = [{"name": f"{side}{i}", "flops": 1e9} for side in "ab" for i in range(n)]
    chains = [(at, 1e8, [at + 1]) for first in (0, n) for at in range(first, first + n - 1)]
    return build_graph("cliques", "", ops, [*chains, (0, 1e3, [n])])


def test_metis_cuts_where_the_traffic_is_least():
    problem = Problem(two_cliques(), make_cluster(2))
    part = _partition(_unit_graph(problem), np.ones(12), np.ones(2), 10)
    assert len(set(part[:6])) == len(set(part[6:])) == 1
    assert part[0] != part[6]
    assert place("metis", problem).step_time.total_s == pytest.approx(
        7 / 12 * problem.scale_s, rel=0.01
    )  # b0 reads of a0


def test_parts_are_in_proportion_to_the_speed_of_their_devices():
    ops = [{"name": f"op{i}", "flops": 1e9} for i in range(90)]
    chain = build_graph("chain", "", ops, [(i, 1e6, [i + 1]) for i in range(89)])
    problem = Problem(chain, make_cluster(2))
    part = _partition(_unit_graph(problem), np.ones(90), np.array([2.0, 1.0]), 10)
    assert np.bincount(part) == pytest.approx([60, 30], abs=2)


def test_metis_takes_a_graph_without_tensors():
    problem = Problem(
        build_graph("bare", "", [{"name": f"op{i}", "flops": 1e9} for i in range(8)], []), make_cluster(4)
    )
    assert place("metis", problem).step_time.total_s == pytest.approx(problem.scale_s / 4, rel=1e-3)


@pytest.mark.parametrize("name", ["cross-entropy", "refine", "rollout-refine"])
def test_a_search_finds_the_optimum_of_a_small_graph_and_spends_its_budget(name):
    problem = random_problem(1, n_ops=9, n_devices=2)
    n_units = len(problem.graph.units)
    every = (np.arange(2**n_units)[:, None] >> np.arange(n_units)) & 1
    total_s, _ = simulate_many(problem, every[:, problem.graph.unit_of], memory=False)
    found = place(name, problem, 3000)
    assert found.evaluations == 3000
    assert found.step_time.total_s == pytest.approx(total_s.min())


def test_cross_entropy_draws_large_graphs_in_segments_and_gains_on_its_start():
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    found = place("cross-entropy", problem, 2000)
    start = min(
        (place(name, problem) for name in ("single", "memory-fill")),
        key=lambda start: (not start.feasible, start.step_time.total_s),
    )
    assert found.feasible
    assert found.step_time.total_s < 0.95 * start.step_time.total_s


@pytest.mark.parametrize("name", ["refine", "rollout-refine"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("evaluations", [60, 300])
def test_refined_placements_are_never_worse_than_any_heuristic(name, seed, evaluations):
    problem = random_problem(seed)
    refined = place(name, problem, evaluations).step_time.total_s
    for heuristic in HEURISTICS:
        assert refined <= place(heuristic, problem).step_time.total_s, heuristic


def test_drawn_rollouts_include_the_greedy_one_and_gain_on_it():
    problems = [Problem(graph, get_cluster("4xv100")) for graph in load_family("cifar10")[:3]]
    ratios = [
        place("rollout-beam", problem).step_time.total_s / place("rollout", problem).step_time.total_s
        for problem in problems
    ]
    assert max(ratios) <= 1.0
    assert min(ratios) < 1.0
    assert place("rollout-beam", problems[0]).evaluations <= 64


def test_drawn_rollouts_go_on_from_others_where_memory_runs_out():
    tight = Problem(training_graph(4, 3), make_cluster(3, memory_bytes=5 * GB))
    assert place("rollout-beam", tight).feasible
