"""Kernels that time placements under the schedule of the cluster; like all kernels, they check nothing.

Under schedule `program`, devices run their ops in program order, in one pass.
"""

from __future__ import annotations

from envs.problem_arrays import PROGRAM, SCHEDULE
from envs.simulator.arrays import clear, run_op
from envs.simulator.fifo import run_fifo
from envs.simulator.memory import peak_memory
from envs.simulator.transfers import send
from graphs.system.jit import kernel


@kernel
def inputs_ready(p, device_of, timeline, free, op, device, commit, log=None):
    """Issues the missing copies of an op's inputs to a device; returns when all are there, in seconds.

    Inputs whose producer is unplaced are available at time 0.

    Args:
        timeline: all placed producers have finished in it; with `commit`, `sent` and `arrival` are written.
        free: written.
        commit: true if the transfers take place, bool; else only `free` is written.
    """
    n_devices = len(p.memory)
    ready = 0.0
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        producer = p.producer[tensor]
        source = device_of[producer]
        if source < 0:
            continue
        if source == device:
            arrival = timeline.finish[producer]
        else:
            arrival = timeline.arrival[tensor * n_devices + device]
            if arrival < 0.0:
                arrival = send(p, timeline, free, tensor, source, device, commit, log)
        if arrival > ready:
            ready = arrival
    return ready


@kernel(inline=True)
def issue(p, device_of, timeline, op, log):
    """Runs the next op in program order, and returns its finish in seconds.

    A source or an unplaced op takes no time.

    Args:
        timeline: written.
    """
    device = device_of[op]
    if p.is_source[op] or device < 0:
        timeline.start[op] = timeline.finish[op] = 0.0
        return 0.0
    ready = inputs_ready(p, device_of, timeline, timeline.free, op, device, True, log)
    return run_op(p, timeline, op, device, ready)


@kernel
def run_program(p, device_of, timeline):
    """Simulates all ops, and returns the step time in seconds.

    Devices run theirs in program order, links carry copies in the order of first need.

    Args:
        timeline: empty before; written.
    """
    total = 0.0
    for op in range(len(device_of)):
        total = max(total, issue(p, device_of, timeline, op, None))
    return total


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
        timeline: timeline of the last row; written.
        track_memory: true to fill `peak`, bool.
        total_s: step times in seconds, (n,); written.
        peak: greatest number of bytes held at once, (n, n_devices); written with `track_memory`.
    """
    for row in range(len(devices_of)):
        total_s[row] = run(p, devices_of[row], timeline)
        if track_memory:
            peak_memory(p, devices_of[row], timeline, total_s[row], peak[row])
