"""Schedule `fifo`: devices run what became ready first, links carry what was produced first.

A link carries what its sender produces in the order of production, and one device's ops run one by one. So
when an op starts, all its effects are known at once: its finish, the transfers of its outputs and their
arrivals. An op whose producers have all started has a known ready time. The device whose next op starts first
goes next: whatever is still unknown becomes ready later than that, so no arrival and no finish needs an
event of its own.

An instant consists of delta cycles: when an op that takes no time starts in one cycle, it finishes, and what
it sends without delay arrives, in the next. Ready ops run in the order of (instant, delta cycle, program
order) at which they became ready.

The kernels write `timeline`, which is empty at first, and `q`, the `ReadyQueue`; `plan`, `push` and `pop`
what it has of their device. Until an op starts, its `start` is the latest known arrival of its inputs.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.problem_arrays import OP_GAP_S
from envs.simulator.transfers import send
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

INFINITY = np.inf


class ReadyQueue(NamedTuple):
    """The inputs that each op still waits for, and the ready ops of each device as a binary heap."""

    missing: NDArray[np.int32]  # (n_ops,) inputs whose producer has not started
    cycle: NDArray[np.int32]  # (n_ops,) delta cycle, of the instant `start`, of the latest known input
    heap_s: FloatArray  # (n_ops,) when a queued op is ready; device `d` has `first[d]` onwards
    heap_op: NDArray[np.int32]  # (n_ops,)
    first: IntArray  # (n_devices,)
    size: IntArray  # (n_devices,)
    next_s: FloatArray  # (n_devices,) when the next op starts
    next_cycle: IntArray  # (n_devices,)
    free_cycle: IntArray  # (n_devices,)


@kernel
def is_before(q, ready, op, other_ready, other):
    """Says whether one queued op must run before another on the same device.

    Args:
        ready, other_ready: when each is ready, seconds.
        other: index of the other op, int.
    """
    if ready != other_ready:
        return ready < other_ready
    if q.cycle[op] != q.cycle[other]:
        return q.cycle[op] < q.cycle[other]
    return op < other


@kernel
def push(timeline, q, op, device):
    """Adds an op whose ready time, its `start` in the timeline, is known to its device's heap."""
    first, place = q.first[device], q.size[device]
    ready = timeline.start[op]
    q.size[device] = place + 1
    while place > 0:
        above = (place - 1) >> 1
        if not is_before(q, ready, op, q.heap_s[first + above], q.heap_op[first + above]):
            break
        q.heap_s[first + place] = q.heap_s[first + above]
        q.heap_op[first + place] = q.heap_op[first + above]
        place = above
    q.heap_s[first + place] = ready
    q.heap_op[first + place] = op
    if place == 0:
        plan(timeline, q, device)


@kernel
def plan(timeline, q, device):
    """Finds when the first op of a device's heap starts."""
    if q.size[device] == 0:
        q.next_s[device] = INFINITY
        return
    ready, free = q.heap_s[q.first[device]], timeline.free[device]
    cycle = q.cycle[q.heap_op[q.first[device]]]
    if free > ready:
        ready, cycle = free, q.free_cycle[device]
    elif free == ready:
        cycle = max(cycle, q.free_cycle[device])
    q.next_s[device] = ready
    q.next_cycle[device] = cycle


@kernel
def pop(q, device):
    """Takes the first op off a device's heap and returns its index."""
    first, last = q.first[device], q.size[device] - 1
    popped = q.heap_op[first]
    q.size[device] = last
    ready, op = q.heap_s[first + last], np.int64(q.heap_op[first + last])
    place, child = 0, 1
    while child < last:
        if child + 1 < last and is_before(
            q,
            q.heap_s[first + child + 1],
            np.int64(q.heap_op[first + child + 1]),
            q.heap_s[first + child],
            q.heap_op[first + child],
        ):
            child += 1
        if is_before(q, ready, op, q.heap_s[first + child], q.heap_op[first + child]):
            break
        q.heap_s[first + place] = q.heap_s[first + child]
        q.heap_op[first + place] = q.heap_op[first + child]
        place, child = child, 2 * child + 1
    q.heap_s[first + place] = ready
    q.heap_op[first + place] = op
    return np.int64(popped)


