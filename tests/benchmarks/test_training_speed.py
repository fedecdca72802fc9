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
from agent.training.reinforcement.ppo import PlacementPPO, make_ppo
from envs.placement.generator import Rounds
from envs.placement.vec_env import PlacementVecEnv
from tests.benchmarks.cases import captured, decisions, seconds_of
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure
from tests.benchmarks.naive_sb3 import N_ENVS, make_naive_ppo

CONFIG = TrainConfig()


@cache
def ours(threads: int) -> PlacementPPO:
    """Set up as `agent.training.trainer` does it, at the default configuration."""
    config, problems = replace(CONFIG, threads=threads), [captured("cifar10", 200)]
    rounds = Rounds(repeats=config.repeats)
    env = PlacementVecEnv(problems, config.n_envs, generator=rounds, threads=threads)
    policy = Policy(PlacementNetwork(current_shape(config.encoder, config.hidden, config.rounds)))
    return make_ppo(config, env, lambda: policy, lambda: config.learning_rate, seed=0, device="cpu")


@cache
def naive() -> MaskablePPO:
    return make_naive_ppo([captured("cifar10", 200)], CONFIG)


def decisions_of_rollout(ppo: MaskablePPO) -> int:
    return ppo.n_steps * ppo.n_envs


def step_episodes(ppo: PlacementPPO) -> None:
    """As many decisions as a rollout has, on random devices."""
    batch, rng = ppo.env.batch, np.random.default_rng(0)
    done = np.ones(batch.n, dtype=np.bool_)
    for actions in rng.integers(batch.max_devices, size=(CONFIG.n_steps, batch.n)):
        for episode in np.flatnonzero(done).tolist():
            batch.begin(episode, 0, 0, rng)
        _, done = batch.step(actions)


def learn(ppo: MaskablePPO) -> None:
    ppo.learn(decisions_of_rollout(ppo), log_interval=None, reset_num_timesteps=False)


def roll_out(ppo: MaskablePPO) -> None:
    _, started = ppo._setup_learn(decisions_of_rollout(ppo), None, reset_num_timesteps=False)
    ppo.policy.set_training_mode(False)
    ppo.collect_rollouts(ppo.env, started, ppo.rollout_buffer, ppo.n_steps, use_masking=True)


def naive_steps(ppo: MaskablePPO) -> None:
    env: VecEnv = ppo.env
    env.reset()
    for actions in np.random.default_rng(0).integers(env.action_space.n, size=(ppo.n_steps, ppo.n_envs)):
        env.step(actions)


WORKS = (
    ("overall (rollouts and updates)", "steps/s", learn, learn),
    ("rollouts only", "decisions/s", roll_out, roll_out),
    ("environment only", "decisions/s", step_episodes, naive_steps),
)
THREADS = (1, 2)


@pytest.fixture(scope="module")
def naive_s() -> dict[tuple[str, int], float]:
    """Seconds of the baseline at each work, timed before a training of ours changes malloc for good."""
    seconds = {}
    for threads in THREADS:
        with torch_threads(threads):
            roll_out(naive())
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
    work: Callable[[MaskablePPO], None],
    threads: int,
) -> None:
    problem, ppo = captured("cifar10", 200), ours(threads)
    tune_malloc()
    with torch_threads(1), bf16_matmul():
        roll_out(ppo)
        seconds = stopwatch(lambda: work(ppo), rounds=5)
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
