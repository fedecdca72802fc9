"""Lessons: demonstrations walked op by op, and a policy that learns from the walks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from agent.policy.mdp_config import MdpConfig
from agent.policy.policy import Policy
from agent.training.imitation.demonstrations import Demonstration
from agent.training.performance.parallel import scores_in_threads
from envs.mdp.episodes import EpisodeBatch
from envs.mdp.state import mdp_arrays
from envs.problem import Problem
from graphs.op_graph import FloatArray

WALKS_AT_ONCE = 8
"""Lessons in one gradient step: few enough graphs to encode, enough decisions to average."""
ALIKE = 1e-6
"""Devices whose features differ by less are the same to the policy, so either is a right answer."""
TOLERANCE = 5e-4
"""Regret, in units of reward, that makes a device right by a factor e less."""


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A walk that a demonstration decided; one row per decision.

    Attributes:
        problem, op: int64 (n,).
        devices: lookahead features, float32 (n, max_devices * n_device_features).
        mask: devices with room, int8 (n, max_devices).
        right: how nearly right each device is, 1 for the best and those that the policy cannot tell from it,
            0 for those without room; float32 (n, max_devices).
        value: reward still to come, float32 (n,).
    """

    problem: NDArray[np.int64]
    op: NDArray[np.int64]
    devices: NDArray[np.float32]
    mask: NDArray[np.int8]
    right: NDArray[np.float32]
    value: NDArray[np.float32]


class ImitationLearner:
    """Lets a policy learn from lessons.

    Args:
        seed: whole numbers; the sequence of the lessons depends on them.
    """

    def __init__(self, lessons: Sequence[Trajectory], seed: Sequence[int]) -> None:
        self.lessons, self._seed = lessons, seed

    def epoch(
        self,
        number: int,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float,
        threads: int = 1,
    ) -> dict[str, float]:
        """One pass over all lessons, in a sequence that depends on the `number` of the pass alone.

        Returns:
            `imitation/loss`, `imitation/accuracy` (how nearly right the policy's first choices are),
            `imitation/value_loss` and the number of decisions, `imitation/decisions`.
        """
        sequence = np.random.default_rng([*self._seed, number]).permutation(len(self.lessons))
        totals = np.zeros(4)
        for first in range(0, len(sequence), WALKS_AT_ONCE):
            chosen = [self.lessons[at] for at in sequence[first : first + WALKS_AT_ONCE]]
            totals += _learn(policy, optimizer, chosen, max_grad_norm, threads)
        loss, agreement, value_loss, decisions = totals
        n = max(decisions, 1.0)
        return {
            "imitation/loss": loss / n,
            "imitation/accuracy": agreement / n,
            "imitation/value_loss": value_loss / n,
            "imitation/decisions": decisions,
        }


def demonstrated(
    problems: Sequence[Problem],
    demonstrations: Sequence[Demonstration],
    *,
    orders: Sequence[str],
    seed: Sequence[int],
) -> list[Trajectory]:
    """Walk every demonstration once, each in one of the orders; what a walk takes to be full is left out."""
    rng = np.random.default_rng(seed)
    batch = EpisodeBatch(problems, 1, orders=orders)
    walks = (walk(batch, each, rng) for each in demonstrations)
    return [lesson for lesson in walks if lesson is not None]


def descents(
    problems: Sequence[Problem], *, orders: Sequence[str], walks: MdpConfig, repeats: int, seed: Sequence[int]
) -> list[Trajectory]:
    """Improve a placement of every problem `repeats` times, as `descend` does, each in one of the orders."""
    rng = np.random.default_rng(seed)
    batch = EpisodeBatch(problems, 1, orders=orders, **walks.arguments)
    return [descend(batch, index, rng) for _ in range(repeats) for index in range(len(problems))]


