"""Speed of the environments: decisions, each of which tries every device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from envs.placement.env import PlacementEnv
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from tests.benchmarks.cases import captured, decisions, seconds_of
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

N_EPISODES = 64


@pytest.mark.parametrize(("order", "way"), [("topo", "incremental"), ("bfs", "simulating each candidate")])
def test_lookahead(stopwatch: Stopwatch, record: Callable[[Figure], None], order: str, way: str) -> None:
    problem = captured("cifar10", 200)
    batch = EpisodeBatch([problem], N_EPISODES, EpisodeSettings([order]))
    rng = np.random.default_rng(0)
    actions = rng.integers(problem.n_devices, size=(decisions(problem), N_EPISODES))

    def walk_all() -> None:
        """Every episode from its first op to its last: late decisions look back on more than early ones."""
        for episode in range(N_EPISODES):
            batch.begin(episode, 0, 0, rng)
        for devices in actions:
            if batch.step(devices)[1].any():
                return

    env = PlacementEnv([problem], orders=[order])

    def walk_one() -> None:
        env.reset(seed=0)
        for device in actions[:, 0]:
            if env.step(device)[2]:
                return

    record(
        Figure(
            f"Lookahead, {decisions(problem)} decisions an episode, 4 devices, one core",
            f"{order}, {way}, {N_EPISODES} episodes",
            N_EPISODES * decisions(problem) / stopwatch(walk_all, rounds=5),
            "decisions/s",
            decisions(problem) / seconds_of(walk_one),
            "PlacementEnv, one episode",
        )
    )
