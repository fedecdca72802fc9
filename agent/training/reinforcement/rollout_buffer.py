"""A rollout buffer with advantages in each graph's own units."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer

LEAST_SHARE = 0.1
"""No graph's advantages are scaled up further than to this share of the mean spread over graphs."""


class PerGraphRolloutBuffer(MaskableDictRolloutBuffer):  # type: ignore[misc]
    """Compares a decision with those that other episodes took on the same op, in units of the graph's spread.

    How far a value function is off depends on the op more than on what was decided before it, and is several
    times what one decision is worth; the difference between episodes of one graph is free of it.

    What a good placement gains differs tenfold between families: a recurrent cell's decisions swing the step
    time, a residual network's hardly do. Normalised over a batch, the gradient would come from the former.

    Source: several episodes of one problem as each other's baseline, POMO (Kwon et al. 2020, arXiv
    2010.16011), here on top of generalised advantage estimation.

    Args:
        advantage: "op" for both; "graph" for the units alone; "batch" for the units of the whole rollout.
    """

    def __init__(self, *positional: Any, advantage: str = "op", **named: Any) -> None:
        super().__init__(*positional, **named)
        self._advantage = advantage

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[np.bool_]) -> None:
        """Subtracts the others' mean on the same op from each advantage, and scales within each graph."""
        super().compute_returns_and_advantage(last_values, dones)
        advantages: NDArray[np.float32] = self.advantages
        problem = self.observations["problem"].reshape(advantages.shape).astype(np.int64)
        op = self.observations["op"].reshape(advantages.shape)
        if self._advantage == "op":
            advantages = less_others(problem * (op.max() + 1) + op, advantages)
        group = np.zeros_like(problem) if self._advantage == "batch" else problem
        self.advantages: NDArray[np.float32] = normalise_within(group, advantages)


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
    least = LEAST_SHARE * np.sqrt(np.mean(centred**2)) + 1e-8
    scaled = centred / np.maximum(deviation, least)[member]
    return np.asarray(scaled.reshape(values.shape), dtype=np.float32)
