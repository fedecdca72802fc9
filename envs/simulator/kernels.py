"""The simulator's numba loops: arrays in, arrays out, nothing checked."""

from __future__ import annotations

from envs.simulator.arrays import FIFO, PROGRAM, ProblemArrays, Timeline, clear, copy, new_timeline, run_op
from envs.simulator.fifo import run_fifo
from envs.simulator.jit import kernel
from envs.simulator.memory import peak_memory
from envs.simulator.program import inputs_ready, run_program
from envs.simulator.resume import Pair, new_pair, run_moved, stand, tried

__all__ = [
    "FIFO",
    "PROGRAM",
    "Pair",
    "ProblemArrays",
    "Timeline",
    "copy",
    "inputs_ready",
    "new_pair",
    "new_timeline",
    "peak_memory",
    "run",
    "run_many",
    "run_moved",
    "run_op",
    "stand",
    "tried",
]


@kernel
def run(p, device_of, timeline):
    """Simulate a complete or partial placement under the cluster's schedule; returns the step time."""
    clear(timeline)
    if p.rules[0] == PROGRAM:
        return run_program(p, device_of, timeline)
    return run_fifo(p, device_of, timeline)


@kernel(entry=True)
def run_many(p, devices_of, timeline, track_memory, total_s, peak):
    """Time each row of `devices_of` (n, n_ops) into `total_s` (n,); its memory into `peak` (n, n_devices).

    Args:
        timeline: that of the last row afterwards.
    """
    for row in range(len(devices_of)):
        total_s[row] = run(p, devices_of[row], timeline)
        if track_memory:
            peak_memory(p, devices_of[row], timeline, total_s[row], peak[row])
