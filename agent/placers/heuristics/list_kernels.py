"""The numba kernels of list scheduling, on top of the simulator's.

The kernels share these arguments, and those of `envs.simulator`: `p`, `device_of`, `timeline`, `op`,
`device`. They only read them, unless their own docstrings say otherwise:

    units: `Units`.
    unit: index, int.
    free_bytes: free memory of each device, float64 (n_devices,); negative where it overflows.
    reserved: `ReservedDevices`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.simulator.arrays import copy_clocks, finish_s, new_timeline, run_op, start_s
from envs.simulator.kernels import inputs_ready
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel


class ReservedDevices(NamedTuple):
    """The ops that devices are kept for."""

    child: IntArray  # (n_devices,) -1 = none
    until_s: FloatArray  # (n_devices,) seconds


@kernel
def assign(units, unit, device, device_of, free_bytes):
    """Places all of a unit's ops on a device, and takes its footprint off the free memory.

    Args:
        device_of, free_bytes: written.
    """
    for k in range(units.member_ptr[unit], units.member_ptr[unit + 1]):
        device_of[units.member_item[k]] = device
    free_bytes[device] -= units.footprint_bytes[unit]


@kernel
def emptiest(free_bytes):
    """Returns the device with the most free memory; ties go to the lower index."""
    emptiest_device = 0
    for device in range(1, len(free_bytes)):
        if free_bytes[device] > free_bytes[emptiest_device]:
            emptiest_device = device
    return emptiest_device


@kernel
def may_take(units, op, device, device_of, free_bytes):
    """Says whether an op may go to a device.

    It may where its unit is placed there. If its unit is unplaced, it may where the footprint fits into the
    free memory; where it fits on no device, the one with the most free memory takes it.
    """
    if device_of[op] >= 0:
        return device_of[op] == device
    footprint = units.footprint_bytes[units.of_op[op]]
    most = free_bytes[emptiest(free_bytes)]
    return free_bytes[device] >= footprint or (most < footprint and free_bytes[device] == most)


@kernel
def place_leftovers(units, device_of, free_bytes):
    """Places each unit without a running op on the device with the most free memory.

    Args:
        device_of, free_bytes: written.
    """
    for op in range(len(device_of)):
        if device_of[op] < 0:
            assign(units, units.of_op[op], emptiest(free_bytes), device_of, free_bytes)


@kernel(entry=True, allocates=True)
def schedule_in_order(p, units, order, free_bytes):
    """Places each op, in a given order, where it finishes first; returns the devices, int64 (n_ops,).

    Ties go to the lower device index.

    Args:
        order: indices of the running ops, int64 (n_running,).
        free_bytes: written.
    """
    n_devices = len(p.memory)
    device_of = np.full(len(p.is_source), -1)
    timeline = new_timeline(len(p.is_source), len(p.producer), n_devices)
    trial_free = np.empty_like(timeline.free)
    for op in order:
        # Some device may always take an op, and times are finite: one is chosen.
        chosen, earliest = -1, np.inf
        for device in range(n_devices):
            if not may_take(units, op, device, device_of, free_bytes):
                continue
            copy_clocks(p, timeline.free, trial_free)
            ready = inputs_ready(p, device_of, timeline, trial_free, op, device, False)
            start = start_s(p, trial_free, op, device, ready)
            finish = finish_s(p, trial_free, op, device, start)
            if finish < earliest:
                chosen, earliest = device, finish
        if device_of[op] < 0:
            assign(units, units.of_op[op], chosen, device_of, free_bytes)
        ready = inputs_ready(p, device_of, timeline, timeline.free, op, chosen, True)
        run_op(p, timeline, op, chosen, ready)
    place_leftovers(units, device_of, free_bytes)
    return device_of


@kernel(allocates=True)
def count_waiting(p):
    """Counts the inputs made by running ops that each op waits for, int64 (n_ops,)."""
    waiting = np.zeros(len(p.is_source), np.int64)
    for op in range(len(waiting)):
        for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
            if not p.is_source[p.producer[p.input_item[k]]]:
                waiting[op] += 1
    return waiting


@kernel
def fill_ready(p, device_of, timeline, trial_free, op, ready_s):
    """Estimates when the inputs of an op could be on each device, as the links are now.

    Args:
        trial_free: scratch, float64 (n_clocks,).
        ready_s: seconds, (n_devices,); written.
    """
    for device in range(len(p.memory)):
        copy_clocks(p, timeline.free, trial_free)
        ready_s[device] = inputs_ready(p, device_of, timeline, trial_free, op, device, False)


@kernel
def earliest_start(p, units, device_of, timeline, free_bytes, ready_ops, n_ready, ready_s, reserved):
    """Finds the ready op and the device that start first; ties go to the earlier op, then the lower device.

    Args:
        ready_ops: indices of the ready ops, int64 (n_ops,), of which the first `n_ready` count.
        ready_s: when the inputs of each op are on each device, seconds, (n_ops, n_devices).

    Returns:
        Position in `ready_ops`, and device index.
    """
    # Some device may always take an op, and times are finite: one pair is chosen.
    where, chosen, earliest = -1, -1, np.inf
    for i in range(n_ready):
        op = ready_ops[i]
        for device in range(len(p.memory)):
            start = start_s(p, timeline.free, op, device, ready_s[op, device])
            if reserved.child[device] >= 0 and reserved.child[device] != op:
                start = max(start, reserved.until_s[device])
            sooner = start < earliest or (start == earliest and op < ready_ops[where])
            if sooner and may_take(units, op, device, device_of, free_bytes):
                where, chosen, earliest = i, device, start
    return where, chosen


@kernel(entry=True, allocates=True)
def schedule_earliest_start(p, units, free_bytes, favourite, keep_s):
    """Places and schedules, of all ready ops and devices, always the pair that can start first.

    A device that ran an op with a favourite child is reserved for that child for some time: to all other ops
    it counts as busy, until the child was placed.

    Args:
        free_bytes: written.
        favourite: the favourite child of each op, -1 = none, int64 (n_ops,).
        keep_s: how long each op's device is reserved for that, seconds, (n_ops,).

    Returns:
        Device of each op, int64 (n_ops,).
    """
    n_ops, n_devices = p.op_seconds.shape
    device_of = np.full(n_ops, -1)
    timeline = new_timeline(n_ops, len(p.producer), n_devices)
    trial_free = np.empty_like(timeline.free)
    waiting = count_waiting(p)
    ready_s = np.zeros((n_ops, n_devices))
    ready_ops = np.empty(n_ops, np.int64)
    reserved = ReservedDevices(np.full(n_devices, -1), np.zeros(n_devices))
    n_ready = 0
    for op in range(n_ops):
        if waiting[op] == 0 and not p.is_source[op]:
            ready_ops[n_ready] = op
            n_ready += 1
    while n_ready:
        where, device = earliest_start(
            p, units, device_of, timeline, free_bytes, ready_ops, n_ready, ready_s, reserved
        )
        op = ready_ops[where]
        n_ready -= 1
        ready_ops[where] = ready_ops[n_ready]
        if device_of[op] < 0:
            assign(units, units.of_op[op], device, device_of, free_bytes)
        ready = inputs_ready(p, device_of, timeline, timeline.free, op, device, True)
        finish = run_op(p, timeline, op, device, ready)
        for other in range(n_devices):
            if reserved.child[other] == op:
                reserved.child[other] = -1
        reserved.child[device], reserved.until_s[device] = favourite[op], finish + keep_s[op]
        for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
            tensor = p.output_item[k]
            for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
                reader = p.consumer_item[j]
                waiting[reader] -= 1
                if waiting[reader] == 0:
                    fill_ready(p, device_of, timeline, trial_free, reader, ready_s[reader])
                    ready_ops[n_ready] = reader
                    n_ready += 1
    place_leftovers(units, device_of, free_bytes)
    return device_of
