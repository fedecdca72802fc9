"""Throughput of training on one graph, beside the loop of stable-baselines3 over the same environment."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from sb3_contrib import MaskablePPO

from agent.learn.config import TrainConfig
from agent.learn.ppo import PlacementPPO
from agent.policy.policy import torch_threads
from envs.placement.generator import Rounds
from envs.placement.vec_env import PlacementVecEnv
from graphs.system.performance import bf16_matmul, tune_malloc
from tests.benchmarks.cases import captured, decisions, seconds_of
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import Figure

CONFIG = TrainConfig()


class PlainPPO(PlacementPPO):
    """Collects rollouts by the loop of stable-baselines3."""

    collect_rollouts = MaskablePPO.collect_rollouts


def environment(threads: int) -> PlacementVecEnv:
    rounds = Rounds(repeats=CONFIG.repeats)
    return PlacementVecEnv([captured("cifar10", 200)], CONFIG.n_envs, generator=rounds, threads=threads)


@cache
def plain() -> PlacementPPO:
    """One thread, learning from every decision, the graph encoder included."""
    return PlainPPO("PlacementPolicy", environment(1), share=1.0, seed=0, device="cpu")


@cache
def ours(threads: int) -> PlacementPPO:
    """Set up as `agent.learn.train` does it, at the default configuration."""
    kwargs = {"threads": threads}
    return PlacementPPO("PlacementPolicy", environment(threads), policy_kwargs=kwargs, seed=0, device="cpu")


def step_episodes(ppo: PlacementPPO) -> None:
    """As many decisions as a rollout has, on random devices."""
    batch, rng = ppo.env.batch, np.random.default_rng(0)
    done = np.ones(batch.n, dtype=np.bool_)
    for actions in rng.integers(batch.max_devices, size=(CONFIG.n_steps, batch.n)):
        for episode in np.flatnonzero(done).tolist():
            batch.begin(episode, 0, 0, rng)
        _, done = batch.step(actions)


def learn(ppo: PlacementPPO) -> None:
    ppo.learn(ppo.n_steps * ppo.n_envs, log_interval=None, reset_num_timesteps=False)


def roll_out(ppo: PlacementPPO) -> None:
    _, started = ppo._setup_learn(ppo.n_steps * ppo.n_envs, None, reset_num_timesteps=False)
    ppo.policy.set_training_mode(False)
    ppo.collect_rollouts(ppo.env, started, ppo.rollout_buffer, ppo.n_steps, use_masking=True)


WORKS = {
    "overall (rollouts and updates)": ("steps/s", learn),
    "rollouts only": ("decisions/s", roll_out),
    "environment only": ("decisions/s", step_episodes),
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", WORKS)
def test_training(stopwatch: Stopwatch, record: Callable[[Figure], None], name: str, threads: int) -> None:
    (unit, work), problem = WORKS[name], captured("cifar10", 200)
    tune_malloc()
    with torch_threads(1), bf16_matmul():
        for ppo in (plain(), ours(threads)):
            roll_out(ppo)
        plain_s = seconds_of(lambda: work(plain()), rounds=2)
        seconds = stopwatch(lambda: work(ours(threads)), rounds=5)
    n_decisions = ours(threads).n_steps * ours(threads).n_envs
    record(
        Figure(
            f"Training, {decisions(problem)} decisions an episode, 4 devices, {CONFIG.n_envs} episodes",
            f"{name}, threads: {threads}",
            n_decisions / seconds,
            unit,
            n_decisions / plain_s,
            "the loop of SB3 over the same environment, one thread",
        )
    )
