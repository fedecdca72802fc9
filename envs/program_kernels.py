"""The simulator's loop under schedule `program`: one pass, an op in O(its inputs)."""

from __future__ import annotations

import numpy as np

from envs.jit import kernel
from envs.timeline import reserve, run_op


@kernel
def inputs_ready(p, device_of, timeline, link_free, op, device, commit):
    """When the inputs of `op` are on `device`; sends what is not there yet, for good only with `commit`."""
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
            slot = tensor * n_devices + device
            at = timeline.arrival[slot]
            if at < 0.0:
                shared = tensor * n_devices + source
                end = timeline.sent[shared] if p.rules[1] else -1.0
                if end < 0.0:
                    end = reserve(p, link_free, tensor, source, device, timeline.finish[producer])
                at = end + p.latency[source, device]
                if commit:
                    timeline.sent[slot] = end
                    timeline.arrival[slot] = at
                    if p.rules[1]:
                        timeline.sent[shared] = end
        if at > ready:
            ready = at
    return ready


@kernel(inline=True)
def issue(p, device_of, timeline, op):
    """Run the next op in program order, if it is there and takes a device; returns its finish."""
    device = device_of[op]
    if p.is_free[op] or device < 0:
        timeline.start[op] = timeline.finish[op] = 0.0
        return 0.0
    ready = inputs_ready(p, device_of, timeline, timeline.link_free, op, device, True)
    return run_op(p, timeline, op, device, ready)


@kernel
def run_program(p, device_of, timeline):
    """Devices run their ops in program order, links carry copies in the order of first need."""
    total = 0.0
    for op in range(len(device_of)):
        total = max(total, issue(p, device_of, timeline, op))
    return total


@kernel
def run_program_within(p, device_of, timeline, limit_s, rest_s):
    """`run_program` of a complete placement that ends, at infinity, once the step must exceed `limit_s`.

    After an op its device still has the rest of its work to do; `rest_s` (n_devices,), at first all of each
    device's work, is used up.
    """
    total = 0.0
    for op in range(len(device_of)):
        finish = issue(p, device_of, timeline, op)
        device = device_of[op]
        rest_s[device] -= p.op_seconds[op, device]
        if finish + rest_s[device] > limit_s:
            return np.inf
        total = max(total, finish)
    return total
