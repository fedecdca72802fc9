"""A rollout buffer with advantages in each graph's own units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableDictRolloutBufferSamples

from agent.training.reinforcement.recording import Decisions
from agent.training.workers import SOLO, WorkerGroup, gather_columns

JOINED = ("values", "log_probs", "advantages", "returns")
"""Columns that every worker holds of all decisions, float32."""
HALVINGS = 30
"""Halvings of an interval, until it is a rounding error wide."""
LEAST_SHARE = 0.3
"""No graph's advantages are scaled up further than to this share of the median spread of graphs."""


class PerGraphRolloutBuffer(MaskableDictRolloutBuffer):  # type: ignore[misc]
    """Compares a decision with those that other episodes took on the same op, in units of the graph's spread.

    How far a value function is off depends on the op more than on what was decided before it, and is several
    times what one decision is worth; the difference between episodes of one graph is free of it.

    What a good placement gains differs tenfold between families: a recurrent cell's decisions swing the step
    time, a residual network's hardly do. Normalised over a batch, the gradient would come from the former.

    Source: several episodes of one problem as each other's baseline, POMO (Kwon et al. 2020, arXiv
    2010.16011), here on top of generalised advantage estimation.

    Several workers hold a joint rollout: each has what was observed and done in its own episodes, and all
    have the numbers that the losses are made of. Advantages and minibatches are those of one worker that runs
    all episodes, in the order of the ranks.

    Args:
        share: of the decisions, which is learned from. Those with great advantages are likelier chosen, and
            the others weigh more in return: that keeps the expected gradient, and most of what it says.
        advantage: "op" for both; "graph" for the units alone; "batch" for the units of the whole rollout.
        group: the workers; each has as many episodes.
    """

    observations: dict[str, NDArray[Any]]

    def __init__(
        self,
        *positional: Any,
        advantage: str = "op",
        share: float = 1.0,
        group: WorkerGroup = SOLO,
        **named: Any,
    ) -> None:
        super().__init__(*positional, **named)
        self._share = share
        self._advantage = advantage
        self._group = group

    def begin(self, n_steps: int) -> Decisions:
        """Empties the buffer; returns its rows for the decisions of a rollout of `n_steps`."""
        self.buffer_size = n_steps
        self.reset()
        shape, seen = self.rewards.shape, self.observations
        return Decisions(
            problem=seen["problem"].reshape(shape),
            op=seen["op"].reshape(shape),
            devices=seen["devices"].reshape(*seen["mask"].shape, -1),
            mask=seen["mask"],
            action=self.actions.reshape(shape),
            log_prob=self.log_probs,
            value=self.values,
            reward=self.rewards,
            starts=self.episode_starts,
        )

    def finish(self, last_values: torch.Tensor, ended: NDArray[np.bool_]) -> None:
        """Computes what follows from the decisions of a rollout.

        Args:
            last_values: of what is observed after the last decisions, float32 (n_envs, 1).
            ended: whether these ended an episode, bool (n_envs,).
        """
        self.action_masks[:] = self.observations["mask"]
        self.pos, self.full = self.buffer_size, True
        self.compute_returns_and_advantage(last_values, ended)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Subtracts the others' mean on the same op from each advantage, and scales within each graph."""
        super().compute_returns_and_advantage(last_values, dones)
        shape = self.advantages.shape
        problem, op = (
            gather_columns(self._group, self.observations[name].reshape(shape).astype(np.int64))
            for name in ("problem", "op")
        )
        if self._group.size > 1:
            for name in JOINED:
                setattr(self, name, gather_columns(self._group, getattr(self, name)))
        advantages: NDArray[np.float32] = self.advantages
        if self._advantage == "op":
            advantages = less_others(problem * (op.max() + 1) + op, advantages)
        group = np.zeros_like(problem) if self._advantage == "batch" else problem
        self._weigh(normalise_within(group, advantages))

    def _weigh(self, advantages: NDArray[np.float32]) -> None:
        """Chooses the decisions to learn from, and weighs their advantages so that sums stay unbiased."""
        chances = chances_of(advantages, self._share)
        self._is_chosen = np.random.random(chances.shape) < chances  # noqa: NPY002 (as SB3 does)
        weighed = advantages / np.maximum(chances, np.float32(1e-6))
        self.advantages: NDArray[np.float32] = weighed.astype(np.float32)

    def get(self, batch_size: int | None = None) -> Iterator[MaskableDictRolloutBufferSamples]:
        """Yields random minibatches of the decisions of a joint rollout that are learned from.

        With several workers, observations, actions and masks are those of the own decisions, and all else is
        of all decisions, sorted by the worker that took them.

        Args:
            batch_size: decisions of a minibatch, over all workers.
        """
        n_own = self.buffer_size * self.n_envs
        indices = np.random.permutation(np.flatnonzero(self._is_chosen.T))  # noqa: NPY002 (as SB3 does)
        step = batch_size or len(indices)
        for first in range(0, len(indices), step):
            chosen = indices[first : first + step]
            worker = chosen // n_own
            own = chosen[worker == self._group.rank] - n_own * self._group.rank
            yield self._samples(own, chosen[np.argsort(worker, kind="stable")])

    def _samples(self, own: NDArray[np.int64], chosen: NDArray[np.int64]) -> MaskableDictRolloutBufferSamples:
        """A minibatch: the own decisions, and those of all workers, counted place by place as SB3 does."""

        def rows(columns: NDArray[Any], which: NDArray[np.int64]) -> Any:
            return self.to_torch(columns[which % self.buffer_size, which // self.buffer_size])

        values, log_probs, advantages, returns = (rows(getattr(self, name), chosen) for name in JOINED)
        return MaskableDictRolloutBufferSamples(
            observations={name: rows(columns, own) for name, columns in self.observations.items()},
            actions=rows(self.actions, own),
            old_values=values,
            old_log_prob=log_probs,
            advantages=advantages,
            returns=returns,
            action_masks=rows(self.action_masks, own).reshape(-1, self.mask_dims),
        )


def chances_of(advantages: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """Computes chances in proportion to the size of advantages, at most 1, whose mean is a given share.

    It is the choice of least variance for an unbiased sum. Source: importance sampling by the norm of the
    gradient (Katharopoulos and Fleuret 2018, arXiv 1803.00942).

    Args:
        advantages: float32, any shape.
        share: above 0, at most 1.
    """
    sizes = np.abs(advantages)
    if share >= 1 or not sizes.any():
        return np.full_like(sizes, min(share, 1.0))
    low, high = 0.0, float(sizes.max()) / share
    for _ in range(HALVINGS):
        unit = (low + high) / 2
        low, high = (unit, high) if np.minimum(sizes / unit, 1).mean() > share else (low, unit)
    return np.minimum(sizes / np.float32(high), np.float32(1))


def less_others(group: NDArray[np.int64], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subtracts from each value the mean of the other values of its group, if there are any.

    Args:
        group: non-negative group of each value; any shape, that of `values`.
    """
    _, member, counts = np.unique(group.ravel(), return_inverse=True, return_counts=True)
    flat = values.ravel().astype(np.float64)
    others = np.maximum(counts - 1, 1)[member]
    mean = (np.bincount(member, flat)[member] - flat) / others
    return np.asarray((flat - mean).reshape(values.shape), dtype=np.float32)


def normalise_within(group: NDArray[np.int64], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Subtracts each group's mean and divides by its standard deviation.

    Args:
        group: non-negative group of each value; any shape, that of `values`.
    """
    _, member, counts = np.unique(group.ravel(), return_inverse=True, return_counts=True)
    flat = values.ravel().astype(np.float64)
    mean = np.bincount(member, flat) / counts
    centred = flat - mean[member]
    deviation = np.sqrt(np.bincount(member, centred**2) / counts)
    several = deviation[counts > 1]
    least = (LEAST_SHARE * np.median(several) if len(several) else 0.0) + 1e-8
    scaled = centred / np.maximum(deviation, least)[member]
    return np.asarray(scaled.reshape(values.shape), dtype=np.float32)
