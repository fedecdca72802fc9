"""A policy that learns from trajectories: soft targets for its devices, and the values of states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from agent.policy.policy import Policy
from agent.training.divergence import check_finite
from agent.training.imitation.trajectories import Trajectory
from agent.training.performance import scores_in_threads
from agent.training.workers import SOLO, WorkerGroup, sum_gradients

TRAJECTORIES_PER_STEP = 8
"""Trajectories in one gradient step: few enough graphs to encode, enough decisions to average."""


class ImitationLearner:
    """Trains a policy by imitation of trajectories.

    Args:
        seed: whole numbers; the sequence of the trajectories depends on them.
    """

    def __init__(self, trajectories: Sequence[Trajectory], seed: Sequence[int]) -> None:
        self.trajectories, self._seed = trajectories, seed

    def epoch(
        self,
        number: int,
        policy: Policy,
        optimizer: torch.optim.Optimizer,
        *,
        max_grad_norm: float,
        threads: int = 1,
        group: WorkerGroup = SOLO,
    ) -> tuple[dict[str, float], int]:
        """Makes one pass over all trajectories, in a sequence that depends on the `number` of the pass alone.

        Args:
            group: the workers that learn together; each scores a share of the trajectories of every step.

        Returns:
            Metrics (loss, value loss, and accuracy: the mean soft target of the policy's first choices), and
            the number of decisions.

        Raises:
            FloatingPointError: a loss or the norm of the gradient is not finite; no step was made by it.
        """
        sequence = np.random.default_rng([*self._seed, number]).permutation(len(self.trajectories))
        totals = np.zeros(4)
        for first in range(0, len(sequence), TRAJECTORIES_PER_STEP):
            chosen = [self.trajectories[at] for at in sequence[first : first + TRAJECTORIES_PER_STEP]]
            totals += _learn(policy, optimizer, chosen, max_grad_norm, threads, group)
        loss, accuracy, value_loss, decisions = totals
        n = max(decisions, 1.0)
        return {
            "train/imitation_loss": loss / n,
            "training/imitation_accuracy": accuracy / n,
            "train/imitation_value_loss": value_loss / n,
        }, int(decisions)


def _learn(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Trajectory],
    max_grad_norm: float,
    threads: int,
    group: WorkerGroup,
) -> NDArray[np.float64]:
    """Makes one gradient step.

    Returns:
        Sums over the decisions of loss, soft target of the first choice, value loss and 1; float64 (4,).
    """
    n_decisions = sum(len(each.op) for each in trajectories)
    own = trajectories[group.rank :: group.size]
    optimizer.zero_grad()
    sums = torch.zeros(4, dtype=torch.float64)
    if own:
        sums += torch.tensor(_differentiate(policy, own, n_decisions, threads), dtype=torch.float64)
    sum_gradients(group, policy.parameters())
    group.sum_([sums])
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    loss, _, value_loss, _ = (sums / n_decisions).tolist()
    check_finite(loss=loss, value_loss=value_loss, norm_of_the_gradient=norm.item())
    optimizer.step()
    return sums.numpy()


def _differentiate(
    policy: Policy, trajectories: Sequence[Trajectory], n_decisions: int, threads: int
) -> list[float]:
    """Computes the gradients of the loss summed over some trajectories and divided by `n_decisions`.

    Returns:
        The sums that `_learn` returns.
    """
    sums = np.zeros(4)
    of_width = defaultdict(list)
    for each in trajectories:
        of_width[each.mask.shape[1]].append(each)
    for members in of_width.values():
        sums += _differentiate_equal(policy, members, n_decisions, threads)
    return sums.tolist()


def _differentiate_equal(
    policy: Policy, trajectories: Sequence[Trajectory], n_decisions: int, threads: int
) -> list[float]:
    """Does what `_differentiate` does for trajectories on equally many devices."""
    columns = {item.name: [getattr(each, item.name) for each in trajectories] for item in fields(Trajectory)}
    obs = {name: torch.from_numpy(np.concatenate(parts)).to(policy.device) for name, parts in columns.items()}
    logits, values = scores_in_threads(policy, obs, threads)
    log_probs = logits.log_softmax(1)
    target: Tensor = obs["target"]
    loss = -(log_probs + target.log()).logsumexp(1).mean()
    value_loss = F.smooth_l1_loss(values, obs["value"])
    n = len(values)
    total = (loss + 0.5 * value_loss) * (n / n_decisions)
    total.backward()  # type: ignore[no-untyped-call]
    accuracy = target.gather(1, log_probs.argmax(1, keepdim=True)).sum()
    return [loss.item() * n, accuracy.item(), value_loss.item() * n, float(n)]
