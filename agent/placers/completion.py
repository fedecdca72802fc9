"""Completion of placements: a device for every unit that an episode left without one."""

from __future__ import annotations

import numpy as np

from agent.placers.units import per_unit
from envs.problem import Problem
from graphs.system.array_types import IntArray


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
