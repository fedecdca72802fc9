"""Schedule `program`: devices run their ops in program order, in one pass."""

from __future__ import annotations

from envs.simulator.arrays import run_op
from envs.simulator.transfers import send
from graphs.system.jit import kernel


@kernel
def inputs_ready(p, device_of, timeline, free, op, device, commit, log=None):
    """Issues the missing copies of an op's inputs to a device; returns when all are there, in seconds.

    Args:
        device_of: as in all kernels; inputs whose producer is unplaced are available at time 0.
        timeline: all placed producers have finished in it; with `commit`, `sent` and `arrival` are written.
        free: written.
        commit: whether the transfers take place, bool; if not, only `free` is written.
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
