"""Throughput of training: ours beside a plain stable-baselines3 set-up, on one graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv

from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from agent.policy.threads import torch_threads
from agent.training.config import TrainConfig
from agent.training.performance.bf16 import bf16_matmul
from agent.training.performance.malloc import tune_malloc
from agent.training.reinforcement.callbacks import EpisodeLog
from agent.training.reinforcement.ppo import make_ppo
from envs.mdp.batched_env import BatchedPlacementEnv
from tests.benchmarks.cases import captured, decisions, seconds_of
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure
from tests.benchmarks.naive_sb3 import N_ENVS, make_naive_ppo

CONFIG = TrainConfig()
Work = Callable[[MaskablePPO, BaseCallback | None], None]


@cache
def ours(threads: int) -> MaskablePPO:
    """Set up as `agent.training.trainer` does it, at the default configuration."""
    problem = captured("cifar10", 200)
    env = BatchedPlacementEnv([problem], CONFIG.n_envs, repeats=CONFIG.repeats, threads=threads)
    shape = current_shape(CONFIG.encoder, CONFIG.hidden, CONFIG.rounds)
    policy = Policy(PlacementNetwork(shape), threads)
    ppo = make_ppo(CONFIG, env, lambda: policy, lambda: CONFIG.learning_rate, seed=0, device="cpu")
    policy.set_problems([problem])
    return ppo


@cache
def naive() -> MaskablePPO:
    return make_naive_ppo([captured("cifar10", 200)], CONFIG)


def decisions_of_rollout(ppo: MaskablePPO) -> int:
    return ppo.n_steps * ppo.n_envs


def learn(ppo: MaskablePPO, callback: BaseCallback | None) -> None:
    """One rollout and the update from it."""
    ppo.learn(decisions_of_rollout(ppo), callback=callback, log_interval=None, reset_num_timesteps=False)


def roll_out(ppo: MaskablePPO, callback: BaseCallback | None) -> None:
    """One rollout without the update."""
    _, started = ppo._setup_learn(decisions_of_rollout(ppo), callback, reset_num_timesteps=False)
    ppo.policy.set_training_mode(False)
    ppo.collect_rollouts(ppo.env, started, ppo.rollout_buffer, ppo.n_steps, use_masking=True)


def step_env(ppo: MaskablePPO, callback: BaseCallback | None) -> None:
    """As many steps as a rollout has, with random devices."""
    env: VecEnv = ppo.env
    env.reset()
    for actions in np.random.default_rng(0).integers(env.action_space.n, size=(ppo.n_steps, ppo.n_envs)):
        env.step(actions)


WORKS = (
    ("overall (rollouts and updates)", "steps/s", learn),
    ("rollouts only", "decisions/s", roll_out),
    ("environment only", "decisions/s", step_env),
)
THREADS = (1, 2)


@pytest.fixture(scope="module")
def naive_s() -> dict[tuple[str, int], float]:
    """Seconds of the baseline at each work, timed before a training of ours changes malloc for good."""
    seconds = {}
    for threads in THREADS:
        with torch_threads(threads):
            roll_out(naive(), None)
            for name, _, work in WORKS:
                seconds[name, threads] = seconds_of(partial(work, naive(), None), rounds=2)
    return seconds


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize(("name", "unit", "work"), WORKS)
def test_training(
    stopwatch: Stopwatch,
    record: Callable[[Figure], None],
    naive_s: dict[tuple[str, int], float],
    name: str,
    unit: str,
    work: Work,
    threads: int,
) -> None:
    problem, log = captured("cifar10", 200), EpisodeLog()
    tune_malloc()
    with torch_threads(1), bf16_matmul():
        roll_out(ours(threads), log)
        seconds = stopwatch(lambda: work(ours(threads), log), rounds=5)
    record(
        Figure(
            f"Training, {decisions(problem)} decisions an episode, 4 devices, {CONFIG.n_envs} episodes",
            f"{name}, threads: {threads}",
            decisions_of_rollout(ours(threads)) / seconds,
            unit,
            decisions_of_rollout(naive()) / naive_s[name, threads],
            f"plain SB3, the graph in the observation, {N_ENVS} environments",
        )
    )