def descend(batch: EpisodeBatch, problem: int, rng: np.random.Generator) -> Trajectory:
    """Improve a placement, each unit going where the step is shortest or nearly so.

    Unlike a construction, an improvement knows what each device does to the whole step.
    """
    given = batch.problems[problem]
    op_seconds = mdp_arrays(given).scales[0]
    batch.begin(problem=problem, episode=0, order=int(rng.integers(len(batch.orders))), rng=rng)

    def choose(op: int, features: NDArray[np.float32], usable: NDArray[np.bool_]) -> tuple[int, FloatArray]:
        regret = np.expm1(features[: given.n_devices, 0]) * op_seconds / given.scale_s
        likely = np.exp(-regret / TOLERANCE) * usable[: given.n_devices]
        likely = likely if likely.any() else usable[: given.n_devices].astype(np.float64)
        return int(rng.choice(given.n_devices, p=likely / likely.sum())), regret

    lesson = _walk(batch, problem, choose)
    assert lesson is not None
    return lesson


def walk(batch: EpisodeBatch, demonstration: Demonstration, rng: np.random.Generator) -> Trajectory | None:
    """Walk one demonstration; None where the walk takes one of its devices to be full."""
    batch.begin(0, demonstration.problem, int(rng.integers(len(batch.orders))), rng)
    unit_of = batch.problems[demonstration.problem].graph.unit_of
    return _walk(
        batch,
        demonstration.problem,
        lambda op, *_: (int(demonstration.device_of[op]), demonstration.regret[unit_of[op]]),
    )


Choice = Callable[[int, NDArray[np.float32], NDArray[np.bool_]], tuple[int, NDArray[Any]]]
"""From an op, its device features and which devices are usable: a device, and the regret of each."""


def _walk(batch: EpisodeBatch, problem: int, choose: Choice) -> Trajectory | None:
    """Walk the first episode, which has begun; None where a device that is chosen has no room."""
    seen = batch.observation
    rows: list[tuple[int, NDArray[np.float32], NDArray[np.int8], NDArray[Any], float]] = []
    over = False
    while not over:
        op, features, mask = int(seen.op[0, 0]), seen.devices[0].copy(), seen.mask[0].copy()
        device, regret = choose(op, features, mask > 0)
        if not mask[device]:
            return None
        rewards, ended = batch.step(np.array([device]))
        rows.append((op, features, mask, regret, float(rewards[0])))
        over = bool(ended[0])
    ops, all_features, masks, regrets, reward = (np.array(column) for column in zip(*rows, strict=True))
    return Trajectory(
        problem=np.full(len(ops), problem),
        op=ops,
        devices=all_features.reshape(len(ops), -1),
        mask=masks,
        right=_right(all_features, masks > 0, regrets),
        value=reward[::-1].cumsum()[::-1].astype(np.float32),
    )


def _right(
    features: NDArray[np.float32], usable: NDArray[np.bool_], regret: NDArray[np.float32]
) -> NDArray[np.float32]:
    """`Trajectory.right` of decisions.

    Args:
        features: (n, max_devices, n_device_features). usable: (n, max_devices). regret: (n, n_devices).
    """
    cost = np.full(usable.shape, np.inf)
    cost[:, : regret.shape[1]] = regret
    cost[~usable] = np.inf
    right = np.exp((cost.min(axis=1, keepdims=True) - cost) / TOLERANCE)
    alike = np.abs(features[:, :, None] - features[:, None]).max(axis=3) < ALIKE
    shared = np.where(alike, right[:, None], 0.0).max(axis=2)
    return np.asarray(np.where(usable, shared, 0.0), dtype=np.float32)


def _learn(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    lessons: Sequence[Trajectory],
    max_grad_norm: float,
    threads: int,
) -> NDArray[np.float64]:
    """One gradient step; sums of loss, right first choices and value loss, and the number of decisions."""
    columns = {item.name: [getattr(lesson, item.name) for lesson in lessons] for item in fields(Trajectory)}
    obs = {name: torch.from_numpy(np.concatenate(parts)).to(policy.device) for name, parts in columns.items()}
    logits, values = scores_in_threads(policy, obs, threads)
    log_probs = logits.log_softmax(1)
    right: Tensor = obs["right"]
    loss = -(log_probs + right.log()).logsumexp(1).mean()
    value_loss = F.mse_loss(values, obs["value"])
    optimizer.zero_grad()
    (loss + 0.5 * value_loss).backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    optimizer.step()
    n = len(values)
    agreed = right.gather(1, log_probs.argmax(1, keepdim=True)).sum()
    return np.array([loss.item() * n, agreed.item(), value_loss.item() * n, n])
