"""The time that the ops of a placement unit wait for each other in a simulated step."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from envs.problem import Problem
from envs.simulator.copies import TO_ALL, simulated_copies
from envs.simulator.simulate import simulate_problem
from graphs.system.array_types import FloatArray, IntArray


def unit_waiting_s(problem: Problem, device_of: IntArray) -> FloatArray:
    """Measures how long each placement unit holds up its own ops.

    While an op of a unit runs, or its device waits for the op's inputs, a later op of the unit may have its
    inputs already: on another device it could run. Updates are left out, as they go with their parameters.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.

    Returns:
        Seconds of each unit in which an op of it is ready and an earlier one has not ended, (n_units,).
    """
    graph, step = problem.graph, simulate_problem(problem, device_of)
    ready_s = _ready_s(problem, device_of, step.finish_s)
    is_update = np.array([phase == "optimizer" for phase in graph.phases], dtype=bool)
    runs = np.flatnonzero((step.finish_s > step.start_s) & ~is_update)
    runs = runs[np.lexsort((runs, step.start_s[runs]))].tolist()
    free_s, held_from_s = defaultdict[int, float](float), {}
    for op in runs:
        device = int(device_of[op])
        held_from_s[op] = free_s[device]
        free_s[device] = float(step.finish_s[op])
    waiting_s = np.zeros(len(graph.units))
    first_ready_s = defaultdict[int, float](lambda: math.inf)  # of the later ops of each unit
    for op in reversed(runs):
        unit = int(graph.unit_of[op])
        since_s = max(held_from_s[op], first_ready_s[unit])
        waiting_s[unit] += max(0.0, float(step.finish_s[op]) - since_s)
        first_ready_s[unit] = min(first_ready_s[unit], float(ready_s[op]))
    return waiting_s


def _ready_s(problem: Problem, device_of: IntArray, finish_s: FloatArray) -> FloatArray:
    """Returns when the inputs of each op are on its device, (n_ops,)."""
    graph = problem.graph
    arrival_s = {(copy.tensor, copy.target): copy.arrival_s for copy in simulated_copies(problem, device_of)}
    ready_s = np.zeros(graph.n_ops)
    for tensor, producer in enumerate(graph.tensor_producer.tolist()):
        for reader in graph.consumers.row(tensor).tolist():
            to_all = arrival_s.get((tensor, TO_ALL), finish_s[producer])
            is_here = device_of[reader] == device_of[producer]
            there_s = finish_s[producer] if is_here else arrival_s.get((tensor, device_of[reader]), to_all)
            ready_s[reader] = max(ready_s[reader], there_s)
    return ready_s
