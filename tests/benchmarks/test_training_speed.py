"""Throughput of training: ours beside a plain stable-baselines3 set-up, on one graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from stable_baselines3.common.vec_env import VecEnv

from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from agent.policy.threads import torch_threads
from agent.training.config import TrainConfig
from agent.training.performance.bf16 import bf16_matmul
from agent.training.performance.malloc import tune_malloc
from agent.training.reinforcement.collection import Collector
from agent.training.reinforcement.ppo import make_ppo, roll_out
from tests.benchmarks.cases import captured, decisions, seconds_of
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure
from tests.benchmarks.naive_sb3 import N_ENVS, make_naive_ppo

CONFIG = TrainConfig()


@cache
def ours(threads: int) -> tuple[MaskablePPO, Collector]:
    """Set up as `agent.training.trainer` does it, at the default configuration."""
    problem, config = captured("cifar10", 200), replace(CONFIG, threads=threads)
    collector = Collector([problem], config.n_envs, repeats=config.repeats, threads=threads)
    policy = Policy(PlacementNetwork(current_shape(config.encoder, config.hidden, config.rounds)))
    ppo = make_ppo(config, collector, lambda: policy, lambda: config.learning_rate, seed=0, device="cpu")
    policy.set_problems([problem])
    return ppo, collector


@cache
def naive() -> MaskablePPO:
    return make_naive_ppo([captured("cifar10", 200)], CONFIG)


def decisions_of_rollout(ppo: MaskablePPO) -> int:
    return ppo.n_steps * ppo.n_envs


def learn(ppo: MaskablePPO, collector: Collector) -> None:
    """One rollout and the update from it."""
    make_rollout(ppo, collector)
    ppo.train()


def make_rollout(ppo: MaskablePPO, collector: Collector) -> None:
    """One rollout without the update."""
    roll_out(ppo, collector, CONFIG.n_steps)


def step_episodes(_: MaskablePPO, collector: Collector) -> None:
    """As many decisions as a rollout has, on random devices."""
    batch, rng = collector.batch, np.random.default_rng(0)
    done = np.ones(batch.n, dtype=np.bool_)
    for actions in rng.integers(batch.max_devices, size=(CONFIG.n_steps, batch.n)):
        for episode in np.flatnonzero(done).tolist():
            batch.begin(episode, 0, 0, rng)
        _, done = batch.step(actions)


def naive_learn(ppo: MaskablePPO) -> None:
    ppo.learn(decisions_of_rollout(ppo), log_interval=None, reset_num_timesteps=False)


def naive_rollout(ppo: MaskablePPO) -> None:
    _, started = ppo._setup_learn(decisions_of_rollout(ppo), None, reset_num_timesteps=False)
    ppo.policy.set_training_mode(False)
    ppo.collect_rollouts(ppo.env, started, ppo.rollout_buffer, ppo.n_steps, use_masking=True)


def naive_steps(ppo: MaskablePPO) -> None:
    env: VecEnv = ppo.env
    env.reset()
    for actions in np.random.default_rng(0).integers(env.action_space.n, size=(ppo.n_steps, ppo.n_envs)):
        env.step(actions)


WORKS = (
    ("overall (rollouts and updates)", "steps/s", learn, naive_learn),
    ("rollouts only", "decisions/s", make_rollout, naive_rollout),
    ("environment only", "decisions/s", step_episodes, naive_steps),
)
THREADS = (1, 2)


@pytest.fixture(scope="module")
def naive_s() -> dict[tuple[str, int], float]:
    """Seconds of the baseline at each work, timed before a training of ours changes malloc for good."""
    seconds = {}
    for threads in THREADS:
        with torch_threads(threads):
            naive_rollout(naive())
            for name, _, _, work in WORKS:
                seconds[name, threads] = seconds_of(partial(work, naive()), rounds=2)
    return seconds


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("name", "unit", "work"), [row[:3] for row in WORKS])
def test_training(
    stopwatch: Stopwatch,
    record: Callable[[Figure], None],
    naive_s: dict[tuple[str, int], float],
    name: str,
    unit: str,
    work: Callable[[MaskablePPO, Collector], None],
    threads: int,
) -> None:
    problem, (ppo, collector) = captured("cifar10", 200), ours(threads)
    tune_malloc()
    with torch_threads(1), bf16_matmul():
        make_rollout(ppo, collector)
        seconds = stopwatch(lambda: work(ppo, collector), rounds=5)
    record(
        Figure(
            f"Training, {decisions(problem)} decisions an episode, 4 devices, {CONFIG.n_envs} episodes",
            f"{name}, threads: {threads}",
            decisions_of_rollout(ppo) / seconds,
            unit,
            decisions_of_rollout(naive()) / naive_s[name, threads],
            f"plain SB3, the graph in the observation, {N_ENVS} environments",
        )
    )
