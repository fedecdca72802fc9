"""Repeats a placer with less memory while its placements overflow a device.

A placer knows the bytes that a unit holds for most of the step, but not the peak: tensors that arrive from
other devices take memory too, and the placer does not foresee them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.placers.units import per_unit
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.system.array_types import FloatArray, IntArray

CORRECTIONS = 6
MARGIN = 0.02
"""Share of a device's memory that a correction takes beyond the overflow."""
SHARES = tuple(share / 10 for share in range(9, 0, -1))
"""Shares of the memory that are tried one after another if the corrections find no feasible placement."""
MAX_TRIES = 1 + CORRECTIONS + len(SHARES)
"""Most placements that are tried, the first one included."""


class MemoryLimits:
    """The memory that a planner may count on; it shrinks with every try.

    Attributes:
        n_tries: number of the present try, 1 to `MAX_TRIES`.
        limit_bytes: memory of each device to plan with, (n_devices,); at first all of it.
    """

    def __init__(self, problem: Problem) -> None:
        self.n_tries = 1
        self.limit_bytes: FloatArray = problem.cluster.memory_bytes
        self.problem = problem
        self._whole = problem

    def tighten(self, peak_bytes: FloatArray) -> bool:
        """Reduces the limits for the next try.

        In the first `CORRECTIONS` tries, the limit of each device that overflowed is reduced by its overflow
        and a margin. Units that leave one device may overflow another, so this can fail. The later tries
        limit all devices to an ever smaller share of their memory.

        Args:
            peak_bytes: peak memory of the last placement on each device, (n_devices,).

        Returns:
            True if there is another try; False after `MAX_TRIES`.
        """
        if self.n_tries == MAX_TRIES:
            return False
        memory_bytes = self._whole.cluster.memory_bytes
        if self.n_tries <= CORRECTIONS:
            less_bytes = peak_bytes - memory_bytes + MARGIN * memory_bytes
            corrected_bytes = np.maximum(self.limit_bytes - less_bytes, 0.0)
            self.limit_bytes = np.where(peak_bytes > memory_bytes, corrected_bytes, self.limit_bytes)
        else:
            self.limit_bytes = SHARES[self.n_tries - CORRECTIONS - 1] * memory_bytes
        self.problem = self._whole.with_memory(self.limit_bytes)
        self.n_tries += 1
        return True


def retry_until_feasible(problem: Problem, place_within: Callable[[MemoryLimits], IntArray | None]) -> bool:
    """Repeats the search for a feasible placement with less and less memory.

    Args:
        place_within: places within the limits that it gets. It returns None to end the search, or the device
            of each op of a placement that overflowed, int (n_ops,).

    Returns:
        True if `place_within` ended the search; False if `MAX_TRIES` placements overflowed.
    """
    limits = MemoryLimits(problem)
    while True:
        overflowed = place_within(limits)
        if overflowed is None:
            return True
        if not limits.tighten(simulate_problem(problem, overflowed).peak_bytes):
            return False


def complete_placement(problem: Problem, device_of: IntArray) -> IntArray:
    """Places the units that have no device, one after another, each where most memory is free.

    An episode ends early where no device has memory for the next op, and it decides no unit that holds
    parameters or inputs alone.

    Args:
        device_of: device of each op, int (n_ops,); -1 where it has none. The ops of a unit agree.

    Returns:
        int (n_ops,) without -1. Memory is exceeded only where no device can hold the unit.
    """
    unit_device = per_unit(problem.graph, device_of)
    footprint_bytes = problem.footprint_bytes
    free_bytes = problem.cluster.memory_bytes.copy()
    placed = unit_device >= 0
    np.subtract.at(free_bytes, unit_device[placed], footprint_bytes[placed])
    for unit in np.flatnonzero(~placed):
        unit_device[unit] = free_bytes.argmax()
        free_bytes[unit_device[unit]] -= footprint_bytes[unit]
    return unit_device[problem.graph.unit_of]
