"""Kernels that time placements under the schedule of the cluster; like all kernels, they check nothing."""

from __future__ import annotations

from envs.problem_arrays import PROGRAM, SCHEDULE
from envs.simulator.arrays import clear
from envs.simulator.fifo import run_fifo
from envs.simulator.memory import peak_memory
from envs.simulator.program import run_program
from graphs.system.jit import kernel


@kernel
def run(p, device_of, timeline):
    """Simulates a placement, complete or partial, by the cluster's schedule; returns the step time, seconds.

    Args:
        timeline: written.
    """
    clear(timeline)
    if p.rules[SCHEDULE] == PROGRAM:
        return run_program(p, device_of, timeline)
    return run_fifo(p, device_of, timeline)


@kernel(entry=True)
def run_many(p, devices_of, timeline, track_memory, total_s, peak):
    """Simulates many placements one after the other.

    Args:
        devices_of: device of each op, one placement a row, int64 (n, n_ops); -1 = unplaced.
        timeline: that of the last row; written.
        track_memory: whether to fill `peak`, bool.
        total_s: step times in seconds, (n,); written.
        peak: greatest number of bytes held at once, (n, n_devices); written; not read without `track_memory`.
    """
    for row in range(len(devices_of)):
        total_s[row] = run(p, devices_of[row], timeline)
        if track_memory:
            peak_memory(p, devices_of[row], timeline, total_s[row], peak[row])
