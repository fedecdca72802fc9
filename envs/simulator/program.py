"""The simulator's loop under schedule `program`: one pass, an op in O(its inputs)."""

from __future__ import annotations

from envs.simulator.arrays import reserve, run_op
from envs.simulator.jit import kernel


@kernel
def send(p, timeline, link_free, tensor, source, device, commit):
    """When a tensor that is not on `device` yet will be there; sends it for good only with `commit`."""
    base = tensor * len(p.memory)
    end = timeline.sent[base + source] if p.rules[1] else -1.0
    if end < 0.0:
        end = reserve(p, link_free, tensor, source, device, timeline.finish[p.producer[tensor]])
    at = end + p.latency[source, device]
    if commit:
        timeline.sent[base + device] = end
        timeline.arrival[base + device] = at
        if p.rules[1]:
            timeline.sent[base + source] = end
    return at


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
            at = timeline.arrival[tensor * n_devices + device]
            if at < 0.0:
                at = send(p, timeline, link_free, tensor, source, device, commit)
        if at > ready:
            ready = at
    return ready


@kernel(inline=True)
def issue(p, device_of, timeline, op):
    """Run the next op in program order, if it is there and takes a device; returns its finish."""
    device = device_of[op]
    if p.is_source[op] or device < 0:
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
