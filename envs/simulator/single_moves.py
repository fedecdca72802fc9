"""The step time after each single move: one placement unit on another device."""

from __future__ import annotations

import numpy as np

from envs.problem import Problem
from envs.simulator.resume import ROUNDING, commit, new_pair, run_moved
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel


def single_move_costs(problem: Problem, device_of: IntArray, limit_s: float = np.inf) -> FloatArray:
    """Simulates every placement with one placement unit moved.

    Args:
        device_of: a complete placement, int64 (n_ops,); not checked.
        limit_s: seconds by which a step of interest may be longer than that of the placement.

    Returns:
        Seconds, (n_units, n_devices); infinity where the step takes longer than is of interest and that was
        seen early. The entry of the device that a unit is on is the step time of the placement.
    """
    graph, n_devices = problem.graph, problem.n_devices
    device_of = np.array(device_of, dtype=np.int64)
    seconds = problem.op_seconds[np.arange(graph.n_ops), device_of]
    total_s = np.empty((len(graph.units), n_devices))
    simulate_moves(
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


@kernel(entry=True)
def simulate_moves(p, unit_ptr, unit_item, device_of, pair, work_s, limit_s, total_s):
    """Moves each unit to each device and back.

    Args:
        unit_ptr, unit_item: ops of each unit, int64 (n_units + 1,) and (n_ops,).
        device_of: a complete placement; written, and restored.
        pair: new `SimulationPair`; written.
        work_s: work of each device, seconds, (n_devices,); written, and restored up to rounding.
        limit_s: see `single_move_costs`.
        total_s: step times in seconds, (n_units, n_devices); written.
    """
    stay_s = run_moved(p, device_of, pair, np.int64(0), np.inf, work_s)
    safe_s = (stay_s + limit_s) * (1.0 + ROUNDING)
    commit(pair)
    for unit in range(len(unit_ptr) - 1):
        first, last = unit_ptr[unit], unit_ptr[unit + 1]
        source = device_of[unit_item[first]]
        for device in range(total_s.shape[1]):
            if device == source:
                total_s[unit, device] = stay_s
                continue
            for k in range(first, last):
                op = unit_item[k]
                device_of[op] = device
                work_s[source] -= p.op_seconds[op, source]
                work_s[device] += p.op_seconds[op, device]
            total_s[unit, device] = run_moved(p, device_of, pair, unit_item[first], safe_s, work_s)
            for k in range(first, last):
                op = unit_item[k]
                device_of[op] = source
                work_s[source] += p.op_seconds[op, source]
                work_s[device] -= p.op_seconds[op, device]
