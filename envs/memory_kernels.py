"""The greatest number of bytes that each device holds at once, from a finished timeline."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def memory_events(p, device_of, timeline, time_s, change, device):
    """Write what is taken and given back, when and where; returns the number of events.

    A tensor at its producer is taken from the producer's start to the end of its last local use and transfer,
    a copy from its arrival to the end of its last use there. What resident bytes already count is left out.
    """
    n_devices = len(p.memory)
    last_use = np.empty(n_devices)
    n = 0
    for tensor in range(len(p.producer)):
        producer = p.producer[tensor]
        source = device_of[producer]
        if source < 0 or p.size[tensor] == 0.0:
            continue
        base = tensor * n_devices
        home = p.home[tensor]
        home_device = device_of[home] if home >= 0 else -1
        last_use[:] = -1.0
        last_use[source] = timeline.finish[producer]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            if device_of[reader] >= 0:
                last_use[device_of[reader]] = max(last_use[device_of[reader]], timeline.finish[reader])
        for target in range(n_devices):
            if target != source:
                last_use[source] = max(last_use[source], timeline.sent[base + target])
        for target in range(n_devices):
            if last_use[target] < 0.0 or target == home_device:
                continue
            since = timeline.start[producer] if target == source else timeline.arrival[base + target]
            time_s[n], change[n], device[n] = since, p.size[tensor], target
            time_s[n + 1], change[n + 1], device[n + 1] = last_use[target], -p.size[tensor], target
            n += 2
    return n


@njit(cache=True, nogil=True)
def sort_events(time_s, change, n, total_s):
    """Order of the events by time, what is given back before what is taken; a bucket per event."""
    n_buckets = n + 1
    scale = n / total_s if total_s > 0.0 else 0.0
    bucket_end = np.zeros(n_buckets + 1, np.int64)
    for i in range(n):
        bucket_end[min(int(time_s[i] * scale), n) + 1] += 1
    for bucket in range(n_buckets):
        bucket_end[bucket + 1] += bucket_end[bucket]
    order = np.empty(n, np.int64)
    filled = bucket_end[:n_buckets].copy()
    for i in range(n):
        bucket = min(int(time_s[i] * scale), n)
        order[filled[bucket]] = i
        filled[bucket] += 1
    for bucket in range(n_buckets):
        low, high = bucket_end[bucket], bucket_end[bucket + 1]
        if high - low > 64:
            sort_by_time(time_s, change, order, low, high)
        else:
            insertion_sort(time_s, change, order, low, high)
    return order


@njit(cache=True, nogil=True)
def insertion_sort(time_s, change, order, low, high):
    """Sort `order[low:high]` by time, releases first."""
    for i in range(low + 1, high):
        event = order[i]
        j = i
        while j > low:
            other = order[j - 1]
            if time_s[other] < time_s[event]:
                break
            if time_s[other] == time_s[event] and (change[other] < 0.0 or change[event] > 0.0):
                break
            order[j] = other
            j -= 1
        order[j] = event


@njit(cache=True, nogil=True)
def sort_by_time(time_s, change, order, low, high):
    """Sort `order[low:high]` by time, releases first, in n log n: for instants with many events."""
    events = order[low:high].copy()
    releases = events[change[events] < 0.0]
    takes = events[change[events] >= 0.0]
    both = np.concatenate((releases, takes))
    order[low:high] = both[np.argsort(time_s[both], kind="mergesort")]


@njit(cache=True, nogil=True)
def peak_memory(p, device_of, timeline, total_s, peak):
    """Fill `peak` (n_devices,) with the greatest number of bytes held at once on each device."""
    n_slots = 2 * (len(p.consumer_item) + len(p.producer))
    time_s, change = np.empty(n_slots), np.empty(n_slots)
    device = np.empty(n_slots, np.int64)
    held = np.zeros(len(p.memory))
    for op in range(len(device_of)):
        if device_of[op] >= 0:
            held[device_of[op]] += p.resident[op]
    peak[:] = held
    n = memory_events(p, device_of, timeline, time_s, change, device)
    for i in sort_events(time_s, change, n, total_s):
        held[device[i]] += change[i]
        peak[device[i]] = max(peak[device[i]], held[device[i]])
