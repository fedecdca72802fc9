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
from envs.placement import Placement
from envs.simulator import simulate
from tests.benchmarks.cases import captured, decisions, random_placements, seconds_of
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

Record = Callable[[Figure], None]

CONFIG = TrainConfig()
N_EVALUATIONS = 10_000


@pytest.mark.parametrize(("family", "n_decisions"), [("cifar10", 200), ("ptb", 1_000)])
def test_annealing(stopwatch: Stopwatch, record: Record, family: str, n_decisions: int) -> None:
    problem = captured(family, n_decisions)
    placer, budget = PLACERS["annealing"], Budget(evaluations=N_EVALUATIONS)
    placements = random_placements(problem, 100)

    def simulate_each() -> None:
        for device_of in placements:
            simulate(problem.graph, problem.cluster, Placement(device_of))

    record(
        Figure(
            "Annealing, 4 devices, one core",
            f"{problem.graph.n_ops:,} ops",
            N_EVALUATIONS
            / stopwatch(lambda: placer.place(problem, budget, np.random.default_rng(0)), rounds=3),
            "evaluations/s",
            len(placements) / seconds_of(simulate_each),
            "one call of simulate per placement, memory included",
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