@kernel
def first_to_start(q):
    """Returns the device whose next op starts first."""
    first = 0
    for device in range(1, len(q.next_s)):
        sooner = q.next_s[device] < q.next_s[first]
        if sooner or (q.next_s[device] == q.next_s[first] and q.next_cycle[device] < q.next_cycle[first]):
            first = device
    return first


@kernel(allocates=True)
def run_fifo(p, device_of, timeline):
    """Simulates all ops, without a rest of devices that have a ready op; returns the step time in seconds."""
    n_ops, n_devices = len(device_of), len(p.memory)
    ints = np.empty(3 * n_ops, np.int32)
    small = np.empty((4, n_devices), np.int64)
    q = ReadyQueue(
        ints[:n_ops],
        ints[n_ops : 2 * n_ops],
        np.empty(n_ops),
        ints[2 * n_ops :],
        small[0],
        small[1],
        np.empty(n_devices),
        small[2],
        small[3],
    )
    initialize(p, device_of, timeline, q)
    return drain(p, device_of, timeline, q)


@kernel
def initialize(p, device_of, timeline, q):
    """Lays out the heaps at time 0, and makes the outputs of sources and of unplaced ops available."""
    n_ops, n_devices = len(device_of), len(p.memory)
    for device in range(n_devices):
        q.first[device] = q.size[device] = q.next_cycle[device] = q.free_cycle[device] = 0
        q.next_s[device] = INFINITY
    for op in range(n_ops):
        timeline.start[op] = timeline.finish[op] = 0.0
        q.missing[op] = p.input_ptr[op + 1] - p.input_ptr[op]
        q.cycle[op] = 0
        if 0 <= device_of[op] < n_devices - 1:
            q.first[device_of[op] + 1] += 1
    for device in range(1, n_devices):
        q.first[device] += q.first[device - 1]
    for op in range(n_ops):
        if device_of[op] < 0:
            cancel_outputs(p, q, op)
    for op in range(n_ops):
        if device_of[op] >= 0 and q.missing[op] == 0 and not p.is_source[op]:
            push(timeline, q, op, device_of[op])
    for op in range(n_ops):
        if device_of[op] >= 0 and p.is_source[op]:
            deliver(p, device_of, timeline, q, op, np.int64(0))


@kernel
def cancel_outputs(p, q, op):
    """Marks the outputs of an unplaced op as available at time 0."""
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            q.missing[p.consumer_item[j]] -= 1


@kernel
def deliver(p, device_of, timeline, q, op, cycle):
    """Hands an op's outputs to the consumers on its device and sends them, in consumer order, to the others.

    Args:
        cycle: delta cycle in which the op finishes, int.
    """
    n_devices = len(p.memory)
    source, now = device_of[op], timeline.finish[op]
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            target = device_of[reader]
            if target < 0:
                continue
            arrival = now
            if target != source:
                arrival = timeline.arrival[tensor * n_devices + target]
                if arrival < 0.0:
                    arrival = send(p, timeline, timeline.free, tensor, source, target, True, None)
            if arrival > timeline.start[reader]:
                timeline.start[reader] = arrival
                q.cycle[reader] = cycle if arrival == now else 0
            elif arrival == timeline.start[reader] and arrival == now:
                q.cycle[reader] = max(q.cycle[reader], cycle)
            q.missing[reader] -= 1
            if q.missing[reader] == 0:
                push(timeline, q, reader, target)


@kernel
def drain(p, device_of, timeline, q):
    """Starts queued ops in time order until none is left, and returns the step time in seconds."""
    total = 0.0
    while True:
        device = first_to_start(q)
        start = q.next_s[device]
        if start == INFINITY:
            return total
        op = pop(q, device)
        cycle = q.next_cycle[device]
        seconds = p.op_seconds[op, device]
        finish = start + seconds
        cycle = cycle + 1 if finish == start else 0
        timeline.start[op] = start
        timeline.finish[op] = finish
        free = finish + p.gaps[OP_GAP_S] if seconds > 0.0 else finish
        timeline.free[device] = free
        q.free_cycle[device] = cycle if free == finish else 0
        total = max(total, finish)
        plan(timeline, q, device)
        deliver(p, device_of, timeline, q, op, cycle)
