"""Known answers of the searches: METIS, annealing from heuristics and rollouts, and what they move."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from agent.placers.base import BATCH, PLACERS, Budget, SearchState
from agent.placers.heuristics.m_sct import favourite_children
from agent.placers.heuristics.single import single_devices
from agent.placers.search.annealing import Segments, _new_chain, segments_of
from agent.placers.search.annealing_moves import AnnealingChain, anneal
from agent.placers.search.rollout import draw_rollouts
from agent.placers.units import units_of
from envs.cluster.presets import get_cluster
from envs.objective import TOTAL_S
from envs.problem import Problem
from envs.simulator.simulate import simulate_many, step_time_s
from graphs.dataset import load_family
from graphs.granularity import module_paths
from graphs.op_graph import OpGraph, build_graph
from graphs.system.array_types import IntArray
from tests.agent.placement_cases import GB, found_by, make_cluster, optimum_s, random_problem, training_graph
from tests.envs.random_problems import with_slowdown

STARTS = [name for name, placer in PLACERS.items() if placer.is_start]


def two_cliques(n=6):
    """Two chains of heavy traffic and one light tensor between them."""
    ops = [{"name": f"{side}{i}", "flops": 1e9} for side in "ab" for i in range(n)]
    chains = [(at, 1e8, [at + 1]) for first in (0, n) for at in range(first, first + n - 1)]
    return build_graph("cliques", "", ops, [*chains, (0, 1e3, [n])])


def test_metis_cuts_where_the_traffic_is_least():
    problem = Problem(two_cliques(), make_cluster(2))
    found = found_by("metis", problem)
    device_a, device_b = found.placement.device_of[[0, 6]]
    assert found.placement.device_of.tolist() == [device_a] * 6 + [device_b] * 6
    assert found.step_time.total_s == pytest.approx(7 / 12 * problem.scale_s, rel=0.01)  # b0 reads of a0


def test_metis_takes_a_graph_without_tensors():
    ops = [{"name": f"op{i}", "flops": 1e9} for i in range(8)]
    problem = Problem(build_graph("bare", "", ops, []), make_cluster(4))
    assert found_by("metis", problem).step_time.total_s == pytest.approx(problem.scale_s / 4, rel=1e-3)


@pytest.mark.parametrize("name", ["refine", "rollout-refine"])
def test_a_search_finds_the_optimum_of_a_small_graph_and_spends_its_budget(name):
    problem = random_problem(1, n_ops=9, n_devices=2)
    found = found_by(name, problem, 3000)
    assert found.evaluations == 3000
    assert found.step_time.total_s == pytest.approx(optimum_s(problem))


@pytest.mark.parametrize("name", ["refine", "rollout-refine", "policy-refine"])
@pytest.mark.parametrize(("seed", "evaluations"), [(0, 60), (1, 300), (2, 300)])
def test_refined_placements_are_never_worse_than_any_heuristic(name, seed, evaluations):
    problem = random_problem(seed)
    refined = found_by(name, problem, evaluations).step_time.total_s
    for heuristic in STARTS:
        assert refined <= found_by(heuristic, problem).step_time.total_s, heuristic


@pytest.mark.parametrize("name", ["refine", "rollout-refine", "local-search"])
def test_starts_that_would_not_end_in_time_are_left_out(name, monkeypatch):
    def slow(*arguments, **options):
        time.sleep(0.02)
        return simulate_many(*arguments, **options)

    monkeypatch.setattr("envs.objective.simulate_many", slow)
    problem = random_problem(0)
    assert found_by(name, problem, Budget(None, 0.3)).evaluations <= problem.n_devices + 1


@pytest.mark.parametrize("name", ["refine", "rollout-refine"])
@pytest.mark.parametrize("seconds", [1e-6, 0.1])
def test_no_budget_of_seconds_is_too_short_for_one_device(name, seconds):
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    assert found_by(name, problem, Budget(None, seconds)).step_time.total_s <= problem.scale_s


def test_a_rollout_that_would_not_end_in_time_is_given_up_unless_nothing_else_is_there():
    problem, rng = Problem(load_family("gpt")[0], get_cluster("4xv100")), np.random.default_rng(0)
    for must_place in (True, False):
        search = SearchState(problem, Budget(None, 1e-4), must_place=must_place)
        draw_rollouts(search, rng, 0)
        assert search.evaluations == must_place


@pytest.mark.parametrize(
    ("budget", "seconds_each", "batch"),
    [
        (Budget(1_000), 1.0, BATCH),
        (Budget(10), 0.0, 10),
        (Budget(None, 1e3), 0.0, 1),
        (Budget(None, 1e3), 300.0, 3),
        (Budget(None, 1e3), 2e3, 1),
        (Budget(2, 1e3), 1e-3, 2),
        (Budget(None, 1e3), 1e-3, BATCH),
    ],
)
def test_the_clock_is_read_again_before_the_seconds_end(budget, seconds_each, batch):
    assert SearchState(random_problem(0), budget).batch(seconds_each) == batch


def test_drawn_rollouts_go_on_from_others_where_memory_runs_out():
    tight = Problem(training_graph(4, 3), make_cluster(3, memory_bytes=5 * GB))
    assert found_by("rollout-beam", tight).feasible


def test_the_favourite_child_is_the_one_whose_transfer_delays_the_step():
    # A root with two children: the long one is worth its parent's device, the short one can pay the transfer.
    ops = [{"name": name, "flops": flops} for name, flops in (("root", 1e9), ("short", 1e9), ("long", 9e9))]
    problem = Problem(build_graph("fork", "", ops, [(0, 1e7, [1, 2])]), make_cluster(2))
    favourite, keep_s = favourite_children(problem)
    assert favourite.tolist() == [2, -1, -1]
    assert keep_s[0] == pytest.approx(1e7 / 1e10 + 1e-6)
    found = found_by("m-sct", problem)
    assert found.placement.device_of[0] == found.placement.device_of[2] != found.placement.device_of[1]
    assert found.step_time.total_s == pytest.approx(problem.op_seconds[[0, 2], 0].sum())


@pytest.mark.parametrize("seed", range(4))
def test_an_op_has_one_favourite_child_and_is_that_of_one_parent(seed):
    problem = random_problem(seed)
    favourite, keep_s = favourite_children(problem)
    chosen = favourite[favourite >= 0]
    assert len(chosen)
    assert len(set(chosen)) == len(chosen)
    assert all(child in problem.graph.successors.row(op) for op, child in enumerate(favourite) if child >= 0)
    assert ((keep_s > 0) == (favourite >= 0)).all()


def test_a_rollout_that_takes_too_long_is_given_up_soon():
    at_s = iter(range(100))
    search = SearchState(random_problem(0, n_ops=250), Budget(None, 3.5, lambda: float(next(at_s))))
    search.keep(np.zeros(250, dtype=np.int64), 1e9, 0.0)
    draw_rollouts(search, np.random.default_rng(0), 0)
    assert not search.evaluations
    assert next(at_s) < 12


@pytest.mark.parametrize("name", ["refine", "rollout-refine"])
def test_where_memory_is_scarce_a_refined_placement_is_no_worse_than_any_heuristic(name):
    graph = min(load_family("llama"), key=lambda graph: graph.n_ops)
    problem = Problem(graph, get_cluster("4xv100"))
    refined = found_by(name, problem, 400)
    assert refined.feasible
    for heuristic in STARTS:
        found = found_by(heuristic, problem, 400)
        assert not found.feasible or refined.step_time.total_s <= found.step_time.total_s, heuristic


def test_the_best_few_placements_are_remembered_once_each():
    problem = random_problem(0)
    search, (at_first, *_) = SearchState(problem, Budget(100)), single_devices(problem)
    for total_s, over_bytes in [(3.0, 0.0), (1.0, 5.0), (2.0, 0.0), (2.0, 0.0), (4.0, 0.0), (1.0, 0.0)]:
        search.keep(at_first, total_s, over_bytes)
    assert [leader.score for leader in search.leaders] == [(0.0, 1.0), (0.0, 2.0), (0.0, 3.0)]
    assert search.best_score == (0.0, 1.0)


RULES = {
    "host": {"issue_s": 5e-4},
    "eager": {"copies": "eager"},
    "curve": {"n_half_bytes": 1e6},
    "graph": {"issue_s": 5e-3, "issue_per": "step"},
    "overlap": {"overlap_slowdown": 2.0},
    "all": {"issue_s": 5e-4, "copies": "eager", "n_half_bytes": 1e6, "sharing": "pair"},
}


def under(rules, cluster):
    slowdown = rules.get("overlap_slowdown", 1.0)
    others = {rule: value for rule, value in rules.items() if rule != "overlap_slowdown"}
    return with_slowdown(replace(cluster, schedule="program", **others), slowdown)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("name", ["annealing", "local-search", "heft", "m-etf", "rollout"])
def test_the_best_score_is_a_simulated_step_time(name, rules):
    for seed in range(3):
        drawn = random_problem(seed)
        problem = Problem(drawn.graph, under(rules, drawn.cluster))
        search = SearchState(problem, Budget(evaluations=300))
        PLACERS[name].strategy(search, np.random.default_rng(seed))
        assert search.best_score[TOTAL_S] == step_time_s(problem, search.best)


def module_sets(graph: OpGraph) -> set[frozenset[int]]:
    """Units of each module and of those in it; a unit is where its first computing op is."""
    names = module_paths(graph)
    inside: dict[str, set[int]] = {}
    for unit in range(len(graph.units)):
        ops = sorted(graph.units.row(unit), key=lambda op: (not graph.is_compute[op], op))
        parts = names[ops[0]].split(".") if names[ops[0]] else []
        for depth in range(len(parts)):
            inside.setdefault(".".join(parts[: depth + 1]), set()).add(unit)
    return {frozenset(units) for units in inside.values() if 1 < len(units) < len(graph.units)}


@pytest.mark.parametrize("family", ["nmt", "gpt", "inception"])
def test_the_units_of_a_module_lie_side_by_side(family: str) -> None:
    graph = load_family(family)[0]
    segments = segments_of(graph)
    used = np.unique(segments.module_item)
    found = {
        frozenset(segments.sequences[-1, segments.module_first[module] : segments.module_end[module]])
        for module in used
    }
    assert found == module_sets(graph)
    assert len(found) > 3


def test_each_sequence_holds_all_units_once() -> None:
    segments = segments_of(load_family("moe")[0])
    n_units = segments.sequences.shape[1]
    every = np.arange(n_units)
    assert (np.sort(segments.sequences, axis=1) == every).all()
    assert (np.take_along_axis(segments.positions, segments.sequences, axis=1) == every).all()


def moved_units(
    problem: Problem, chain: AnnealingChain, segments: Segments, rng: np.random.Generator
) -> IntArray:
    """Makes one move of a module, which is accepted whatever it costs, and takes it back."""
    before = chain.device_of.copy()
    anneal(*(problem.arrays, units_of(problem), segments, chain, 1), *(1e9, 1.0, problem.scale_s, False, rng))
    moved = chain.device_of != before
    assert len(np.unique(chain.device_of[moved])) == 1
    units = np.unique(problem.graph.unit_of[moved])
    assert (np.isin(problem.graph.unit_of, units) == moved).all()
    chain.device_of[:] = before
    chain.work_s[:] = np.bincount(before, problem.op_seconds[:, before[0]], problem.n_devices)
    return units


def test_a_move_of_a_module_takes_all_of_it_to_one_device() -> None:
    problem, rng = Problem(load_family("nmt")[0], get_cluster("4xv100")), np.random.default_rng(0)
    search = SearchState(problem, Budget(10))
    search.score(single_devices(problem)[:1])
    chain, segments = _new_chain(problem, search.leaders[0]), segments_of(problem.graph)
    modules = module_sets(problem.graph)
    moves = [frozenset(moved_units(problem, chain, segments, rng)) for _ in range(30)]
    assert all(len(units) == 1 or units in modules for units in moves)
    assert len(set(moves)) > 5
    none = segments_of(replace(problem.graph, modules=("",) * problem.graph.n_ops))
    assert len(moved_units(problem, chain, none, rng)) == 1
