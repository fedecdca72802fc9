"""Speed of finding placements: by search, and by one walk of a policy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from agent.config import TrainConfig
from agent.decoding import decode
from agent.network import PlacementNetwork
from agent.placers import PLACERS
from agent.placers.base import Budget
from agent.policy import Policy
from agent.policy_files import current_shape
from envs import kernels
from envs.problem import Problem
from tests.benchmarks.cases import (
    captured,
    decisions,
    layered_graph,
    random_placements,
    seconds_of,
    v100s,
)
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

Record = Callable[[Figure], None]

CONFIG = TrainConfig()
N_EVALUATIONS = 10_000


@pytest.mark.parametrize(("family", "n_decisions"), [("cifar10", 200), ("ptb", 1_000)])
def test_annealing(stopwatch: Stopwatch, record: Record, family: str, n_decisions: int) -> None:
    problem = captured(family, n_decisions)
    placer, budget = PLACERS["annealing"], Budget(evaluations=N_EVALUATIONS)
    found = placer.place(problem, budget, np.random.default_rng(0)).placement.device_of
    placements, total_s = random_placements(problem, 1_000), np.zeros(1_000)
    moved = np.random.default_rng(1).integers(len(problem.graph.groups), size=(1_000, 1))
    placements = np.where(problem.graph.group_of == moved, placements, found)
    timeline = kernels.new_timeline(problem.graph.n_ops, problem.graph.n_tensors, problem.n_devices)

    def simulate_each() -> None:
        kernels.run_many(problem.arrays, placements, timeline, False, total_s, np.zeros((1, 0)))

    record(
        Figure(
            "Annealing, 4 devices, one core, proposals included",
            f"{problem.graph.n_ops:,} ops",
            N_EVALUATIONS
            / stopwatch(lambda: placer.place(problem, budget, np.random.default_rng(0)), rounds=5),
            "evaluations/s",
            len(placements) / seconds_of(simulate_each, rounds=20),
            "full simulations of the placement it finds with one unit moved, without memory",
        )
    )


def test_one_op_moves(stopwatch: Stopwatch, record: Record) -> None:
    """Moves of one op each, simulated to the end, from a random placement that stays where it is."""
    n_ops = 10_000
    problem, rng = Problem(layered_graph(n_ops), v100s(4, "program")), np.random.default_rng(0)
    graph, standing = problem.graph, random_placements(problem, 1)[0]
    ops = rng.permutation(graph.n_ops)[:200]
    placements = np.tile(standing, (len(ops), 1))
    placements[np.arange(len(ops)), ops] = (standing[ops] + rng.integers(1, 4, len(ops))) % 4
    pair, work_s = kernels.new_pair(graph.n_ops, graph.n_tensors, 4), np.zeros(4)
    kernels.run_moved(problem.arrays, standing, pair, 0, np.inf, work_s)
    kernels.stand(pair)
    timeline = kernels.new_timeline(graph.n_ops, graph.n_tensors, 4)
    total_s, peak = np.zeros(1), np.zeros((1, 0))

    def resume_each() -> list[float]:
        return [
            kernels.run_moved(problem.arrays, device_of, pair, op, np.inf, work_s)
            for op, device_of in zip(ops, placements, strict=True)
        ]

    def simulate_each() -> list[float]:
        times = []
        for row in range(len(ops)):
            kernels.run_many(problem.arrays, placements[row : row + 1], timeline, False, total_s, peak)
            times.append(float(total_s[0]))
        return times

    assert resume_each() == simulate_each()
    record(
        Figure(
            "One-op moves of random placements, program, 4 devices, one core",
            f"{n_ops:,} ops, resumed before the move",
            len(ops) / stopwatch(resume_each, rounds=20),
            "evaluations/s",
            len(ops) / seconds_of(simulate_each, rounds=20),
            "full simulations of the same placements",
        )
    )


def test_greedy_decode(stopwatch: Stopwatch, record: Record) -> None:
    problem = captured("ptb", 1_000)
    policy = Policy(PlacementNetwork(current_shape(CONFIG.encoder, CONFIG.hidden, CONFIG.rounds)))
    placer, budget = PLACERS["annealing"], Budget(evaluations=N_EVALUATIONS)
    record(
        Figure(
            "Greedy decode, 4 devices",
            f"{decisions(problem):,} decisions, encoding included",
            stopwatch(lambda: decode(policy, problem), rounds=3) * 1e3,
            "ms",
            seconds_of(lambda: placer.place(problem, budget, np.random.default_rng(0))) * 1e3,
            f"annealing with {N_EVALUATIONS:,} evaluations",
        )
    )
