"""Repeated planning with less memory, where the last plan exceeded that of a device.

A planner knows the bytes that a unit holds for most of the step, not the peak: tensors that arrive from other
devices take memory as well, and are not foreseen.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.system.array_types import FloatArray, IntArray

CORRECTIONS = 6
MARGIN = 0.02
"""Share of a device's memory that a correction takes beyond the overflow."""
SHARES = tuple(share / 10 for share in range(9, 0, -1))
"""Shares of the memory that are tried one after another where corrections find nothing feasible."""
MAX_ATTEMPTS = 1 + CORRECTIONS + len(SHARES)
"""Plans made at most, the first one included."""


class MemoryLimits:
    """The memory that a planner may count on, less from attempt to attempt.

    Attributes:
        attempt: number of the present attempt, 1 to `MAX_ATTEMPTS`.
        limit_bytes: memory of each device to plan with, (n_devices,); at first all of it.
        problem: the problem with that memory.
    """

    def __init__(self, problem: Problem) -> None:
        self.attempt = 1
        self.limit_bytes: FloatArray = problem.cluster.memory_bytes
        self.problem = problem
        self._whole = problem

    def tighten(self, peak_bytes: FloatArray) -> bool:
        """Takes less memory for the next attempt.

        In the first attempts each device that overflows gets less by as much and a margin, as what is taken
        from one turns up on another; if that leads nowhere, all get ever smaller shares of what they have.

        Args:
            peak_bytes: what the last plan came to on each device, (n_devices,).

        Returns:
            Whether there is another attempt.
        """
        if self.attempt == MAX_ATTEMPTS:
            return False
        memory_bytes = self._whole.cluster.memory_bytes
        if self.attempt <= CORRECTIONS:
            less_bytes = peak_bytes - memory_bytes + MARGIN * memory_bytes
            corrected_bytes = np.maximum(self.limit_bytes - less_bytes, 0.0)
            self.limit_bytes = np.where(peak_bytes > memory_bytes, corrected_bytes, self.limit_bytes)
        else:
            self.limit_bytes = SHARES[self.attempt - CORRECTIONS - 1] * memory_bytes
        self.problem = self._whole.with_memory(self.limit_bytes)
        self.attempt += 1
        return True


def retry_until_feasible(problem: Problem, attempt: Callable[[MemoryLimits], IntArray | None]) -> bool:
    """Repeats an attempt at a feasible placement with less and less memory.

    Args:
        attempt: plans with the limits it gets; returns None to end, or the device of each op of a plan that
            overflowed, int (n_ops,).

    Returns:
        Whether an attempt ended it; else all `MAX_ATTEMPTS` were made.
    """
    limits = MemoryLimits(problem)
    while True:
        overflowed = attempt(limits)
        if overflowed is None:
            return True
        if not limits.tighten(simulate_problem(problem, overflowed).peak_bytes):
            return False
