"""The numba loops of list scheduling, over the simulator's kernels."""

from __future__ import annotations

import numpy as np

from envs.simulator.jit import kernel
from envs.simulator.kernels import copy, inputs_ready, new_timeline, run_op


@kernel
def assign(units, unit, device, device_of, room):
    """Place all of a unit's ops on a device and take its memory from the room there."""
    for k in range(units.member_ptr[unit], units.member_ptr[unit + 1]):
        device_of[units.member_item[k]] = device
    room[device] -= units.held[unit]


@kernel
def roomiest(room):
    """The device with most room; ties to the lower index."""
    found = 0
    for device in range(1, len(room)):
        if room[device] > room[found]:
            found = device
    return found


@kernel
def may_take(units, op, device, device_of, room):
    """Whether `op` may go to `device`: its unit is there, or open with room there or none anywhere."""
    if device_of[op] >= 0:
        return device_of[op] == device
    held = units.held[units.of_op[op]]
    most = room[roomiest(room)]
    return room[device] >= held or (most < held and room[device] == most)


@kernel
def place_leftovers(units, device_of, room):
    """Units without a running op (nothing reads them) go where there is most room."""
    for op in range(len(device_of)):
        if device_of[op] < 0:
            assign(units, units.of_op[op], roomiest(room), device_of, room)


@kernel(entry=True, allocates=True)
def schedule_in_order(p, units, order, room):
    """Earliest finish: each op of `order` goes where it finishes first; ties to the lower device index."""
    n_devices = len(p.memory)
    device_of = np.full(len(p.is_source), -1)
    timeline = new_timeline(len(p.is_source), len(p.producer), n_devices)
    trial_link = np.empty_like(timeline.link_free)
    for op in order:
        chosen, earliest = -1, np.inf
        for device in range(n_devices):
            if not may_take(units, op, device, device_of, room):
                continue
            copy(timeline.link_free, trial_link)
            ready = inputs_ready(p, device_of, timeline, trial_link, op, device, False)
            finish = max(ready, timeline.device_free[device]) + p.op_seconds[op, device]
            if finish < earliest:
                chosen, earliest = device, finish
        if device_of[op] < 0:
            assign(units, units.of_op[op], chosen, device_of, room)
        ready = inputs_ready(p, device_of, timeline, timeline.link_free, op, chosen, True)
        run_op(p, timeline, op, chosen, ready)
    place_leftovers(units, device_of, room)
    return device_of


@kernel(allocates=True)
def count_waiting(p):
    """Inputs made by running ops that each op waits for, (n_ops,)."""
    waiting = np.zeros(len(p.is_source), np.int64)
    for op in range(len(waiting)):
        for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
            if not p.is_source[p.producer[p.input_item[k]]]:
                waiting[op] += 1
    return waiting


@kernel
def fill_ready(p, device_of, timeline, trial_link, op, ready_s):
    """When the inputs of `op` could be on each device, as the links are now, into `ready_s` (n_devices,).

    Args:
        trial_link: scratch of the size of `timeline.link_free`.
    """
    for device in range(len(p.memory)):
        copy(timeline.link_free, trial_link)
        ready_s[device] = inputs_ready(p, device_of, timeline, trial_link, op, device, False)


@kernel
def earliest_start(p, units, device_of, timeline, room, ready_ops, n_ready, ready_s):
    """The (position in `ready_ops`, device) that starts first; ties to the earlier op and lower device."""
    where, chosen, earliest = -1, -1, np.inf
    for i in range(n_ready):
        op = ready_ops[i]
        for device in range(len(p.memory)):
            start = max(ready_s[op, device], timeline.device_free[device])
            sooner = start < earliest or (start == earliest and op < ready_ops[where])
            if sooner and may_take(units, op, device, device_of, room):
                where, chosen, earliest = i, device, start
    return where, chosen


@kernel(entry=True, allocates=True)
def schedule_earliest_start(p, units, room):
    """Of all ready ops and devices, always the pair that can start first."""
    n_ops, n_devices = p.op_seconds.shape
    device_of = np.full(n_ops, -1)
    timeline = new_timeline(n_ops, len(p.producer), n_devices)
    trial_link = np.empty_like(timeline.link_free)
    waiting = count_waiting(p)
    ready_s = np.zeros((n_ops, n_devices))
    ready_ops = np.empty(n_ops, np.int64)
    n_ready = 0
    for op in range(n_ops):
        if waiting[op] == 0 and not p.is_source[op]:
            ready_ops[n_ready] = op
            n_ready += 1
    while n_ready:
        at, device = earliest_start(p, units, device_of, timeline, room, ready_ops, n_ready, ready_s)
        op = ready_ops[at]
        n_ready -= 1
        ready_ops[at] = ready_ops[n_ready]
        if device_of[op] < 0:
            assign(units, units.of_op[op], device, device_of, room)
        ready = inputs_ready(p, device_of, timeline, timeline.link_free, op, device, True)
        run_op(p, timeline, op, device, ready)
        for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
            tensor = p.output_item[k]
            for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
                reader = p.consumer_item[j]
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    fill_ready(p, device_of, timeline, trial_link, reader, ready_s[reader])
                    ready_ops[n_ready] = reader
                    n_ready += 1
    place_leftovers(units, device_of, room)
    return device_of
