"""The queue of schedule `fifo`: what each op still waits for, and the ready ops of each device.

Ready ops run in the order of (instant, delta cycle, program order) at which they became ready. In the kernels
`q` is the `ReadyQueue`; `plan`, `push` and `pop` write what it has of their device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

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
