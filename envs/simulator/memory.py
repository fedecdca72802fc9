"""The greatest number of bytes that each device holds at once, from a finished timeline.

A tensor at its producer is held from the producer's start to the end of its last local use and transfer, a
copy from its arrival to the end of its last use there. Resident bytes are held throughout, and tensors that
they include are not counted again. At one instant, holdings end before others begin.

Sorting all beginnings and ends would take longer than the simulation. Instead they are summed up in buckets
of time, about one event each. The bytes held before a bucket are known, and in the bucket they cannot exceed
those by more than what begins in it: only the events of the few buckets that could hold the peak are sorted.
Event `2 * i` is the beginning of holding `i`, and `2 * i + 1` its end.

The kernels share these arguments besides those of the package:

    h: `Holdings`, of which the first `n` count.
    scale: buckets per second.
    events: events, int32 (2 * n + 1,); `event` and `other` are two of them, int.
    flows: bytes, (n_devices, n_buckets, 2), columns `BEGINS` and `ENDS`, and after `bound` `HELD`.
    in_doubt: 1 where the peak may be above its lower bound, uint8 (n_devices, n_buckets).
    peak: bytes of each device, (n_devices,); written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel

BEGINS, ENDS = range(2)
"""Columns of the flows of a bucket: bytes that begin and that end to be held in it."""
HELD = ENDS
"""The column in which `bound` replaces the bytes that end by those held before the bucket."""


class Holdings(NamedTuple):
    """Intervals of memory: one entry per tensor and device that holds it."""

    since: FloatArray  # s
    until: FloatArray  # s
    size: FloatArray  # bytes
    device: NDArray[np.int32]


@kernel(allocates=True)
def peak_memory(p, device_of, timeline, total_s, peak):
    """Finds the greatest number of bytes held at once on each device."""
    n_devices, n_most = len(p.memory), len(p.consumer_item) + len(p.producer) + 1
    amounts, devices = np.empty((3, n_most)), np.empty(n_most, np.int32)
    h = Holdings(amounts[0], amounts[1], amounts[2], devices)
    n = find_holdings(p, device_of, timeline, np.empty(n_devices), h)
    peak[:] = 0.0
    for op in range(len(device_of)):
        if device_of[op] >= 0:
            peak[device_of[op]] += p.resident[op]
    add_held(h, n, 2 * len(device_of) // n_devices + 2, total_s, peak)


@kernel(allocates=True)
def add_held(h, n, n_buckets, total_s, peak):
    """Adds to what each device always holds the most that it holds besides at once.

    Args:
        n_buckets: buckets of time, int; about as many as events of a device are quickest.
        total_s: end of the last holding, seconds.
    """
    n_devices = len(peak)
    # Times are finite and not tiny (`envs.costs.op_seconds`), so `scale` is finite, and no bucket is a NaN's.
    scale = (n_buckets - 1) / total_s if total_s > 0.0 else 0.0
    flows = np.zeros((n_devices, n_buckets, 2))
    add_flows(h, n, scale, flows)
    in_doubt = np.empty((n_devices, n_buckets), np.uint8)
    for device in range(n_devices):
        peak[device] = bound(flows[device], peak[device], in_doubt[device])
    events = np.empty(2 * n + 1, np.int32)
    n_events = find_events(h, n, scale, in_doubt, events)
    sort_events(h, events, n_events)
    raise_peaks(h, events[:n_events], scale, flows, peak)


@kernel(entry=True, allocates=True)
def memory_curve(p, device_of, timeline, total_s, curve):
    """Finds the most bytes that each device holds in each part of the step; the parts are equally long.

    Args:
        curve: bytes, (n_devices, n_parts); written.
    """
    n_devices, n_most = len(p.memory), len(p.consumer_item) + len(p.producer) + 1
    amounts, devices = np.empty((3, n_most)), np.empty(n_most, np.int32)
    h = Holdings(amounts[0], amounts[1], amounts[2], devices)
    n = find_holdings(p, device_of, timeline, np.empty(n_devices), h)
    now, held = np.zeros(n_devices), np.zeros(n_devices)
    for op in range(len(device_of)):
        if device_of[op] >= 0:
            held[device_of[op]] += p.resident[op]
    for device in range(n_devices):
        curve[device] = held[device]
    events = np.arange(2 * n)
    sort_events(h, events, 2 * n)
    for event in events:
        device = h.device[event >> 1]
        raise_curve(curve[device], held[device], now[device], instant(h, event), total_s)
        now[device] = instant(h, event)
        held[device] += -h.size[event >> 1] if event & 1 else h.size[event >> 1]
    for device in range(n_devices):
        raise_curve(curve[device], held[device], now[device], total_s, total_s)


@kernel
def raise_curve(curve, held, since, until, total_s):
    """Raises the parts of a step in which a device holds some bytes.

    Args:
        curve: bytes, (n_parts,); written.
        held: bytes.
        since, until: when the device holds them, seconds.
    """
    if until > since:
        per_s = len(curve) / total_s
        for part in range(int(since * per_s), min(int(np.ceil(until * per_s)), len(curve))):
            curve[part] = max(curve[part], held)


@kernel
def find_holdings(p, device_of, timeline, last_use, h):
    """Finds all holdings, and returns their number.

    Args:
        last_use: scratch, float64 (n_devices,).
        h: written.
    """
    n_devices = len(p.memory)
    n = 0
    for tensor in range(len(p.producer)):
        producer = p.producer[tensor]
        source = device_of[producer]
        if source < 0 or p.size[tensor] == 0.0:
            continue
        base = tensor * n_devices
        resident_on = device_of[p.owner[tensor]] if p.owner[tensor] >= 0 else -1
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
            n += last_use[device] >= 0.0 and device != resident_on
        h.since[n] = timeline.start[producer]
        h.until[n] = until
        h.size[n] = p.size[tensor]
        h.device[n] = source
        n += source != resident_on
    return n


@kernel
def add_flows(h, n, scale, flows):
    """Sums up the bytes that begin and that end to be held, per device and bucket.

    Args:
        flows: zeros before; written.
    """
    last = flows.shape[1] - 1
    for i in range(n):
        flows[h.device[i], min(int(h.since[i] * scale), last), BEGINS] += h.size[i]
        flows[h.device[i], min(int(h.until[i] * scale), last), ENDS] += h.size[i]


@kernel
def bound(flows, held, in_doubt):
    """Finds a lower bound of a device's peak in bytes, and the buckets in which it may be exceeded.

    Args:
        flows: flows of the device, (n_buckets, 2); written: `HELD` replaces `ENDS`.
        held: bytes held before the first bucket.
        in_doubt: row of the device, (n_buckets,); written.
    """
    peak = held
    for bucket in range(len(flows)):
        begins, ends = flows[bucket, BEGINS], flows[bucket, ENDS]
        flows[bucket, HELD] = held
        peak = max(peak, held + begins if ends == 0.0 else held)
        held += begins - ends
    for bucket in range(len(flows)):
        in_doubt[bucket] = flows[bucket, BEGINS] + flows[bucket, HELD] > peak
    return peak


@kernel
def find_events(h, n, scale, in_doubt, events):
    """Finds the events of the buckets in doubt, by holding, and returns their number.

    Args:
        events: written.
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
    """Returns when an event happens, seconds."""
    return h.until[event >> 1] if event & 1 else h.since[event >> 1]


