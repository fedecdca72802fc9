"""A rollout buffer with advantages in each graph's own units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableDictRolloutBufferSamples

from agent.learn.rollout import Decisions

HALVINGS = 30
"""Halvings of an interval, until it is a rounding error wide."""
MOST_ERROR = 1.0
"""Greatest error of a value that the critic learns from in an update, in single-device step times. A bad
placement on slow links takes hundreds of these, and its gradient would leave the others none."""
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

    Args:
        share: share of the decisions that is learned from. Those with great advantages are likelier chosen,
            and the others weigh more in return: that keeps the expected gradient, and most of what it says.
        advantage: "op" for both; "graph" for the units alone; "batch" for the units of the whole rollout.
    """

    observations: dict[str, NDArray[Any]]

    def __init__(self, *positional: Any, advantage: str = "op", share: float = 1.0, **named: Any) -> None:
        super().__init__(*positional, **named)
        self._share = share
        self._advantage = advantage

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
            last_values: values of what is observed after the last decisions, float32 (n_envs, 1).
            ended: True where these ended an episode, bool (n_envs,).
        """
        self.action_masks[:] = self.observations["mask"]
        self.pos, self.full = self.buffer_size, True
        self.compute_returns_and_advantage(last_values, ended)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Subtracts the others' mean on the same op from each advantage, and scales within each graph."""
        super().compute_returns_and_advantage(last_values, dones)
        advantages: NDArray[np.float32] = self.advantages
        problem, op = (
            self.observations[name].reshape(advantages.shape).astype(np.int64) for name in ("problem", "op")
        )
        if self._advantage == "op":
            advantages = less_others(problem * (op.max() + 1) + op, advantages)
        group = np.zeros_like(problem) if self._advantage == "batch" else problem
        advantages = normalise_within(group, advantages)
        chances = chances_of(advantages, self._share)
        self._chosen = draw_systematically(chances.T.ravel())
        weighed = advantages / np.maximum(chances, np.float32(1e-6))  # so that sums stay unbiased
        self.advantages: NDArray[np.float32] = weighed.astype(np.float32)

    def get(self, batch_size: int | None = None) -> Iterator[MaskableDictRolloutBufferSamples]:
        """Yields minibatches of the decisions that are learned from, in as many of equal size.

        Their number depends on that of the decisions alone, so that several workers make as many updates.
        Each is of few graphs, which the policy encodes: decisions are drawn graph by graph, the graphs and
        then the minibatches in random order.

        Args:
            batch_size: decisions of a minibatch, roughly; all by default.
        """
        n_decisions = self.buffer_size * self.n_envs
        n_learned = n_decisions * self._share
        n_batches = max(round(n_learned / (batch_size or n_learned)), 1)
        is_enough = len(self._chosen) >= n_batches  # else hardly any decision has an advantage
        indices = np.random.permutation(self._chosen if is_enough else n_decisions)  # noqa: NPY002 (as SB3)
        problem = self._rows(self.observations["problem"], indices).ravel().astype(np.int64)
        rank = np.random.permutation(int(problem.max()) + 1)  # noqa: NPY002
        parts = np.array_split(indices[np.argsort(rank[problem], kind="stable")], n_batches)
        for number in np.random.permutation(n_batches):  # noqa: NPY002
            yield self._samples(parts[number])

    def _rows(self, columns: NDArray[Any], chosen: NDArray[np.int64]) -> NDArray[Any]:
        """Returns the rows of decisions, counted place by place as SB3 does."""
        return columns[chosen % self.buffer_size, chosen // self.buffer_size]

    def _samples(self, chosen: NDArray[np.int64]) -> MaskableDictRolloutBufferSamples:
        """Makes a minibatch of decisions."""

        def rows(columns: NDArray[Any]) -> Any:
            return self.to_torch(self._rows(columns, chosen))

        values = rows(self.values)
        return MaskableDictRolloutBufferSamples(
            observations={name: rows(columns) for name, columns in self.observations.items()},
            actions=rows(self.actions),
            old_values=values,
            old_log_prob=rows(self.log_probs),
            advantages=rows(self.advantages),
            returns=values + (rows(self.returns) - values).clamp(-MOST_ERROR, MOST_ERROR),
            action_masks=rows(self.action_masks).reshape(-1, self.mask_dims),
        )


def draw_systematically(chances: NDArray[np.float32]) -> NDArray[np.int64]:
    """Draws each index with its chance, and as many in all as the chances sum to, up to rounding.

    Source: systematic sampling (Madow 1949), here of a random permutation.

    Args:
        chances: probabilities, (n,).

    Returns:
        Indices, int64.
    """
    order = np.random.permutation(len(chances))  # noqa: NPY002 (as SB3 does)
    sums = np.cumsum(chances[order], dtype=np.float64) + np.random.random()  # noqa: NPY002
    return order[np.diff(np.floor(sums), prepend=0.0) > 0]


def chances_of(advantages: NDArray[np.float32], share: float) -> NDArray[np.float32]:
    """Computes chances in proportion to the size of advantages, at most 1, whose mean is a given share.

    It is the choice of least variance for an unbiased sum. Source: importance sampling by the norm of the
    gradient (Katharopoulos and Fleuret 2018, arXiv 1803.00942).

    Args:
        advantages: float32, any shape.
        share: mean of the chances, above 0, at most 1.
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
