"""Trajectories: episodes that replay a demonstration or improve greedily, with a soft target per decision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.policy.mdp_config import MdpConfig
from agent.policy.starts import episode_arguments
from agent.training.imitation.demonstrations import Demonstration
from agent.training.imitation.recording import Recording, record
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.placement.masks import Mask
from envs.placement.observation.features import COLUMN
from envs.placement.state import MEAN_OP_S, mdp_arrays
from envs.problem import Problem

SAME_FEATURES = 1e-6
"""Devices whose features differ by less are the same to the policy, so that either is a good answer."""
TOLERANCE = 5e-4
"""Regret, in units of reward, that makes the soft target of a device less by a factor e."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """An episode to imitate; one row per decision.

    Attributes:
        problem, op: int64 (n,).
        devices: device features, float32 (n, n_devices * n_device_features).
        mask: devices with enough free memory, int8 (n, n_devices).
        target: soft target of each device, 1 for the best and those that the policy cannot tell from it, 0
            for those without the memory; float32 (n, n_devices).
        value: reward still to come, float32 (n,).
    """

    problem: NDArray[np.int64]
    op: NDArray[np.int64]
    devices: NDArray[np.float32]
    mask: NDArray[np.int8]
    target: NDArray[np.float32]
    value: NDArray[np.float32]


def replay_demonstrations(
    problems: Sequence[Problem],
    demonstrations: Sequence[Demonstration],
    *,
    orders: Sequence[str],
    mdp_config: MdpConfig,
    seed: Sequence[int],
) -> list[Trajectory]:
    """Replays every demonstration once, each in one of the orders.

    Leaves out those that take a device whose memory the episode takes to be full.
    """
    rng = np.random.default_rng(seed)
    batch = EpisodeBatch(problems, 1, EpisodeSettings(orders, **episode_arguments(mdp_config)))
    trajectories = (replay(batch, each, rng) for each in demonstrations)
    return [trajectory for trajectory in trajectories if trajectory is not None]


def improvement_trajectories(
    problems: Sequence[Problem],
    *,
    orders: Sequence[str],
    mdp_config: MdpConfig,
    repeats: int,
    seed: Sequence[int],
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Trajectory]:
    """Improves a placement of every problem `repeats` times by `improve_greedily`, each in one of the orders.

    Args:
        should_stop: looked at between two; the first is made in any case.
    """
    rng = np.random.default_rng(seed)
    batch = EpisodeBatch(problems, 1, EpisodeSettings(orders, **episode_arguments(mdp_config)))
    trajectories: list[Trajectory] = []
    for index in list(range(len(problems))) * repeats:
        if trajectories and should_stop():
            break
        trajectories.append(improve_greedily(batch, index, rng))
    return trajectories


def improve_greedily(batch: EpisodeBatch, problem: int, rng: np.random.Generator) -> Trajectory:
    """Improves a placement in one episode, each unit going where the step is shortest or nearly so.

    Unlike a construction, an improvement knows what each device does to the whole step.
    """
    given = batch.problems[problem]
    op_seconds = mdp_arrays(given, Mask()).scales[MEAN_OP_S]
    batch.begin(problem=problem, episode=0, order=int(rng.integers(len(batch.orders))), rng=rng)
    seen, rows, done = batch.observation, [], False
    while not done:
        op, features, mask = int(seen.op[0, 0]), seen.devices[0].copy(), seen.mask[0].copy()
        usable = mask[: given.n_devices] > 0
        regret = (
            np.expm1(features[: given.n_devices, COLUMN.step_time_over_least]) * op_seconds / given.scale_s
        )
        likely = np.exp(-regret / TOLERANCE) * usable
        likely = likely if likely.any() else usable.astype(np.float64)
        rewards, ended = batch.step(np.array([rng.choice(given.n_devices, p=likely / likely.sum())]))
        rows.append((op, features, mask, rewards[0], regret))
        done = bool(ended[0])
    *recorded, regrets = (np.array(column) for column in zip(*rows, strict=True))
    return _trajectory(problem, Recording(*recorded), regrets)


def replay(batch: EpisodeBatch, demonstration: Demonstration, rng: np.random.Generator) -> Trajectory | None:
    """Replays one demonstration; None where the episode takes one of its devices to be full."""
    batch.begin(0, demonstration.problem, int(rng.integers(len(batch.orders))), rng)
    rows = record(batch, demonstration.device_of)
    if rows is None:
        return None
    unit_of = batch.problems[demonstration.problem].graph.unit_of
    return _trajectory(demonstration.problem, rows, demonstration.regret[unit_of[rows.op]])


def _trajectory(problem: int, rows: Recording, regret: NDArray[Any]) -> Trajectory:
    """Makes the trajectory of an episode.

    Args:
        regret: of each device at each decision, units of reward, (n, n_devices).
    """
    n_devices = regret.shape[1]
    devices, mask = rows.devices[:, :n_devices], rows.mask[:, :n_devices]
    return Trajectory(
        problem=np.full(len(rows.op), problem),
        op=rows.op,
        devices=devices.reshape(len(rows.op), -1),
        mask=mask,
        target=_soft_targets(devices, mask > 0, regret),
        value=rows.reward[::-1].cumsum()[::-1].astype(np.float32),
    )


def _soft_targets(
    features: NDArray[np.float32], usable: NDArray[np.bool_], regret: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Computes `Trajectory.target` of decisions, float32 (n, n_devices).

    Args:
        features: float32 (n, n_devices, n_device_features).
        usable: bool (n, n_devices).
        regret: units of reward, (n, n_devices).
    """
    cost = np.where(usable, regret, np.inf)
    target = np.exp((cost.min(axis=1, keepdims=True) - cost) / TOLERANCE)
    same = np.abs(features[:, :, None] - features[:, None]).max(axis=3) < SAME_FEATURES
    shared = np.where(same, target[:, None], 0.0).max(axis=2)
    return np.asarray(np.where(usable, shared, 0.0), dtype=np.float32)
