"""Imitation: what is demonstrated, what a lesson holds, and that a policy learns it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agent.decoding import decode
from agent.imitation import Demonstration, Teacher, demonstrate, walk
from agent.network import PlacementNetwork
from agent.policy import Policy
from agent.policy_files import current_shape
from envs.episodes import EpisodeBatch
from envs.presets import get_cluster
from envs.problem import Problem
from envs.simulator import simulate_problem
from graphs import OpGraph, build_graph


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
    return Demonstration(0, np.arange(problem.graph.n_ops) % 4)


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
    assert lesson.right[0].all()
    assert lesson.right[1].tolist() == [False, True, True, True]
    assert lesson.right[5].tolist() == [False, True, False, False]


def test_a_demonstration_without_room_is_no_lesson() -> None:
    ops = [{"name": str(op), "flops": 1e9, "resident_bytes": 30e9} for op in range(4)]
    problem = Problem(build_graph("big", "", ops, []), get_cluster("8xa100"))
    together = Demonstration(0, np.zeros(4, dtype=np.int64))
    assert walk(EpisodeBatch([problem], 1), together, np.random.default_rng(0)) is None


def test_a_policy_learns_what_it_is_shown(problems: list[Problem]) -> None:
    torch.manual_seed(0)
    policy = Policy(PlacementNetwork(current_shape("none", 16, 1)))
    policy.set_problems(problems)
    optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
    teacher = Teacher(problems, [spread(problems[0])], orders=("topo",), mdp="construct", seed=0)
    rows = [teacher.epoch(number, policy, optimizer, max_grad_norm=1.0) for number in range(80)]
    assert rows[-1]["imitation/agreement"] > 0.95 > rows[0]["imitation/agreement"]
    assert rows[-1]["imitation/loss"] < 0.3 * rows[0]["imitation/loss"]
    assert rows[-1]["imitation/decisions"] == 16
    # What was shown on four chains of four ops carries over to chains of six.
    found = simulate_problem(problems[1], decode(policy, problems[1])[0])
    assert found.total_s < 0.3 * problems[1].scale_s
