"""The numba kernels of list scheduling into idle slots, on top of those that append.

In all kernels here `p` is a `ProblemArrays` and `slots` a `BusySlots`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agent.placers.heuristics.list_kernels import assign, may_take, place_leftovers
from envs.problem_arrays import OP_GAP_S
from envs.simulator.arrays import copy_clocks, new_timeline
from envs.simulator.program import inputs_ready
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel


class BusySlots(NamedTuple):
    """The busy intervals of devices, ascending and without overlap; the first `n_busy[d]` of row `d`
    count.
    """

    start: FloatArray  # (n_devices, n_ops)
    end: FloatArray  # (n_devices, n_ops) the rest after the op included
    n_busy: IntArray  # (n_devices,)


@kernel
def first_idle_s(slots, device, ready_s, seconds):
    """Finds from when on a device is idle for long enough.

    Args:
        slots: `BusySlots`.
        device: index, int.
        ready_s: the earliest start, seconds.
        seconds: how long.

    Returns:
        Seconds.
    """
    count = slots.n_busy[device]
    first, beyond = 0, count
    while first < beyond:  # the first interval that ends after `ready_s`
        middle = (first + beyond) // 2
        if slots.end[device, middle] <= ready_s:
            first = middle + 1
        else:
            beyond = middle
    start = ready_s
    for at in range(first, count):
        if start + seconds <= slots.start[device, at]:
            return start
        start = max(start, slots.end[device, at])
    return start


@kernel
def occupy(slots, device, start_s, end_s):
    """Adds an interval that overlaps none.

    Args:
        slots: `BusySlots`; written.
        device: index, int.
        start_s, end_s: seconds.
    """
    at = slots.n_busy[device]
    while at > 0 and slots.start[device, at - 1] > start_s:
        slots.start[device, at] = slots.start[device, at - 1]
        slots.end[device, at] = slots.end[device, at - 1]
        at -= 1
    slots.start[device, at], slots.end[device, at] = start_s, end_s
    slots.n_busy[device] += 1


@kernel(entry=True, allocates=True)
def schedule_into_slots(p, units, order, free_bytes):
    """Places each op, in a given order, where it finishes first, also before ops that were placed earlier.

    Links carry transfers in the order of the list. Ties go to the lower device index.

    Args:
        p: `ProblemArrays`.
        units: `Units`.
        order: indices of the running ops, every producer before its consumers, int64 (n_running,).
        free_bytes: memory that may be used, (n_devices,); written.

    Returns:
        Device of each op, int64 (n_ops,), and its start in seconds, (n_ops,).
    """
    n_ops, n_devices = p.op_seconds.shape
    device_of = np.full(n_ops, -1)
    timeline = new_timeline(n_ops, len(p.producer), n_devices)
    trial_free = np.empty_like(timeline.free)
    slots = BusySlots(
        np.zeros((n_devices, n_ops)), np.zeros((n_devices, n_ops)), np.zeros(n_devices, np.int64)
    )
    timeline.start[:] = 0.0
    timeline.finish[:] = 0.0
    for op in order:
        # Some device may always take an op, and times are finite: one is chosen.
        chosen, earliest = -1, np.inf
        for device in range(n_devices):
            if not may_take(units, op, device, device_of, free_bytes):
                continue
            copy_clocks(p, timeline.free, trial_free)
            ready = inputs_ready(p, device_of, timeline, trial_free, op, device, False)
            seconds = p.op_seconds[op, device]
            rest = p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0
            finish = first_idle_s(slots, device, ready, seconds + rest) + seconds if seconds > 0.0 else ready
            if finish < earliest:
                chosen, earliest = device, finish
        if device_of[op] < 0:
            assign(units, units.of_op[op], chosen, device_of, free_bytes)
        ready = inputs_ready(p, device_of, timeline, timeline.free, op, chosen, True)
        seconds = p.op_seconds[op, chosen]
        start = ready
        if seconds > 0.0:
            end = seconds + p.gaps[OP_GAP_S]
            start = first_idle_s(slots, chosen, ready, end)
            occupy(slots, chosen, start, start + end)
            timeline.free[chosen] = max(timeline.free[chosen], start + end)
        timeline.start[op], timeline.finish[op] = start, start + seconds
    place_leftovers(units, device_of, free_bytes)
    return device_of, timeline.start
