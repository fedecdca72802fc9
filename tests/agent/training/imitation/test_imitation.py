"""Imitation: what is demonstrated, what a lesson holds, and that a policy learns it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agent.policy.decoding import decode
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.serialization import current_shape
from agent.training.imitation.demonstrations import Demonstration, demonstrate, practise, regrets
from agent.training.imitation.learner import TOLERANCE, ImitationLearner, demonstrated, descend, walk
from envs.cluster.presets import get_cluster
from envs.mdp.episodes import EpisodeBatch
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs import OpGraph, build_graph
from tests.agent.placement_cases import random_problem


def chains(n_chains: int, length: int) -> OpGraph:
    """Independent chains of equal ops, in turn."""
    ops = [{"name": f"{c}.{i}", "flops": 1e12} for i in range(length) for c in range(n_chains)]
    tensors = [(op, 1e3, [op + n_chains]) for op in range(n_chains * (length - 1))]
    return build_graph(f"chains{length}", "chains", ops, tensors)


@pytest.fixture
def problems() -> list[Problem]:
    return [Problem(chains(4, length), get_cluster("4xh100")) for length in (4, 6)]


def spread(problem: Problem) -> Demonstration:
    """Each chain on a device of its own: the best there is."""
    device_of = np.arange(problem.graph.n_ops) % 4
    return Demonstration(0, device_of, regrets(problem, device_of))


def test_demonstrations_are_good_deterministic_and_announced(problems: list[Problem]) -> None:
    heard: list[float] = []
    options = {"repeats": 2, "evaluations": 2000, "seed": 3, "should_stop": lambda: False}
    first = demonstrate(problems, announce=lambda _, share: heard.append(share), **options)  # type: ignore[arg-type]
    again = demonstrate(problems, announce=lambda *_: None, **options)  # type: ignore[arg-type]
    assert [each.problem for each in first] == [0, 1, 0, 1]
    assert [each.device_of.tolist() for each in first] == [each.device_of.tolist() for each in again]
    assert heard == [0.0, 0.25, 0.5, 0.75]
    for each in first:
        step = simulate_problem(problems[each.problem], each.device_of)
        assert step.total_s < 0.3 * problems[each.problem].scale_s


def test_a_stop_ends_the_search(problems: list[Problem]) -> None:
    found = demonstrate(
        problems, repeats=1, evaluations=10, seed=0, announce=lambda *_: None, should_stop=lambda: True
    )
    assert found == []


def test_a_lesson_holds_the_walk(problems: list[Problem]) -> None:
    problem = problems[0]
    lesson = walk(EpisodeBatch(problems, 1), spread(problem), np.random.default_rng(0))
    assert lesson is not None
    assert lesson.op.tolist() == list(range(16))
    step_time_s = simulate_problem(problem, spread(problem).device_of).total_s
    assert lesson.value[0] == pytest.approx(-step_time_s / problem.scale_s)
    # The first op may go anywhere, the second anywhere else; a chain goes on where it began.
    np.testing.assert_allclose(lesson.right[0], 1)
    np.testing.assert_allclose(lesson.right[1], [0, 1, 1, 1], atol=1e-9)
    np.testing.assert_allclose(lesson.right[5], [0, 1, 0, 0], atol=1e-9)


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


def test_a_device_that_costs_nothing_is_as_right_as_the_one_chosen() -> None:
    ops = [{"name": "long", "flops": 1e15}, *({"name": f"short{i}", "flops": 1e12} for i in range(2))]
    problem = Problem(build_graph("slack", "", ops, []), get_cluster("4xh100"))
    device_of = np.array([0, 1, 2])
    demonstration = Demonstration(0, device_of, regrets(problem, device_of))
    lesson = walk(EpisodeBatch([problem], 1), demonstration, np.random.default_rng(0))
    assert lesson is not None
    late = np.exp(-demonstration.regret[1, 0] / TOLERANCE)
    np.testing.assert_allclose(lesson.right[1], [late, 1, 1, 1], rtol=1e-6)
    np.testing.assert_allclose(lesson.right[2], [late, 1, 1, 1], rtol=1e-6)


def test_a_demonstration_without_room_is_no_lesson() -> None:
    ops = [{"name": str(op), "flops": 1e9, "resident_bytes": 30e9} for op in range(4)]
    problem = Problem(build_graph("big", "", ops, []), get_cluster("8xa100"))
    together = Demonstration(0, np.zeros(4, dtype=np.int64), np.zeros((4, 8), dtype=np.float32))
    assert walk(EpisodeBatch([problem], 1), together, np.random.default_rng(0)) is None


def test_a_descent_gains_and_hardly_ever_loses(problems: list[Problem]) -> None:
    problem = problems[1]
    batch = EpisodeBatch(problems, 1, mdp="improve", passes=3)
    lesson = descend(batch, 1, np.random.default_rng(0))
    assert len(lesson.op) == 3 * len(problem.graph.units)
    ending = batch.result(0)
    # Everything is on one device at first, and what is gained is what is left to the end.
    assert lesson.value[0] == pytest.approx(1 - ending.step_time_s / problem.scale_s, abs=0.02)
    assert ending.step_time_s < 0.35 * problem.scale_s
    rewards = -np.diff(np.append(lesson.value, 0.0))
    assert rewards.min() > -10 * TOLERANCE
    # Where to begin, all devices but the crowded one are equally right.
    np.testing.assert_allclose(lesson.right[0], [0, 1, 1, 1], atol=1e-9)


def test_a_policy_gets_better_by_practising(problems: list[Problem]) -> None:
    torch.manual_seed(0)
    policy = Policy(PlacementNetwork(current_shape("none", 16, 1)))
    policy.set_problems(problems)
    torch.nn.init.zeros_(policy.network.actor[-1].weight)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)

    def mean_ratio() -> float:
        times = [simulate_problem(each, decode(policy, each)[0]).total_s / each.scale_s for each in problems]
        return float(np.mean(times))

    assert mean_ratio() == 1.0, "what knows no difference puts everything on the first device"
    for number in range(40):
        rng = np.random.default_rng(number)
        placed = practise(policy, problems, order="topo", rng=rng)
        assert [each.problem for each in placed] == [0, 1]
        lessons = demonstrated(problems, placed, orders=("topo",), seed=(0, number))
        teacher = ImitationLearner(lessons, (0, number))
        teacher.epoch(0, policy, optimizer, max_grad_norm=1.0)
    assert mean_ratio() < 0.3


def test_a_policy_learns_what_it_is_shown(problems: list[Problem]) -> None:
    torch.manual_seed(0)
    policy = Policy(PlacementNetwork(current_shape("none", 16, 1)))
    policy.set_problems(problems)
    torch.nn.init.zeros_(policy.network.actor[-1].weight)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    lessons = demonstrated(problems, [spread(problems[0])], orders=("topo",), seed=(0,))
    teacher = ImitationLearner(lessons, (0,))
    rows = [teacher.epoch(number, policy, optimizer, max_grad_norm=1.0) for number in range(80)]
    assert rows[-1]["imitation/accuracy"] > 0.95 > rows[0]["imitation/accuracy"]
    assert rows[-1]["imitation/loss"] < 0.3 * rows[0]["imitation/loss"]
    assert rows[-1]["imitation/decisions"] == 16
    # What was shown on four chains of four ops carries over to chains of six.
    found = simulate_problem(problems[1], decode(policy, problems[1])[0])
    assert found.total_s < 0.3 * problems[1].scale_s
