"""The placer for every budget."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from agent.instances.instance import load_instance
from agent.placers.base import Budget, SearchState
from agent.placers.heuristics.single import single
from agent.placers.search.rollout import RolloutRule
from agent.placers.search.walks import Group, GroupWalk, WalkTooLongError
from agent.policy import auto, placers
from envs.cluster.presets import get_cluster
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.system.array_types import IntArray
from tests.agent.placement_cases import found_by

PROBLEM = Problem(load_family("cifar10")[0], get_cluster("4xv100"))
AMPLE = Problem(PROBLEM.graph, get_cluster("4xa100-pcie"))
"""One device has memory for all of it."""


def step_s(name: str, budget: Budget | int) -> float:
    return found_by(name, PROBLEM, budget).step_time.total_s


@pytest.mark.parametrize("start", ["single", "heft", "m-etf", "rollout", "policy"])
def test_it_is_no_worse_than_any_of_its_starts(start: str) -> None:
    assert step_s("auto", 60) <= step_s(start, 60)


def test_more_evaluations_find_more() -> None:
    assert step_s("auto", 5_000) < step_s("auto", 100)


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
    found_by("auto", PROBLEM, Budget(None, 60.0))
    assert started == begun


def test_it_does_without_a_walk_where_decoding_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: object, **__: object) -> IntArray:
        raise WalkTooLongError(1.0)

    monkeypatch.setattr(placers, "decode", decode)
    assert np.isfinite(step_s("auto", Budget(None, 0.3)))


@pytest.mark.parametrize(
    ("large_units", "seconds", "starts"),
    [
        (1_000, 60.0, ["contiguous", "policy", "rollout"]),
        (0, 60.0, ["policy", "rollout", "contiguous"]),
        (0, None, ["rollout", "policy", "drawn"]),
    ],
)
def test_walks_come_first_on_large_graphs_and_rollouts_are_drawn_where_seconds_do_not_count(
    large_units: int, seconds: float | None, starts: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    monkeypatch.setattr(auto, "LARGE_UNITS", large_units)
    monkeypatch.setattr(auto, "contiguous", lambda *_: begun.append("contiguous"))
    monkeypatch.setattr(auto, "policy_greedy", lambda *_, **__: begun.append("policy"))
    monkeypatch.setattr(
        auto, "draw_rollouts", lambda *_, n_drawn: begun.append("drawn" if n_drawn else "rollout")
    )
    monkeypatch.setattr(auto, "anneal_from_leaders", lambda *_: None)
    found_by("auto", AMPLE, Budget(100, seconds))
    assert begun == starts


@pytest.mark.parametrize(("move_cost", "n_walks"), [(auto.MOVE_COST, 2), (0.0, 1)])
def test_a_second_walk_may_take_the_seconds_in_which_annealing_could_not_move_every_unit(
    move_cost: float, n_walks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds_of_walks: list[float] = []
    search = SearchState(AMPLE, Budget(None, 10.0, lambda: sum(seconds_of_walks)))

    def walk(search: SearchState, *_: object, **__: object) -> None:
        seconds_of_walks.append(5.5)
        search.spend(1)

    monkeypatch.setattr(auto, "MOVE_COST", move_cost)
    monkeypatch.setattr(auto, "draw_rollouts", walk)
    single(search, np.random.default_rng(0))
    search.least_simulation_s = 1.0
    auto._walk(search, np.random.default_rng(0), 4.0, walk)
    assert len(seconds_of_walks) == n_walks


def test_a_walk_is_given_up_soon_after_its_decisions_slow_down() -> None:
    n_decided, batch = [0, 0], EpisodeBatch([PROBLEM], 1)

    class SlowRule(RolloutRule):
        def decide(self, n_decisions: IntArray, draws: NDArray[np.float64]) -> None:
            super().decide(n_decisions, draws)
            n_decided[n_decided[0] > 300] += int(n_decisions[0])

    walk = GroupWalk(
        SlowRule(batch), batch, [Group(0, np.zeros(1, dtype=bool), None)], np.random.default_rng(0)
    )
    n_all = len(PROBLEM.graph.units)
    with pytest.raises(WalkTooLongError):
        walk.run(1.5 * n_all, lambda: float(n_decided[0] + 3 * n_decided[1]))


def test_rollouts_are_not_drawn_where_evaluations_are_spent() -> None:
    assert found_by("auto", load_instance("adversarial:out-tree-188-6").objective, 60).feasible
