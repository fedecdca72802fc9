"""What every single deviation from a placement does to the step time."""

from __future__ import annotations

import numpy as np

from envs.problem import Problem
from envs.simulator.kernels import new_pair
from envs.simulator.single_move_kernels import deviate
from graphs.op_graph import FloatArray, IntArray


def single_move_costs(problem: Problem, device_of: IntArray, limit_s: float = np.inf) -> FloatArray:
    """Step times with one decision unit moved, for every unit and device.

    Args:
        device_of: a complete placement, int64 (n_ops,); not checked.
        limit_s: how much longer than the placement's own a step time may be and still be of interest.

    Returns:
        Seconds, (n_units, n_devices); infinity where a step takes longer than is of interest and that was
        seen early. Where a unit stays, the step time of the placement.
    """
    graph, n_devices = problem.graph, problem.n_devices
    device_of = np.array(device_of, dtype=np.int64)
    seconds = problem.op_seconds[np.arange(graph.n_ops), device_of]
    total_s = np.empty((len(graph.units), n_devices))
    deviate(
        problem.arrays,
        graph.units.ptr,
        graph.units.items,
        device_of,
        new_pair(graph.n_ops, graph.n_tensors, n_devices),
        np.bincount(device_of, seconds, minlength=n_devices),
        limit_s,
        total_s,
    )
    return total_s
