"""A policy that learns from trajectories: soft targets for its devices, and the values of states."""

from __future__ import annotations

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
from agent.training.performance.parallel import scores_in_threads

TRAJECTORIES_PER_STEP = 8
"""Trajectories in one gradient step: few enough graphs to encode, enough decisions to average."""


class ImitationLearner:
    """Lets a policy learn from trajectories.

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
    ) -> tuple[dict[str, float], int]:
        """Makes one pass over all trajectories, in a sequence that depends on the `number` of the pass alone.

        Args:
            threads: how many share the scoring.

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
            totals += _learn(policy, optimizer, chosen, max_grad_norm, threads)
        loss, accuracy, value_loss, decisions = totals
        n = max(decisions, 1.0)
        return {
            "update/imitation_loss": loss / n,
            "training/imitation_accuracy": accuracy / n,
            "update/imitation_value_loss": value_loss / n,
        }, int(decisions)


def _learn(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    trajectories: Sequence[Trajectory],
    max_grad_norm: float,
    threads: int,
) -> NDArray[np.float64]:
    """Makes one gradient step.

    Returns:
        Sums over the decisions of loss, soft target of the first choice, value loss and 1; float64 (4,).
    """
    columns = {item.name: [getattr(each, item.name) for each in trajectories] for item in fields(Trajectory)}
    obs = {name: torch.from_numpy(np.concatenate(parts)).to(policy.device) for name, parts in columns.items()}
    logits, values = scores_in_threads(policy, obs, threads)
    log_probs = logits.log_softmax(1)
    target: Tensor = obs["target"]
    loss = -(log_probs + target.log()).logsumexp(1).mean()
    value_loss = F.mse_loss(values, obs["value"])
    optimizer.zero_grad()
    (loss + 0.5 * value_loss).backward()  # type: ignore[no-untyped-call]
    norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), max_grad_norm)
    check_finite(loss=loss.item(), value_loss=value_loss.item(), norm_of_the_gradient=norm.item())
    optimizer.step()
    n = len(values)
    accuracy = target.gather(1, log_probs.argmax(1, keepdim=True)).sum()
    return np.array([loss.item() * n, accuracy.item(), value_loss.item() * n, n])
