"""The simulator's loops under schedule `fifo`: ops in the order of their starts.

A link carries what its sender produces in the order of production, and one device's ops run one by one. So
when an op starts, all that it will ever cause is known at once: its finish, the transfers of its outputs and
their arrivals. An op that waits for no other start has a known instant at which it is ready. The device whose
next op starts first goes next: what is yet unknown becomes ready later than that, so no arrival and no finish
needs an event of its own.

An instant passes in turns: an op of no time finishes, and what it sends without delay arrives, a turn after
the one it starts in. Ops are lined up by (instant, turn, program order) of becoming ready.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.simulator.arrays import reserve
from envs.simulator.jit import kernel
from graphs.op_graph import FloatArray, IntArray

INFINITY = np.inf


class Lineup(NamedTuple):
    """What each op still waits for, and the ready ops of each device as a binary heap."""

    missing: NDArray[np.int32]  # (n_ops,) inputs whose producer has not started
    turn: NDArray[np.int32]  # (n_ops,) of the instant `start` at which the inputs are there as far as known
    heap_s: FloatArray  # (n_ops,) when a lined-up op is ready; device `d` has `first[d]` onwards
    heap_op: NDArray[np.int32]  # (n_ops,)
    first: IntArray  # (n_devices,)
    size: IntArray  # (n_devices,)
    next_s: FloatArray  # (n_devices,) when the next op starts
    next_turn: IntArray  # (n_devices,)
    free_turn: IntArray  # (n_devices,)


@kernel(allocates=True)
def run_fifo(p, device_of, timeline):
    """Work-conserving: devices run what became ready first, links carry what was produced first."""
    n_ops, n_devices = len(device_of), len(p.memory)
    ints = np.empty(3 * n_ops, np.int32)
    small = np.empty((4, n_devices), np.int64)
    q = Lineup(
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
    line_up_first(p, device_of, timeline, q)
    return drain(p, device_of, timeline, q)


@kernel
def line_up_first(p, device_of, timeline, q):
    """Time 0: lay out the heaps, take absent producers off, and let parameters and inputs be there."""
    n_ops, n_devices = len(device_of), len(p.memory)
    for device in range(n_devices):
        q.first[device] = q.size[device] = q.next_turn[device] = q.free_turn[device] = 0
        q.next_s[device] = INFINITY
    for op in range(n_ops):
        timeline.start[op] = timeline.finish[op] = 0.0
        q.missing[op] = p.input_ptr[op + 1] - p.input_ptr[op]
        q.turn[op] = 0
        if 0 <= device_of[op] < n_devices - 1:
            q.first[device_of[op] + 1] += 1
    for device in range(1, n_devices):
        q.first[device] += q.first[device - 1]
    for op in range(n_ops):
        if device_of[op] < 0:
            skip(p, q, op)
    for op in range(n_ops):
        if device_of[op] >= 0 and q.missing[op] == 0 and not p.is_source[op]:
            line_up(timeline, q, op, device_of[op])
    for op in range(n_ops):
        if device_of[op] >= 0 and p.is_source[op]:
            deliver(p, device_of, timeline, q, op, np.int64(0))


@kernel
def skip(p, q, op):
    """Nobody waits for what an absent op would make."""
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            q.missing[p.consumer_item[j]] -= 1


@kernel
def is_before(q, at, op, other_at, other):
    """Whether one lined-up op is to run before another on the same device."""
    if at != other_at:
        return at < other_at
    if q.turn[op] != q.turn[other]:
        return q.turn[op] < q.turn[other]
    return op < other


@kernel
def line_up(timeline, q, op, device):
    """Add an op whose inputs have a known arrival to its device's heap."""
    first, at = q.first[device], q.size[device]
    ready = timeline.start[op]
    q.size[device] = at + 1
    while at > 0:
        above = (at - 1) >> 1
        if not is_before(q, ready, op, q.heap_s[first + above], q.heap_op[first + above]):
            break
        q.heap_s[first + at] = q.heap_s[first + above]
        q.heap_op[first + at] = q.heap_op[first + above]
        at = above
    q.heap_s[first + at] = ready
    q.heap_op[first + at] = op
    if at == 0:
        plan(timeline, q, device)


@kernel
def plan(timeline, q, device):
    """Note when the first op of a device's heap starts."""
    if q.size[device] == 0:
        q.next_s[device] = INFINITY
        return
    ready, free = q.heap_s[q.first[device]], timeline.device_free[device]
    turn = q.turn[q.heap_op[q.first[device]]]
    if free > ready:
        ready, turn = free, q.free_turn[device]
    elif free == ready:
        turn = max(turn, q.free_turn[device])
    q.next_s[device] = ready
    q.next_turn[device] = turn


@kernel
def pop(q, device):
    """Take the first op off a device's heap."""
    first, last = q.first[device], q.size[device] - 1
    popped = q.heap_op[first]
    q.size[device] = last
    ready, op = q.heap_s[first + last], np.int64(q.heap_op[first + last])
    at, child = 0, 1
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
        q.heap_s[first + at] = q.heap_s[first + child]
        q.heap_op[first + at] = q.heap_op[first + child]
        at, child = child, 2 * child + 1
    q.heap_s[first + at] = ready
    q.heap_op[first + at] = op
    return np.int64(popped)


@kernel
def deliver(p, device_of, timeline, q, op, turn):
    """Hand an op's outputs to its device's consumers; send them on in the order of the other consumers."""
    n_devices = len(p.memory)
    source, now = device_of[op], timeline.finish[op]
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        base = tensor * n_devices
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            target = device_of[reader]
            if target < 0:
                continue
            at = now
            if target != source:
                at = timeline.arrival[base + target]
                if at < 0.0:
                    end = timeline.sent[base + source] if p.rules[1] else -1.0
                    if end < 0.0:
                        end = reserve(p, timeline.link_free, tensor, source, target, now)
                        if p.rules[1]:
                            timeline.sent[base + source] = end
                    timeline.sent[base + target] = end
                    at = end + p.latency[source, target]
                    timeline.arrival[base + target] = at
            if at > timeline.start[reader]:
                timeline.start[reader] = at
                q.turn[reader] = turn if at == now else 0
            elif at == timeline.start[reader] and at == now:
                q.turn[reader] = max(q.turn[reader], turn)
            q.missing[reader] -= 1
            if q.missing[reader] == 0:
                line_up(timeline, q, reader, target)


@kernel
def first_to_start(q):
    """Device whose next op starts first."""
    first = 0
    for device in range(1, len(q.next_s)):
        sooner = q.next_s[device] < q.next_s[first]
        if sooner or (q.next_s[device] == q.next_s[first] and q.next_turn[device] < q.next_turn[first]):
            first = device
    return first


@kernel
def drain(p, device_of, timeline, q):
    """Start lined-up ops in time order until none is left; returns the step time."""
    total = 0.0
    while True:
        device = first_to_start(q)
        start = q.next_s[device]
        if start == INFINITY:
            return total
        op = pop(q, device)
        turn = q.next_turn[device]
        seconds = p.op_seconds[op, device]
        finish = start + seconds
        turn = turn + 1 if finish == start else 0
        timeline.start[op] = start
        timeline.finish[op] = finish
        free = finish + p.gaps[0] if seconds > 0.0 else finish
        timeline.device_free[device] = free
        q.free_turn[device] = turn if free == finish else 0
        total = max(total, finish)
        plan(timeline, q, device)
        deliver(p, device_of, timeline, q, op, turn)
