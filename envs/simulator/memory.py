"""The greatest number of bytes that each device holds at once, from a finished timeline.

A tensor at its producer is held from the producer's start to the end of its last local use and transfer, a
copy from its arrival to the end of its last use there; resident bytes are held throughout; what these
count already is left out. What ends at an instant is gone before what begins at it.

Sorting all beginnings and ends would cost more than the simulation. Instead they are summed up in buckets of
time, about one event each. Before a bucket the bytes held are known, and in it they cannot exceed those by
more than what begins in it: only the few buckets that could hold the peak are looked at in order.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.simulator.jit import kernel
from graphs.op_graph import FloatArray


class Holdings(NamedTuple):
    """What is held where and when, one entry per tensor and device that holds it."""

    since: FloatArray  # s
    until: FloatArray  # s
    size: FloatArray  # bytes
    device: NDArray[np.int32]


@kernel(allocates=True)
def peak_memory(p, device_of, timeline, total_s, peak):
    """Fill `peak` (n_devices,) with the greatest number of bytes held at once on each device."""
    n_devices, n_most = len(p.memory), len(p.consumer_item) + len(p.producer) + 1
    n_buckets = 2 * len(device_of) // n_devices + 2
    scale = (n_buckets - 1) / total_s if total_s > 0.0 else 0.0
    amounts, devices = np.empty((3, n_most)), np.empty(n_most, np.int32)
    h = Holdings(amounts[0], amounts[1], amounts[2], devices)
    n = find_holdings(p, device_of, timeline, np.empty(n_devices), h)
    flows = np.zeros((n_devices, n_buckets, 2))
    add_flows(h, n, scale, flows)
    peak[:] = 0.0
    for op in range(len(device_of)):
        if device_of[op] >= 0:
            peak[device_of[op]] += p.resident[op]
    in_doubt = np.empty((n_devices, n_buckets), np.uint8)
    for device in range(n_devices):
        peak[device] = bound(flows[device], peak[device], in_doubt[device])
    events = np.empty(2 * n + 1, np.int32)
    n_events = find_events(h, n, scale, in_doubt, events)
    sort_events(h, events, n_events)
    look_closely(h, events[:n_events], scale, flows, peak)


@kernel
def find_holdings(p, device_of, timeline, last_use, h):
    """Fill in all holdings; returns their number."""
    n_devices = len(p.memory)
    n = 0
    for tensor in range(len(p.producer)):
        producer = p.producer[tensor]
        source = device_of[producer]
        if source < 0 or p.size[tensor] == 0.0:
            continue
        base = tensor * n_devices
        home = device_of[p.owner[tensor]] if p.owner[tensor] >= 0 else -1
        for device in range(n_devices):
            last_use[device] = -1.0
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            if device_of[reader] >= 0:
                last_use[device_of[reader]] = max(last_use[device_of[reader]], timeline.finish[reader])
        until = max(last_use[source], timeline.finish[producer])
        last_use[source] = -1.0
        for device in range(n_devices):
            until = max(until, timeline.sent[base + device])
            h.since[n] = timeline.arrival[base + device]
            h.until[n] = last_use[device]
            h.size[n] = p.size[tensor]
            h.device[n] = device
            n += last_use[device] >= 0.0 and device != home
        h.since[n] = timeline.start[producer]
        h.until[n] = until
        h.size[n] = p.size[tensor]
        h.device[n] = source
        n += source != home
    return n


@kernel
def add_flows(h, n, scale, flows):
    """Sum up, per device and bucket, what begins (0) and what ends (1)."""
    last = flows.shape[1] - 1
    for i in range(n):
        flows[h.device[i], min(int(h.since[i] * scale), last), 0] += h.size[i]
        flows[h.device[i], min(int(h.until[i] * scale), last), 1] += h.size[i]


@kernel
def bound(flows, held, in_doubt):
    """The most that is certainly held at some time; marks the buckets in which it may be exceeded.

    What is held before a bucket takes the place of what ends in it.
    """
    peak = held
    for bucket in range(len(flows)):
        begins, ends = flows[bucket, 0], flows[bucket, 1]
        flows[bucket, 1] = held
        peak = max(peak, held + begins if ends == 0.0 else held)
        held += begins - ends
    for bucket in range(len(flows)):
        in_doubt[bucket] = flows[bucket, 0] + flows[bucket, 1] > peak
    return peak


@kernel
def find_events(h, n, scale, in_doubt, events):
    """Fill in the events of the buckets in doubt; returns their number.

    Event `2 * i` is the beginning of holding `i`, `2 * i + 1` its end.
    """
    last = in_doubt.shape[1] - 1
    n_events = 0
    for i in range(n):
        device = h.device[i]
        events[n_events] = 2 * i
        n_events += in_doubt[device, min(int(h.since[i] * scale), last)]
        events[n_events] = 2 * i + 1
        n_events += in_doubt[device, min(int(h.until[i] * scale), last)]
    return n_events


@kernel
def instant(h, event):
    """When an event happens."""
    return h.until[event >> 1] if event & 1 else h.since[event >> 1]


@kernel
def is_before(h, event, other):
    """Whether an event comes before another: by time, at one instant ends before beginnings."""
    at, other_at = instant(h, event), instant(h, other)
    return at < other_at or (at == other_at and event & 1 > other & 1)


@kernel
def sift(h, events, event, at, n):
    """Put an event into the heap `events[:n]` of which the last comes first, at `at` or below."""
    while 2 * at + 1 < n:
        child = 2 * at + 1
        if child + 1 < n and is_before(h, events[child], events[child + 1]):
            child += 1
        if not is_before(h, event, events[child]):
            break
        events[at] = events[child]
        at = child
    events[at] = event


@kernel
def sort_events(h, events, n):
    """Sort `events[:n]` (heap sort)."""
    for at in range(n // 2 - 1, -1, -1):
        sift(h, events, events[at], at, n)
    for end in range(n - 1, 0, -1):
        event = events[end]
        events[end] = events[0]
        sift(h, events, event, np.int64(0), end)


@kernel(allocates=True)
def look_closely(h, events, scale, flows, peak):
    """Raise `peak` to what is held after each of the sorted events."""
    last = flows.shape[1] - 1
    held = np.zeros(len(peak))
    present = np.full(len(peak), -1)
    for event in events:
        device = h.device[event >> 1]
        bucket = min(int(instant(h, event) * scale), last)
        if bucket != present[device]:
            present[device] = bucket
            held[device] = flows[device, bucket, 1]
        size = h.size[event >> 1]
        held[device] += -size if event & 1 else size
        peak[device] = max(peak[device], held[device])