@kernel
def is_before(h, event, other):
    """Says whether an event comes before another: by time, and at one instant ends before beginnings."""
    time, other_time = instant(h, event), instant(h, other)
    return time < other_time or (time == other_time and event & 1 > other & 1)


@kernel
def sift(h, events, event, place, n):
    """Puts an event into a heap with the latest event on top.

    Args:
        events: the heap, of which the first `n` count; written.
        place: free position where the event starts to sink, int.
    """
    while 2 * place + 1 < n:
        child = 2 * place + 1
        if child + 1 < n and is_before(h, events[child], events[child + 1]):
            child += 1
        if not is_before(h, event, events[child]):
            break
        events[place] = events[child]
        place = child
    events[place] = event


@kernel
def sort_events(h, events, n):
    """Sorts the first `n` events by time, in place (heap sort)."""
    for place in range(n // 2 - 1, -1, -1):
        sift(h, events, events[place], place, n)
    for end in range(n - 1, 0, -1):
        event = events[end]
        events[end] = events[0]
        sift(h, events, event, np.int64(0), end)


@kernel(allocates=True)
def raise_peaks(h, events, scale, flows, peak):
    """Raises each device's peak to the bytes held after each of the sorted events in the buckets in doubt."""
    last = flows.shape[1] - 1
    held = np.zeros(len(peak))
    present = np.full(len(peak), -1)
    for event in events:
        device = h.device[event >> 1]
        bucket = min(int(instant(h, event) * scale), last)
        if bucket != present[device]:
            present[device] = bucket
            held[device] = flows[device, bucket, HELD]
        size = h.size[event >> 1]
        held[device] += -size if event & 1 else size
        peak[device] = max(peak[device], held[device])
