"""Speed of finding placements: by search, and by one decode of a policy."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch

from agent.learn.config import TrainConfig
from agent.placers.base import PLACERS, Budget
from agent.policy.decoding import Samples, decode
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from envs.simulator.arrays import empty_timeline
from envs.simulator.kernels import run_many
from tests.benchmarks.cases import captured, decisions, random_placements, seconds_of
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

Record = Callable[[Figure], None]

CONFIG = TrainConfig()
SHAPES = [("rollout", CONFIG.hidden), ("consumers", CONFIG.hidden), ("consumers", 32)]
"""Feature sets and widths of the policies that decode."""
N_EVALUATIONS = 10_000


@pytest.mark.parametrize(("family", "n_decisions"), [("cifar10", 200), ("ptb", 1_000)])
def test_annealing(stopwatch: Stopwatch, record: Record, family: str, n_decisions: int) -> None:
    problem = captured(family, n_decisions)
    placer, budget = PLACERS["annealing"], Budget(evaluations=N_EVALUATIONS)
    found = placer.place(problem, budget, np.random.default_rng(0)).placement.device_of
    placements, total_s = random_placements(problem, 1_000), np.zeros(1_000)
    moved = np.random.default_rng(1).integers(len(problem.graph.units), size=(1_000, 1))
    placements = np.where(problem.graph.unit_of == moved, placements, found)
    timeline = empty_timeline(problem.graph.n_ops, problem.graph.n_tensors, problem.n_devices)

    def simulate_each() -> None:
        run_many(problem.arrays, placements, timeline, False, total_s, np.zeros((1, 0)))

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


@pytest.mark.parametrize(("feature_set", "hidden"), SHAPES)
@pytest.mark.parametrize("n_walks", [1, 64])
def test_decode(stopwatch: Stopwatch, record: Record, n_walks: int, feature_set: str, hidden: int) -> None:
    problem = captured("ptb", 1_000)
    policy, walk = policy_with(feature_set, hidden), partial(walk_by_torch, problem=problem, n_walks=n_walks)
    decoding = partial(
        decode, policy, problem, samples=Samples(n_walks, greedy=False), rng=np.random.default_rng(0)
    )
    n_decisions = n_walks * len(problem.graph.units)
    record(
        Figure(
            "Decoding, 4 devices, one core, encoding included",
            f"{n_walks} walks of {decisions(problem):,} decisions, features {feature_set}, width {hidden}",
            n_decisions / stopwatch(decoding, rounds=3),
            "decisions/s",
            n_decisions / seconds_of(lambda: walk(policy), rounds=1),
            "the same episodes, scored by torch decision by decision",
        )
    )


def policy_with(feature_set: str, hidden: int = CONFIG.hidden) -> Policy:
    return Policy(PlacementNetwork(current_shape(CONFIG.encoder, hidden, CONFIG.rounds, feature_set)))


@torch.inference_mode()
def walk_by_torch(policy: Policy, problem: Problem, n_walks: int) -> None:
    """Walks with one forward pass of the network for each decision."""
    policy.set_problems([problem])
    batch = EpisodeBatch([problem], n_walks)
    for episode in range(n_walks):
        batch.begin(episode, 0, 0, np.random.default_rng(0))
    while not batch.done.all():
        obs = {name: torch.from_numpy(rows) for name, rows in batch.observation._asdict().items()}
        batch.step(policy.scores(obs)[0].argmax(1).numpy())
