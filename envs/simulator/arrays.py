"""The timeline that a simulation fills in, and the kernels that every schedule shares.

An op whose device is -1 is unplaced: it does not run, and its outputs are available at time 0. Tensor `t` at
device `d` has slot `t * n_devices + d`. If the cluster sends per tensor, the slot of the producer's own
device holds the end of the one transfer that serves all devices.

When devices, the host thread and links are free is kept in one array of clocks, so that a trial copies one
array; `ProblemArrays` says which clock is whose.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.problem_arrays import ISSUE_S, N_CLOCKS, NEXT_ISSUE_S, OP_GAP_S, OVERLAP_CLOCKS
from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel

UNSENT = -1.0
"""The value of a slot whose tensor was not sent to the device."""


class Timeline(NamedTuple):
    """The result of one simulation; seconds from the start of the step, `UNSENT` where nothing was sent."""

    start: FloatArray  # (n_ops,)
    finish: FloatArray  # (n_ops,)
    sent: FloatArray  # (n_tensors * n_devices,) end of the transfer of a tensor to a device
    arrival: FloatArray  # (n_tensors * n_devices,)
    free: FloatArray  # (n_clocks(n_devices),) when each device, the host thread and each link is free


@kernel(entry=True)
def n_clocks(n_devices):
    """Returns the most clocks that a cluster has: three a device, the host thread, and a link per pair."""
    return n_devices + 1 + n_devices * n_devices + 2 * n_devices


@kernel(allocates=True)
def new_timeline(n_ops, n_tensors, n_devices):
    """Creates an empty `Timeline`, all slots unsent.

    Args:
        n_ops, n_tensors, n_devices: sizes of the problem, int.
    """
    return Timeline(
        np.zeros(n_ops),
        np.zeros(n_ops),
        np.full(n_tensors * n_devices, UNSENT),
        np.full(n_tensors * n_devices, UNSENT),
        np.zeros(n_clocks(n_devices)),
    )


def empty_timeline(n_ops: int, n_tensors: int, n_devices: int) -> Timeline:
    """Does what `new_timeline` does, for Python.

    A compiled loop must not return a named tuple to Python: numba calls its class to make it, and if an
    interrupt arrives meanwhile, the process ends by a segmentation fault.
    """
    in_python = getattr(new_timeline, "py_func", new_timeline)  # NUMBA_DISABLE_JIT leaves it as it is
    return in_python(n_ops, n_tensors, n_devices)


@kernel
def copy(source, target):
    """Copies one array over another; a slice assignment would allocate in case they overlap."""
    for i in range(len(source)):
        target[i] = source[i]


@kernel
def copy_clocks(p, free, trial):
    """Copies the clocks in use to `trial`, which is written; both are (n_clocks,)."""
    for clock in range(p.rules[N_CLOCKS]):
        trial[clock] = free[clock]


@kernel
def clear(timeline):
    """Empties a timeline; `start` and `finish` stay, as a simulation writes them before it reads them."""
    timeline.sent[:] = UNSENT
    timeline.arrival[:] = UNSENT
    timeline.free[:] = 0.0


@kernel(inline=True)
def start_s(p, free, op, device, ready_s):
    """Returns an op's start in seconds: it is issued, its inputs are there and its device is free, or late.

    An op that takes no time need not be issued.
    """
    start = max(ready_s, free[device])
    if p.slows is not None and p.rules[OVERLAP_CLOCKS]:
        start = max(start, free[device] + free[p.rules[OVERLAP_CLOCKS] + len(p.memory) + device])
    if p.detailed is not None and p.op_seconds[op, device] > 0.0:
        start = max(start, free[len(p.memory)] + p.gaps[ISSUE_S])
    return start


@kernel(inline=True)
def finish_s(p, free, op, device, start):
    """Returns when an op finishes, in seconds; it takes longer while the copies issued before it run.

    Args:
        start: start of the op, seconds.
    """
    seconds = p.op_seconds[op, device]
    if p.slows is not None and p.rules[OVERLAP_CLOCKS]:
        beside = free[p.rules[OVERLAP_CLOCKS] + device] - start
        if beside > 0.0:
            slowdown = p.slowdown[device]
            seconds = min(slowdown * seconds, seconds + beside * (1.0 - 1.0 / slowdown))
    return start + seconds


@kernel
def run_op(p, timeline, op, device, ready_s):
    """Issues an op, runs it on a device as soon as both are ready, and returns its finish in seconds.

    Args:
        timeline: `start` and `finish` of the op and the clocks of host and device are written.
    """
    free = timeline.free
    start = start_s(p, free, op, device, ready_s)
    takes_time = p.op_seconds[op, device] > 0.0
    finish = finish_s(p, free, op, device, start)
    timeline.start[op] = start
    timeline.finish[op] = finish
    free[device] = finish + p.gaps[OP_GAP_S] if takes_time else finish
    if p.slows is not None and p.rules[OVERLAP_CLOCKS]:
        free[p.rules[OVERLAP_CLOCKS] + len(p.memory) + device] = 0.0
    if p.detailed is not None and takes_time:
        free[len(p.memory)] += p.gaps[NEXT_ISSUE_S]
    return finish
