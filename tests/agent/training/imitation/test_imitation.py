"""Imitation: what is demonstrated, what a trajectory holds, and that a policy learns it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from agent.policy.decoding import decode
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from agent.training.checkpoints import CheckpointError
from agent.training.clock import Elapsed
from agent.training.imitation.demonstrations import Demonstration, own_placements, regrets
from agent.training.imitation.learner import ImitationLearner
from agent.training.imitation.search import (
    SearchedPlacements,
    read_searched,
    search_placements,
    write_searched,
)
from agent.training.imitation.trajectories import TOLERANCE, improve_greedily, replay, replay_demonstrations
from envs.cluster.presets import get_cluster
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs import build_graph
from tests.agent.placement_cases import random_problem
from tests.agent.training.trainer_cases import chains


@pytest.fixture
def problems() -> list[Problem]:
    return [Problem(chains(4, length, f"chains{length}"), get_cluster("4xh100")) for length in (4, 6)]


def spread(problem: Problem) -> Demonstration:
    """Each chain on a device of its own: the best there is."""
    device_of = np.arange(problem.graph.n_ops) % 4
    return Demonstration(0, device_of, regrets(problem, device_of))


def search(problems: list[Problem], **changed: Any) -> SearchedPlacements:
    options: dict[str, Any] = {"repeats": 2, "evaluations": 2000, "seed": 3}
    options |= {"announce": lambda *_: None, "should_stop": lambda: False, **changed}
    return search_placements(problems, **options)


def test_demonstrations_are_good_deterministic_and_announced(problems: list[Problem]) -> None:
    shares: list[float] = []
    searched = search(problems, announce=lambda _, share: shares.append(share))
    first, again = searched.demonstrations, search(problems, seconds=1e6).demonstrations
    assert [each.problem for each in first] == [0, 1, 0, 1]
    assert [each.device_of.tolist() for each in first] == [each.device_of.tolist() for each in again]
    assert shares == [0.0, 0.25, 0.5, 0.75]
    assert searched.shortfall == ""
    for each in first:
        step = simulate_problem(problems[each.problem], each.device_of)
        assert step.total_s < 0.3 * problems[each.problem].scale_s


@pytest.mark.parametrize("end", [{"should_stop": lambda: True}, {"seconds": -1.0}])
def test_no_search_begins_after_a_stop_or_when_the_time_is_up(
    problems: list[Problem], end: dict[str, Any]
) -> None:
    found = search(problems, **end)
    assert (found.demonstrations, found.n_partial) == ((), 0)
    assert found.shortfall == "0 of 4 placements"


def test_a_search_ends_on_time_and_finds_something_for_every_graph(problems: list[Problem]) -> None:
    search(problems, evaluations=10)
    began = time.monotonic()
    found = search(problems, evaluations=10**9, seconds=0.5)
    assert time.monotonic() - began < 20.0
    assert {each.problem for each in found.demonstrations} == {0, 1}
    assert found.n_complete == 0
    assert found.shortfall == f"0 of 4 placements, and {found.n_partial} with fewer evaluations"


def test_what_was_searched_is_kept(problems: list[Problem], tmp_path: Path) -> None:
    assert read_searched(tmp_path, problems) is None
    found = search(problems, evaluations=200)
    write_searched(tmp_path, found, Elapsed(12.5, 9.0))
    kept = read_searched(tmp_path, problems)
    assert kept is not None
    read, elapsed = kept
    assert elapsed == Elapsed(12.5, 9.0)
    assert (read.n_asked, read.n_complete, read.n_partial) == (4, 4, 0)
    for each, again in zip(found.demonstrations, read.demonstrations, strict=True):
        assert each.problem == again.problem
        np.testing.assert_array_equal(each.device_of, again.device_of)
        np.testing.assert_array_equal(each.regret, again.regret)
        assert each.regret.dtype == again.regret.dtype


def test_demonstrations_that_are_not_the_runs_are_refused(problems: list[Problem], tmp_path: Path) -> None:
    write_searched(tmp_path, search(problems, evaluations=200), Elapsed(12.5, 9.0))
    for others in (problems[:1], problems[::-1]):
        with pytest.raises(CheckpointError, match="of other problems than this run's"):
            read_searched(tmp_path, others)
    (tmp_path / "demonstrations.safetensors").write_bytes(b"nonsense")
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_searched(tmp_path, problems)


@pytest.mark.parametrize(("weight", "found"), [(float("nan"), "the loss is nan"), (1e38, "is inf|is nan")])
def test_no_step_is_made_by_numbers_that_are_not_finite(
    problems: list[Problem], weight: float, found: str
) -> None:
    torch.manual_seed(0)
    policy = Policy(PlacementNetwork(current_shape("none", 4, 1)))
    policy.set_problems(problems)
    with torch.no_grad():
        next(policy.network.critic.parameters()).fill_(weight)
        if weight != weight:
            next(policy.network.actor.parameters()).fill_(weight)
    before = [weights.clone() for weights in policy.parameters()]
    trajectories = replay_demonstrations(
        problems, [spread(problems[0])], orders=("topo",), mdp_config=MdpConfig(), seed=(0,)
    )
    learner = ImitationLearner(trajectories, (0,))
    with pytest.raises(FloatingPointError, match=found):
        learner.epoch(0, policy, torch.optim.Adam(policy.parameters()), max_grad_norm=0.5)
    for weights, same in zip(policy.parameters(), before, strict=True):
        torch.testing.assert_close(weights.detach(), same, rtol=0, atol=0, equal_nan=True)


def test_a_trajectory_holds_the_episode(problems: list[Problem]) -> None:
    problem = problems[0]
    trajectory = replay(EpisodeBatch(problems, 1), spread(problem), np.random.default_rng(0))
    assert trajectory is not None
    assert trajectory.op.tolist() == list(range(16))
    step_time_s = simulate_problem(problem, spread(problem).device_of).total_s
    assert trajectory.value[0] == pytest.approx(-step_time_s / problem.scale_s)
    # The first op may go anywhere, the second anywhere else; a chain goes on where it began.
    np.testing.assert_allclose(trajectory.target[0], 1)
    np.testing.assert_allclose(trajectory.target[1], [0, 1, 1, 1], atol=1e-9)
    np.testing.assert_allclose(trajectory.target[5], [0, 1, 0, 0], atol=1e-9)


def test_regrets_are_what_single_moves_cost() -> None:
    problem = random_problem(3, n_ops=30)
    rng = np.random.default_rng(0)
    device_of = rng.integers(problem.n_devices, size=len(problem.graph.units))[problem.graph.unit_of]
    found = regrets(problem, device_of)
    assert found.shape == (len(problem.graph.units), problem.n_devices)
    for unit in range(len(problem.graph.units)):
        moves = (
            np.where(problem.graph.unit_of == unit, device, device_of) for device in range(problem.n_devices)
        )
        cost = np.array([simulate_problem(problem, moved).total_s for moved in moves]) / problem.scale_s
        near = np.isfinite(found[unit])
        np.testing.assert_allclose(found[unit][near], (cost - cost.min())[near], atol=1e-6)
        assert (cost[~near] > cost.min() + 0.02).all()


def test_a_device_that_costs_nothing_is_as_good_as_the_one_chosen() -> None:
    ops = [{"name": "long", "flops": 1e15}, *({"name": f"short{i}", "flops": 1e12} for i in range(2))]
    problem = Problem(build_graph("slack", "", ops, []), get_cluster("4xh100"))
    device_of = np.array([0, 1, 2])
    demonstration = Demonstration(0, device_of, regrets(problem, device_of))
    trajectory = replay(EpisodeBatch([problem], 1), demonstration, np.random.default_rng(0))
    assert trajectory is not None
    late = np.exp(-demonstration.regret[1, 0] / TOLERANCE)
    np.testing.assert_allclose(trajectory.target[1], [late, 1, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(trajectory.target[2], [late, 1, 1, 1], rtol=1e-6)


def test_a_demonstration_out_of_memory_is_no_trajectory() -> None:
    ops = [{"name": str(op), "flops": 1e9, "resident_bytes": 30e9} for op in range(4)]
    problem = Problem(build_graph("big", "", ops, []), get_cluster("8xa100"))
    together = Demonstration(0, np.zeros(4, dtype=np.int64), np.zeros((4, 8), dtype=np.float32))
    assert replay(EpisodeBatch([problem], 1), together, np.random.default_rng(0)) is None


def test_greedy_improvement_gains_and_hardly_ever_loses(problems: list[Problem]) -> None:
    problem = problems[1]
    batch = EpisodeBatch(problems, 1, EpisodeSettings(mdp="improve", passes=3))
    trajectory = improve_greedily(batch, 1, np.random.default_rng(0))
    assert len(trajectory.op) == 3 * len(problem.graph.units)
    ending = batch.result(0)
    # Everything is on one device at first, and what is gained is what is left to the end.
    assert trajectory.value[0] == pytest.approx(1 - ending.step_time_s / problem.scale_s, abs=0.02)
    assert ending.step_time_s < 0.35 * problem.scale_s
    rewards = -np.diff(np.append(trajectory.value, 0.0))
    assert rewards.min() > -10 * TOLERANCE
    # Where to begin, all devices but the crowded one are equally good.
    np.testing.assert_allclose(trajectory.target[0], [0, 1, 1, 1], atol=1e-9)


def undecided_policy(problems: list[Problem]) -> tuple[Policy, torch.optim.Adam]:
    """Returns a policy to which all devices are equal, and an optimizer of its weights."""
    torch.manual_seed(0)
    policy = Policy(PlacementNetwork(current_shape("none", 16, 1)))
    policy.set_problems(problems)
    torch.nn.init.zeros_(policy.network.actor[-1].weight)
    return policy, torch.optim.Adam(policy.parameters(), lr=1e-2)


def test_a_policy_gets_better_by_on_policy_imitation(problems: list[Problem]) -> None:
    policy, optimizer = undecided_policy(problems)

    def mean_ratio() -> float:
        times = [simulate_problem(each, decode(policy, each)[0]).total_s / each.scale_s for each in problems]
        return float(np.mean(times))

    assert mean_ratio() == 1.0, "what knows no difference puts everything on the first device"
    for number in range(40):
        rng = np.random.default_rng(number)
        placed = own_placements(policy, problems, order="topo", rng=rng)
        assert [each.problem for each in placed] == [0, 1]
        trajectories = replay_demonstrations(
            problems, placed, orders=("topo",), mdp_config=MdpConfig(), seed=(0, number)
        )
        learner = ImitationLearner(trajectories, (0, number))
        learner.epoch(0, policy, optimizer, max_grad_norm=1.0)
    assert mean_ratio() < 0.3


def test_an_extreme_value_does_not_outweigh_the_devices_to_choose(problems: list[Problem]) -> None:
    (trajectory,) = replay_demonstrations(
        problems, [spread(problems[0])], orders=("topo",), mdp_config=MdpConfig(), seed=(0,)
    )
    learned = []
    for value in (-1e3, -1e5):
        torch.manual_seed(0)
        policy, _ = undecided_policy(problems)
        extreme = replace(trajectory, value=np.full_like(trajectory.value, value))
        optimizer = torch.optim.SGD(policy.parameters(), lr=1.0)
        ImitationLearner([extreme], (0,)).epoch(0, policy, optimizer, max_grad_norm=1e9)
        learned.append(torch.nn.utils.parameters_to_vector(policy.parameters()))
    torch.testing.assert_close(*learned)


def test_a_policy_learns_what_it_is_shown(problems: list[Problem]) -> None:
    policy, optimizer = undecided_policy(problems)
    trajectories = replay_demonstrations(
        problems, [spread(problems[0])], orders=("topo",), mdp_config=MdpConfig(), seed=(0,)
    )
    learner = ImitationLearner(trajectories, (0,))
    epochs = [learner.epoch(number, policy, optimizer, max_grad_norm=1.0) for number in range(80)]
    rows = [metrics for metrics, _ in epochs]
    accuracy, loss = "training/imitation_accuracy", "train/imitation_loss"
    assert rows[-1][accuracy] > 0.95 > rows[0][accuracy]
    assert rows[-1][loss] < 0.3 * rows[0][loss]
    assert epochs[-1][1] == 16
    # What was shown on four chains of four ops carries over to chains of six.
    found = simulate_problem(problems[1], decode(policy, problems[1])[0])
    assert found.total_s < 0.3 * problems[1].scale_s
