"""Schedule `program`: devices run their ops in program order, in one pass.

In the kernels here `p` is a `ProblemArrays` and `device_of` the device of each op, int64 (n_ops,); -1 =
unplaced.
"""

from __future__ import annotations

from envs.simulator.arrays import run_op
from envs.simulator.transfers import send
from graphs.system.jit import kernel


@kernel
def inputs_ready(p, device_of, timeline, free, op, device, commit, log=None):
    """Finds when the inputs of an op are on a device, and issues the copies of those that are not there yet.

    Args:
        device_of: device of each op, int64 (n_ops,); inputs whose producer is unplaced (-1) are available at
            time 0.
        timeline: `Timeline` in which all present producers have finished; with `commit`, `sent` and `arrival`
            are written.
        free: when each device, the host thread and each link is free, seconds, (n_clocks,); written: that of
            the timeline, or a copy.
        op, device: indices, int.
        commit: whether the transfers take place, bool; if not, only `free` is written.
        log: `SendLog` that with `commit` gets the slots which are filled, or None.

    Returns:
        Seconds.
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
            at = timeline.finish[producer]
        else:
            at = timeline.arrival[tensor * n_devices + device]
            if at < 0.0:
                at = send(p, timeline, free, tensor, source, device, commit, log)
        if at > ready:
            ready = at
    return ready


@kernel(inline=True)
def issue(p, device_of, timeline, op, log):
    """Runs the next op in program order; a source or an unplaced op takes no time.

    Args:
        timeline: `Timeline` of the ops before; written.
        op: index, int.
        log: `SendLog` that gets the slots which are filled, or None.

    Returns:
        The finish of the op, seconds.
    """
    device = device_of[op]
    if p.is_source[op] or device < 0:
        timeline.start[op] = timeline.finish[op] = 0.0
        return 0.0
    ready = inputs_ready(p, device_of, timeline, timeline.free, op, device, True, log)
    return run_op(p, timeline, op, device, ready)


@kernel
def run_program(p, device_of, timeline):
    """Simulates all ops; devices run theirs in program order, links carry copies in the order of first need.

    Args:
        timeline: empty `Timeline`; written.

    Returns:
        Step time, seconds.
    """
    total = 0.0
    for op in range(len(device_of)):
        total = max(total, issue(p, device_of, timeline, op, None))
    return total
