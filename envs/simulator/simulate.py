"""Simulates one training step under a placement.

`tests/specification/simulator.py` defines the step in plain Python.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from envs.problem_arrays import SENDS_PER_TENSOR
from envs.simulator.arrays import Timeline, empty_timeline
from envs.simulator.kernels import run_many
from envs.simulator.memory import memory_curve
from graphs.system.array_types import FloatArray, IntArray

if TYPE_CHECKING:
    from envs.problem import Problem

ALONE_OPS = 8_192
"""Ops, those of all placements together, below which one core is through before threads have begun."""
CHUNKS_PER_THREAD = 4
"""Chunks that `simulate_many` cuts the placements into: a core that is busy elsewhere delays only one."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SimulatedStep:
    """A simulated training step, of one batch or pipelined.

    Attributes:
        total_s: finish of the last op, seconds.
        busy_s: seconds each device computes, without what copies slow it, (n_devices,).
        peak_bytes: greatest memory in use on each device, (n_devices,).
        fits: true if the placement is feasible: no device needs more memory than it has.
    """

    total_s: float
    busy_s: FloatArray
    peak_bytes: FloatArray
    fits: bool


@dataclass(frozen=True, eq=False, kw_only=True)
class StepTime(SimulatedStep):
    """One simulated training step.

    Attributes:
        start_s, finish_s: when each op runs, (n_ops,); 0 for parameters and inputs.
    """

    start_s: FloatArray
    finish_s: FloatArray
    transfer_bytes: float


def simulate_problem(problem: Problem, device_of: IntArray) -> StepTime:
    """Simulates one training step without checking the placement; ops at -1 are unplaced.

    Args:
        device_of: device index of each op, int64 (n_ops,).
    """
    arrays = problem.arrays
    timeline = _new_timeline(problem)
    total_s, peak = np.zeros(1), np.zeros((1, problem.n_devices))
    run_many(arrays, device_of[None], timeline, True, total_s, peak)
    present = device_of >= 0
    seconds = problem.op_seconds[np.flatnonzero(present), device_of[present]]
    busy = np.bincount(device_of[present], weights=seconds, minlength=problem.n_devices).astype(np.float64)
    return StepTime(
        total_s=float(total_s[0]),
        start_s=timeline.start,
        finish_s=timeline.finish,
        busy_s=busy,
        transfer_bytes=_transfer_bytes(problem, device_of, timeline.sent),
        peak_bytes=peak[0],
        fits=bool((peak[0] <= arrays.memory).all()),
    )


def simulate_many(
    problem: Problem, devices_of: IntArray, *, memory: bool = True
) -> tuple[FloatArray, FloatArray]:
    """Simulates many placements of one problem, on all cores where there is enough to do.

    Args:
        devices_of: one placement a row, int64 (n, n_ops); not checked, ops at -1 are unplaced.
        memory: true to track memory; if not, the bytes are 0.

    Returns:
        Step times in seconds, (n,), and peak bytes, (n, n_devices).
    """
    total_s = np.empty(len(devices_of))
    peak = np.zeros((len(devices_of), problem.n_devices))
    arrays = problem.arrays

    def run_rows(low: int, high: int) -> None:
        rows, timeline = slice(low, high), _new_timeline(problem)
        run_many(arrays, devices_of[rows], timeline, memory, total_s[rows], peak[rows])

    if devices_of.size < ALONE_OPS:
        run_rows(0, len(devices_of))
        return total_s, peak
    n_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    n_chunks = min(CHUNKS_PER_THREAD * n_threads, len(devices_of))
    cuts = np.linspace(0, len(devices_of), n_chunks + 1).astype(int)
    with ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(run_rows, cuts[:-1], cuts[1:]))
    return total_s, peak


def step_time_s(problem: Problem, device_of: IntArray) -> float:
    """Simulates the step time alone, in seconds; unchecked and without memory, for search loops.

    Args:
        device_of: device index of each op, int64 (n_ops,).
    """
    return float(step_times_s(problem, device_of[None])[0])


def step_times_s(problem: Problem, devices_of: IntArray) -> FloatArray:
    """Simulates step times, in seconds, (n,), as `step_time_s` does, one after the other.

    Args:
        devices_of: one placement a row, int64 (n, n_ops).
    """
    total_s, peak = np.zeros(len(devices_of)), np.zeros((len(devices_of), 0))
    run_many(problem.arrays, devices_of, _new_timeline(problem), False, total_s, peak)
    return total_s


def simulated_memory(problem: Problem, device_of: IntArray, n_parts: int) -> FloatArray:
    """Simulates the most bytes that each device holds in each of equally long parts, (n_devices, n_parts).

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.
    """
    timeline, total_s = _new_timeline(problem), np.zeros(1)
    run_many(problem.arrays, device_of[None], timeline, False, total_s, np.zeros((1, 0)))
    curve = np.zeros((problem.n_devices, n_parts))
    memory_curve(problem.arrays, device_of, timeline, total_s[0], curve)
    return curve


def _new_timeline(problem: Problem) -> Timeline:
    return empty_timeline(problem.graph.n_ops, problem.graph.n_tensors, problem.n_devices)


def _transfer_bytes(problem: Problem, device_of: IntArray, sent_s: FloatArray) -> float:
    sent = sent_s.reshape(problem.graph.n_tensors, problem.n_devices) >= 0
    is_source = np.zeros_like(sent)
    source: Sequence[int] = device_of[problem.graph.tensor_producer].tolist()
    is_source[np.arange(len(is_source)), source] = True
    once = problem.arrays.rules[SENDS_PER_TENSOR]
    times = (sent & is_source).sum(axis=1) if once else (sent & ~is_source).sum(axis=1)
    return float((times * problem.graph.tensor_bytes).sum())
