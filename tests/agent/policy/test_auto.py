"""The placer for every budget."""

from __future__ import annotations

import numpy as np
import pytest

from agent.instances.instance import load_instance
from agent.placers.base import PLACERS, Budget
from agent.placers.search.walks import WalkTooLongError
from agent.policy import auto, placers
from agent.policy.serialization import read_policy
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.system.array_types import IntArray

POLICY = read_policy("pretrained").actor
PROBLEM = Problem(load_family("cifar10")[0], get_cluster("4xv100"))


def step_s(name: str, budget: Budget, problem: Problem = PROBLEM) -> float:
    chosen = PLACERS[name].with_policy(POLICY, "topo") if PLACERS[name].is_learned else PLACERS[name]
    return chosen.place(problem, budget, np.random.default_rng(0)).step_time.total_s


@pytest.mark.parametrize("start", ["single", "heft", "m-etf", "rollout", "policy"])
def test_it_is_no_worse_than_any_of_its_starts(start: str) -> None:
    assert step_s("auto", Budget(60)) <= step_s(start, Budget(60))


def test_more_evaluations_find_more() -> None:
    assert step_s("auto", Budget(5_000)) < step_s("auto", Budget(100))


def test_one_evaluation_is_a_placement() -> None:
    assert np.isfinite(step_s("auto", Budget(1)))


@pytest.mark.parametrize(
    ("name", "begun"), [("WALK_COST", {"rollout"}), ("ROLLOUT_COST", set()), ("SHARE", {"rollout", "policy"})]
)
def test_a_start_that_would_take_too_long_is_not_begun(
    name: str, begun: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started = set()
    monkeypatch.setattr(auto, name, 1e12)
    monkeypatch.setattr(auto, "anneal_from_leaders", lambda *_: None)
    monkeypatch.setattr(auto, "policy_greedy", lambda *_, **__: started.add("policy"))
    monkeypatch.setattr(auto, "draw_rollouts", lambda *_, **__: started.add("rollout"))
    PLACERS["auto"].with_policy(POLICY, "topo").place(PROBLEM, Budget(None, 60.0), np.random.default_rng(0))
    assert started == begun


def test_it_does_without_a_walk_where_decoding_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object, **__: object) -> IntArray:
        raise WalkTooLongError(1.0)

    monkeypatch.setattr(placers, "decode", decode)
    assert np.isfinite(step_s("auto", Budget(None, 0.3)))


@pytest.mark.parametrize(
    ("cluster", "seconds", "starts"),
    [
        ("4xv100", 60.0, ["contiguous", "policy", "rollout"]),
        ("4xa100-pcie", 60.0, ["contiguous", "policy", "rollout"]),
        ("4xa100-pcie", None, ["rollout", "policy"]),
    ],
)
def test_cuts_begin_without_a_device_for_all_and_the_policy_follows_where_seconds_count(
    cluster: str, seconds: float | None, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(auto, "contiguous", lambda *_: begun.append("contiguous"))
    monkeypatch.setattr(auto, "policy_greedy", lambda *_, **__: begun.append("policy"))
    monkeypatch.setattr(auto, "draw_rollouts", lambda *_, **__: begun.append("rollout"))
    monkeypatch.setattr(auto, "anneal_from_leaders", lambda *_: None)
    problem, budget = Problem(PROBLEM.graph, get_cluster(cluster)), Budget(100, seconds)
    PLACERS["auto"].with_policy(POLICY, "topo").place(problem, budget, np.random.default_rng(0))
    assert begun[: len(starts)] == starts


def test_rollouts_are_not_drawn_where_evaluations_are_spent() -> None:
    instance = load_instance("adversarial:out-tree-188-6")
    learned = PLACERS["auto"].with_policy(POLICY, "topo")
    assert learned.place(instance.objective, Budget(60), np.random.default_rng(0)).feasible
