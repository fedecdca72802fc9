"""Placers that decide with a policy: the placers' contract, and what an evaluation leaves out."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from agent.commands import evaluate
from agent.placers.base import PLACERS, Budget, Placer, SearchState, names_of
from agent.placers.heuristics.single import single_devices
from agent.placers.memory_limits import MARGIN, MAX_TRIES
from agent.placers.search.walks import WalkTooLongError
from agent.policy import placers
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.placers import SAMPLES, no_worse_than_single
from agent.policy.policy import CONSTRUCT, Policy
from agent.policy.serialization import PolicyCard, describe_seen, save_policy
from agent.policy.shape import current_shape
from envs.cluster.presets import get_cluster
from envs.placements.placement import check_placement
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem, step_time_s
from graphs.capture.capture import capture
from graphs.dataset import load_family
from graphs.io.graph_files import write_graphs
from graphs.orders import ORDERS
from tests.agent.evaluation_cases import rows_of
from tests.agent.placement_cases import GB, found_by, make_cluster, random_problem, training_graph
from tests.examples.recommender import make as make_recommender

LEARNED = names_of("step", learned=True)
PROBLEM = Problem(training_graph(2, 2), make_cluster(3))
SCARCE = Problem(PROBLEM.graph, make_cluster(2, memory_bytes=3 * GB))


def untrained():
    torch.manual_seed(0)
    shape = current_shape("none", 8, 1)
    return PlacementNetwork(shape), shape


def place(name, problem=PROBLEM, budget=10, mdp=CONSTRUCT, order="topo"):
    """What a placer finds with a policy that learned nothing."""
    return found_by(name, problem, budget, policy=Policy(untrained()[0], mdp), order=order)


@pytest.mark.parametrize("order", sorted(ORDERS))
@pytest.mark.parametrize("name", sorted(LEARNED))
def test_placement_is_valid_in_every_order(name, order):
    check_placement(PROBLEM.graph, PROBLEM.cluster, place(name, order=order).placement)


@pytest.mark.parametrize(
    ("name", "evaluations", "used"),
    [
        ("policy", 10, 1 + PROBLEM.n_devices),
        ("policy", 3, 3),
        ("policy", 1, 1),
        ("policy-sample", 10, 10),
        ("policy-sample", 1, 1),
        ("policy-beam", 100, 64 + PROBLEM.n_devices),
        ("policy-beam", 10, 10),
        ("policy-beam", 1, 1),
    ],
)
def test_budget_is_kept(name, evaluations, used):
    assert place(name, budget=evaluations).evaluations == used


@pytest.mark.parametrize("name", ["policy", "policy-sample", "policy-beam"])
@pytest.mark.parametrize("start", ["best", "heft", "single"])
@pytest.mark.parametrize("evaluations", [1, 300, 5_000])
def test_an_improvement_keeps_to_its_budget_and_is_no_worse_than_its_start(name, start, evaluations):
    found = place(name, budget=evaluations, mdp=MdpConfig("improve", 2, start))
    begun = [name for name in PLACERS if start in (name, "best") and PLACERS[name].is_start]
    assert begun
    for heuristic in begun:
        assert found.step_time.total_s <= found_by(heuristic, PROBLEM, 10).step_time.total_s
    a_pass = len(PROBLEM.graph.units) * (PROBLEM.n_devices - 1)
    n_singles = min(PROBLEM.n_devices, evaluations - 1)
    passes = min(2, (evaluations - n_singles - 1) // a_pass)
    episodes = (evaluations - n_singles) // (passes * a_pass + 1) if passes else 1
    expected = min(episodes, 1 + {"policy": 0, "policy-sample": 16, "policy-beam": 63}[name]) * (
        passes * a_pass + 1
    )
    assert found.evaluations == expected + n_singles


@pytest.mark.parametrize("evaluations", [1, 20, 1_000])
def test_refining_an_improvement_keeps_to_its_budget(evaluations):
    found = place("policy-refine", budget=evaluations, mdp=MdpConfig("improve", 2, "best"))
    assert found.evaluations == evaluations


def test_a_placement_that_overflows_is_repeated_with_less_memory(monkeypatch):
    problem, spread = SCARCE, found_by("memory-fill", SCARCE, 1).placement.device_of
    one_device = np.zeros_like(spread)
    over_bytes = simulate_problem(problem, one_device).peak_bytes[0] - 3 * GB
    left_bytes = 3 * GB - over_bytes - MARGIN * 3 * GB
    given_bytes = []

    def decode(policy, problem, *_, **__):
        given_bytes.append(problem.cluster.memory_bytes.tolist())
        return (one_device if len(given_bytes) == 1 else spread)[None]

    monkeypatch.setattr(placers, "decode", decode)
    found = place("policy", problem)
    assert found.feasible
    assert given_bytes[0] == [3 * GB, 3 * GB]
    assert given_bytes[1] == pytest.approx([left_bytes, 3 * GB])
    assert len(given_bytes) == 2
    assert found.evaluations == 2 + problem.n_devices
    given_bytes.clear()
    assert not place("policy", problem, 1).feasible


def test_where_less_memory_does_not_help_placements_are_drawn(monkeypatch):
    problem, spread = SCARCE, found_by("memory-fill", SCARCE, 1).placement.device_of
    one_device = np.zeros_like(spread)

    def decode(policy, problem, order, samples, *_, **__):
        return np.stack([one_device, *[spread] * samples.drawn])

    monkeypatch.setattr(placers, "decode", decode)
    found = place("policy", problem, 100)
    assert found.feasible
    assert found.evaluations == MAX_TRIES + 1 + SAMPLES + problem.n_devices
    enough = MAX_TRIES + 2 + problem.n_devices
    few = place("policy", problem, enough)
    assert (few.feasible, few.evaluations) == (True, enough)
    assert not place("policy", problem, enough - 2).feasible


@pytest.fixture
def folder(tmp_path):
    """Graphs `a` and `b`, and a policy that was trained on `a`."""
    graphs = [training_graph(2, 1, name="a"), training_graph(2, 2, name="b")]
    write_graphs(tmp_path / "graphs.jsonl", graphs)
    network, shape = untrained()
    (tmp_path / "policy").mkdir()
    card = PolicyCard(shape, describe_seen(graphs[:1]), {"order": ["topo", "alpha", "topo"]})
    save_policy(tmp_path / "policy", network, card)
    return tmp_path


def rows_after(folder, *words):
    words = ("--graphs", str(folder / "graphs.jsonl"), "--policy", str(folder / "policy"), *words)
    assert evaluate.main((*words, "--placers", "single", "policy", "--out", str(folder / "out"))) == 0
    return rows_of(folder / "out", "summary.csv")


def test_graphs_seen_in_training_are_left_out(folder, capsys):
    rows = rows_after(folder, "--orders", "topo", "bfs")
    assert {(row["placer"], row["graphs"], row["seen"]) for row in rows} == {
        ("single", "1", "no"),
        ("policy", "1", "no"),
    }
    printed = capsys.readouterr()
    assert "1 graph is left out" in printed.out
    noted = "the policy was last trained in topo, alpha; in bfs it may place worse"
    assert noted in printed.err
    assert f"Note that {noted}." in (folder / "out" / "report.html").read_text()


def test_graphs_seen_in_training_are_marked(folder):
    rows = rows_after(folder, "--include-seen")
    assert {(row["placer"], row["seen"]) for row in rows} == {
        (placer, seen) for placer in ("single", "policy") for seen in ("yes", "no")
    }
    assert "seen by the policy in training" in (folder / "out" / "report.html").read_text()


def test_a_seen_structure_with_other_costs_is_kept_and_marked(folder):
    seen, other = training_graph(2, 1, name="a"), training_graph(2, 1, name="c")
    write_graphs(folder / "graphs.jsonl", [seen, replace(other, flops=2 * other.flops)])
    rows = rows_after(folder)
    assert {(row["placer"], row["graphs"], row["seen"]) for row in rows} == {
        ("single", "1", "topology"),
        ("policy", "1", "topology"),
    }
    assert "graphs of this structure in training" in (folder / "out" / "report.html").read_text()


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_the_shipped_policy_is_feasible_where_memory_is_scarce(name):
    graph = min(load_family("llama"), key=lambda graph: graph.n_ops)
    problem = Problem(graph, get_cluster("4xv100"))
    assert problem.footprint_bytes.sum() > problem.cluster.memory_bytes.max()
    assert found_by(name, problem, 100).feasible


def test_a_policy_that_overflows_is_given_less_memory_though_a_heuristic_fits(monkeypatch):
    given_bytes = []

    def decode(policy, problem, *_, **__):
        given_bytes.append(problem.cluster.memory_bytes.tolist())
        return np.zeros((1, problem.graph.n_ops), dtype=np.int64)

    monkeypatch.setattr(placers, "decode", decode)
    assert place("policy-refine", SCARCE, 100).feasible
    assert len(given_bytes) > 2


@pytest.mark.parametrize(
    ("budget", "drawn"), [(Budget(evaluations=300), [0, 16]), (Budget(None, seconds=0.3), [0])]
)
def test_refining_draws_only_where_the_budget_is_long_for_an_episode(monkeypatch, budget, drawn):
    samples = []

    def decode(policy, problem, order, decoded, *_, **__):
        samples.append(decoded.drawn)
        time.sleep(0.05)
        return np.zeros((1 + decoded.drawn, problem.graph.n_ops), dtype=np.int64)

    monkeypatch.setattr(placers, "decode", decode)
    place("policy-refine", budget=budget)
    assert samples == drawn


def test_a_walk_that_outlasts_its_seconds_is_scored(monkeypatch):
    """Its placement was paid for; it stands beside what was found before."""
    walked = found_by("annealing", PROBLEM, 20_000)

    def decode(*_, **__):
        time.sleep(0.3)
        return walked.placement.device_of[None]

    def score_one_device(search, _):
        search.score(np.zeros((1, PROBLEM.graph.n_ops), dtype=np.int64))

    monkeypatch.setattr(placers, "decode", decode)
    monkeypatch.setattr(placers, "score_starts", score_one_device)
    found = place("policy-refine", budget=Budget(None, seconds=0.2))
    assert found.step_time.total_s <= walked.step_time.total_s


def test_a_walk_that_would_outlast_its_seconds_is_given_up(monkeypatch):
    limits_s = []

    def decode(*_, limit_s, **__):
        limits_s.append(limit_s)
        raise WalkTooLongError(1.0)

    monkeypatch.setattr(placers, "decode", decode)
    assert place("policy-refine", budget=Budget(None, seconds=0.2)).evaluations > 1
    assert limits_s
    assert all(0 < limit_s < 0.2 for limit_s in limits_s)


@pytest.mark.parametrize("name", ["policy-sample", "policy-beam", "rollout-beam"])
def test_nothing_is_drawn_after_a_first_placement_that_took_all_the_time(name):
    problem = random_problem(0, n_ops=600)
    assert place(name, problem, Budget(None, seconds=1e-4)).evaluations <= 1 + problem.n_devices


UNEQUAL = Problem(training_graph(2, 2), make_cluster(4, slower=3.0))
"""A problem whose first device is three times as fast as the second, and so on."""


@cache
def recommender() -> Problem:
    return Problem(capture(*make_recommender()), get_cluster("gpu+cpu"))


@pytest.mark.parametrize("name", sorted(LEARNED))
def test_a_recommender_on_gpu_and_cpu_is_no_slower_than_one_gpu(name: str) -> None:
    found = found_by(name, recommender(), 40)
    assert found.feasible
    assert found.step_time.total_s <= recommender().scale_s * (1 + 1e-9)


def slowest_first(search: SearchState, rng: np.random.Generator) -> None:
    """Scores the single devices, the slowest first, as long as the budget lasts."""
    search.score(single_devices(search.problem)[::-1])


@pytest.mark.parametrize(("evaluations", "best"), [(1, 3), (2, 0), (5, 0), (6, 0), (100, 0), (None, 0)])
def test_devices_are_scored_within_the_budget_the_fastest_first(
    evaluations: int | None, best: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[int] = []
    score = SearchState.score

    def note(search: SearchState, devices_of: np.ndarray, **options: bool) -> np.ndarray:
        found = score(search, devices_of, **options)
        scored.extend(devices_of[: len(found), 0].tolist())
        return found

    budget = Budget(evaluations, None if evaluations else 60.0)
    monkeypatch.setattr(SearchState, "score", note)
    placer = Placer("slowest-first", no_worse_than_single(slowest_first))
    found = placer.place(UNEQUAL, budget, np.random.default_rng(0))
    n_singles = min(4, evaluations - 1) if evaluations else 4
    n_own = min(4, evaluations - n_singles) if evaluations else 4
    assert scored == [3, 2, 1, 0][:n_own] + [0, 1, 2, 3][:n_singles]
    assert found.evaluations == len(scored)
    assert (found.placement.device_of == best).all()


def test_a_limit_of_seconds_does_not_keep_the_devices_from_being_scored() -> None:
    placer = Placer("slowest-first", no_worse_than_single(slowest_first))
    found = placer.place(UNEQUAL, Budget(None, seconds=1e-9), np.random.default_rng(0))
    assert (found.placement.device_of == 0).all()


def test_a_feasible_placement_beats_a_faster_device_that_is_out_of_memory() -> None:
    tight = replace(UNEQUAL, cluster=make_cluster(4, memory_bytes=3 * GB, slower=3.0))
    spread = found_by("memory-fill", tight, 1).placement.device_of

    def score_spread(search: SearchState, rng: np.random.Generator) -> None:
        search.score(spread[None])

    placer = Placer("spread", no_worse_than_single(score_spread))
    found = placer.place(tight, Budget(10), np.random.default_rng(0))
    assert found.feasible
    assert (found.placement.device_of == spread).all()
    assert step_time_s(tight, np.zeros_like(spread)) < found.step_time.total_s
