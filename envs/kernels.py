"""The numba loops of the simulator: arrays in, arrays out, nothing checked.

A *problem* is a graph on a cluster as flat arrays (`ProblemArrays`); a *timeline* (`Timeline`) is what a
simulation fills in. An op whose device is -1 is absent: it does not run, and what it would produce is not
waited for. A tensor `t` at device `d` has the slot `t * n_devices + d`; the slot of the producer's own device
holds the end of the one transfer that serves all devices, where the cluster sends per tensor.

Loops that allocate nothing are compiled without reference counting (`_nrt=False`): counting the references of
some twenty arrays at every call costs ten times the simulation.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from graphs.op_graph import FloatArray, IntArray

PROGRAM, FIFO = 0, 1
INFINITY = np.inf


class ProblemArrays(NamedTuple):
    """A graph on a cluster, as the kernels read it. Rows of `x` are `x_item[x_ptr[i]:x_ptr[i + 1]]`."""

    op_seconds: FloatArray  # (n_ops, n_devices)
    is_free: IntArray  # (n_ops,) 1 for parameters and inputs
    input_ptr: IntArray  # (n_ops + 1,) tensors an op reads, by producer
    input_item: IntArray
    output_ptr: IntArray  # (n_ops + 1,) tensors an op makes
    output_item: IntArray
    consumer_ptr: IntArray  # (n_tensors + 1,) ops that read a tensor, ascending
    consumer_item: IntArray
    producer: IntArray  # (n_tensors,)
    size: FloatArray  # (n_tensors,) bytes
    home: IntArray  # (n_tensors,) op whose resident bytes hold the tensor, or -1
    resident: FloatArray  # (n_ops,) bytes
    bandwidth: FloatArray  # (n_devices, n_devices) bytes/s; the diagonal: the slowest of the row
    latency: FloatArray  # (n_devices, n_devices) s
    link: IntArray  # (n_devices, n_devices) link of an ordered pair, -1 = a link of its own per transfer
    queue: IntArray  # (n_devices, n_devices) arrival queue of an ordered pair (fifo)
    memory: FloatArray  # (n_devices,) bytes
    gaps: FloatArray  # (2,) rest after an op, rest of a link after a transfer; s
    rules: IntArray  # (4,) schedule, 1 = one transfer per tensor, number of links, number of queues


class Timeline(NamedTuple):
    """What one simulation fills in; seconds from the start of the step, -1 where nothing was sent."""

    start: FloatArray  # (n_ops,)
    finish: FloatArray  # (n_ops,)
    sent: FloatArray  # (n_tensors * n_devices,) end of the transfer of a tensor to a device
    arrival: FloatArray  # (n_tensors * n_devices,)
    device_free: FloatArray  # (n_devices,)
    link_free: FloatArray  # (n_devices ** 2,)


@njit(cache=True, nogil=True)
def new_timeline(n_ops, n_tensors, n_devices):
    """An empty timeline, all slots unsent."""
    return Timeline(
        np.zeros(n_ops),
        np.zeros(n_ops),
        np.full(n_tensors * n_devices, -1.0),
        np.full(n_tensors * n_devices, -1.0),
        np.zeros(n_devices),
        np.zeros(n_devices * n_devices),
    )


@njit(cache=True, nogil=True, _nrt=False)
def clear(timeline):
    """Forget a simulation; `start` and `finish` are overwritten by the next one where they are read."""
    timeline.sent[:] = -1.0
    timeline.arrival[:] = -1.0
    timeline.device_free[:] = 0.0
    timeline.link_free[:] = 0.0


@njit(cache=True, nogil=True)
def run(p, device_of, timeline):
    """Simulate a complete or partial placement under the cluster's schedule; returns the step time."""
    clear(timeline)
    if p.rules[0] == PROGRAM:
        return run_program(p, device_of, timeline)
    return run_fifo(p, device_of, timeline)


# --- program order: one pass -----------------------------------------------------------------------


@njit(cache=True, nogil=True, _nrt=False)
def reserve(p, link_free, tensor, source, target, ready_s):
    """Occupy the link for one transfer; returns when the transfer ends."""
    link = p.link[source, target]
    rate = p.bandwidth[source, source] if p.rules[1] else p.bandwidth[source, target]
    if link < 0:
        return ready_s + p.size[tensor] / rate
    end = max(ready_s, link_free[link]) + p.size[tensor] / rate
    link_free[link] = end + p.gaps[1]
    return end


@njit(cache=True, nogil=True, _nrt=False)
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


@njit(cache=True, nogil=True, _nrt=False)
def run_op(p, timeline, op, device, ready_s):
    """Run `op` on `device` as soon as both are ready; returns its finish."""
    start = max(ready_s, timeline.device_free[device])
    seconds = p.op_seconds[op, device]
    finish = start + seconds
    timeline.start[op] = start
    timeline.finish[op] = finish
    timeline.device_free[device] = finish + p.gaps[0] if seconds > 0.0 else finish
    return finish


@njit(cache=True, nogil=True, _nrt=False)
def run_program(p, device_of, timeline):
    """Devices run their ops in program order, links carry copies in the order of first need."""
    total = 0.0
    for op in range(len(device_of)):
        device = device_of[op]
        if p.is_free[op] or device < 0:
            timeline.start[op] = 0.0
            timeline.finish[op] = 0.0
            continue
        ready = inputs_ready(p, device_of, timeline, timeline.link_free, op, device, True)
        total = max(total, run_op(p, timeline, op, device, ready))
    return total


# --- fifo: events in time order --------------------------------------------------------------------
#
# A device's order is settled when an op becomes ready, and a link's when a tensor is produced, so starts and
# arrivals are known at that moment. What remains are sorted queues of finishes (one per device) and of
# arrivals (one per link and latency); the next event is the least of their heads. Arrivals without contention
# are not sorted and go through a heap. An instant passes in rounds: ops finish (one a device) and tensors
# arrive, then what became ready is lined up; an op of no time finishes a round after the one it starts in.


class Queues(NamedTuple):
    """Event queues: devices first, then arrival queues, the heap last."""

    head_s: FloatArray  # (n_devices + n_queues + 1,) time of each queue's first event
    device_op: IntArray  # (n_devices, n_ops) ops in the order they run
    device_head: IntArray  # (n_devices,)
    device_tail: IntArray  # (n_devices,)
    next_slot: IntArray  # (n_tensors * n_devices,) the arrival after this one in its queue
    first_slot: IntArray  # (n_queues,)
    last_slot: IntArray  # (n_queues,)
    heap: IntArray  # (n_tensors * n_devices,) slots by arrival
    heap_size: IntArray  # (1,)
    missing: IntArray  # (n_ops,) inputs not there yet
    ready: IntArray  # (n_ops,) ops that became ready at the present instant
    n_ready: IntArray  # (1,)
    resting: IntArray  # (n_devices,) 1 where the next op takes no time and awaits the end of a rest
    parked: IntArray  # (n_devices,) devices whose next op of no time finishes in the next round


@njit(cache=True, nogil=True)
def new_queues(p, device_of):
    """Empty queues, and how many inputs each op waits for."""
    n_ops, n_devices, n_queues = len(device_of), len(p.memory), p.rules[3]
    n_slots = len(p.producer) * n_devices
    missing = np.zeros(n_ops, np.int64)
    for op in range(n_ops):
        for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
            if device_of[p.producer[p.input_item[k]]] >= 0:
                missing[op] += 1
    return Queues(
        np.full(n_devices + n_queues + 1, INFINITY),
        np.empty((n_devices, n_ops), np.int64),
        np.zeros(n_devices, np.int64),
        np.zeros(n_devices, np.int64),
        np.empty(n_slots, np.int64),
        np.full(n_queues, -1),
        np.full(n_queues, -1),
        np.empty(n_slots if n_queues == 0 else 0, np.int64),
        np.zeros(1, np.int64),
        missing,
        np.empty(n_ops, np.int64),
        np.zeros(1, np.int64),
        np.zeros(n_devices, np.int64),
        np.empty(n_devices, np.int64),
    )


@njit(cache=True, nogil=True, _nrt=False)
def heap_push(heap, size, arrival, slot):
    """Add a slot to the heap of arrivals; ties by slot."""
    at = size
    while at > 0:
        parent = (at - 1) // 2
        above = heap[parent]
        if arrival[above] < arrival[slot] or (arrival[above] == arrival[slot] and above < slot):
            break
        heap[at] = above
        at = parent
    heap[at] = slot


@njit(cache=True, nogil=True, _nrt=False)
def heap_pop(heap, size, arrival):
    """Remove and return the first of `size` slots."""
    first, slot = heap[0], heap[size - 1]
    at, last = 0, size - 1
    while True:
        child = 2 * at + 1
        if child >= last:
            break
        if child + 1 < last and arrival[heap[child + 1]] < arrival[heap[child]]:
            child += 1
        if arrival[slot] <= arrival[heap[child]]:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = slot
    return first


@njit(cache=True, nogil=True, _nrt=False)
def enqueue_arrival(p, timeline, q, slot, source, target):
    """File an arrival in its queue."""
    n_devices = len(p.memory)
    if p.rules[3] == 0:
        heap_push(q.heap, q.heap_size[0], timeline.arrival, slot)
        q.heap_size[0] += 1
        q.head_s[n_devices] = timeline.arrival[q.heap[0]]
        return
    queue = p.queue[source, target]
    q.next_slot[slot] = -1
    if q.first_slot[queue] < 0:
        q.first_slot[queue] = slot
        q.head_s[n_devices + queue] = timeline.arrival[slot]
    else:
        q.next_slot[q.last_slot[queue]] = slot
    q.last_slot[queue] = slot


@njit(cache=True, nogil=True, _nrt=False)
def dequeue_arrival(p, timeline, q, queue):
    """Take the first arrival of a queue."""
    n_devices = len(p.memory)
    if p.rules[3] == 0:
        slot = heap_pop(q.heap, q.heap_size[0], timeline.arrival)
        q.heap_size[0] -= 1
        q.head_s[n_devices] = timeline.arrival[q.heap[0]] if q.heap_size[0] else INFINITY
        return slot
    slot = q.first_slot[queue]
    after = q.next_slot[slot]
    q.first_slot[queue] = after
    q.head_s[n_devices + queue] = timeline.arrival[after] if after >= 0 else INFINITY
    return slot


@njit(cache=True, nogil=True, _nrt=False)
def supply(q, op):
    """One more input of `op` is there."""
    q.missing[op] -= 1
    if q.missing[op] == 0:
        q.ready[q.n_ready[0]] = op
        q.n_ready[0] += 1


@njit(cache=True, nogil=True, _nrt=False)
def produce(p, device_of, timeline, q, op, now):
    """Hand an op's outputs to its device's consumers; send them on in the order of the other consumers."""
    n_devices = len(p.memory)
    source = device_of[op]
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        base = tensor * n_devices
        shared = -1.0
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            target = device_of[reader]
            if target == source:
                supply(q, reader)
            elif target >= 0 and timeline.sent[base + target] < 0.0:
                end = shared
                if end < 0.0:
                    end = reserve(p, timeline.link_free, tensor, source, target, now)
                    if p.rules[1]:
                        shared = end
                        timeline.sent[base + source] = end
                timeline.sent[base + target] = end
                timeline.arrival[base + target] = end + p.latency[source, target]
                enqueue_arrival(p, timeline, q, base + target, source, target)


@njit(cache=True, nogil=True, _nrt=False)
def sort_ops(ops, n):
    """Sort `ops[:n]` in place (Shell sort: few and nearly sorted in most calls)."""
    gap = 1
    while gap < n // 9:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            op = ops[i]
            j = i
            while j >= gap and ops[j - gap] > op:
                ops[j] = ops[j - gap]
                j -= gap
            ops[j] = op
        gap //= 3


@njit(cache=True, nogil=True, _nrt=False)
def start_ready(p, device_of, timeline, q, now):
    """Line up the ops that became ready at this instant, in program order."""
    n_ready = q.n_ready[0]
    ready = q.ready
    sort_ops(ready, n_ready)
    for i in range(n_ready):
        op = ready[i]
        device = device_of[op]
        finish = run_op(p, timeline, op, device, now)
        tail = q.device_tail[device]
        if q.device_head[device] == tail:
            q.head_s[device] = finish
            q.resting[device] = now < timeline.start[op] == finish
        q.device_op[device, tail] = op
        q.device_tail[device] = tail + 1
    q.n_ready[0] = 0


@njit(cache=True, nogil=True, _nrt=False)
def release_free(p, device_of, timeline, q):
    """Time 0: ops that wait for nothing are ready, parameters and inputs are there."""
    timeline.start[:] = 0.0
    timeline.finish[:] = 0.0
    for op in range(len(device_of)):
        if device_of[op] >= 0 and q.missing[op] == 0 and not p.is_free[op]:
            q.ready[q.n_ready[0]] = op
            q.n_ready[0] += 1
    for op in range(len(device_of)):
        if device_of[op] >= 0 and p.is_free[op]:
            produce(p, device_of, timeline, q, op, 0.0)


@njit(cache=True, nogil=True)
def run_fifo(p, device_of, timeline):
    """Work-conserving: devices run what became ready first, links carry what was produced first."""
    return drain(p, device_of, timeline, new_queues(p, device_of))


@njit(cache=True, nogil=True, _nrt=False)
def drain(p, device_of, timeline, q):
    """Process events in time order until none is left; returns the step time."""
    n_devices = len(p.memory)
    release_free(p, device_of, timeline, q)
    n_heads = len(q.head_s)
    n_parked = 0
    now = total = 0.0
    while True:
        event = 0
        at = q.head_s[0]
        for head in range(1, n_heads):
            if q.head_s[head] < at:
                at = q.head_s[head]
                event = head
        if at > now:
            if q.n_ready[0] > 0 or n_parked > 0:
                start_ready(p, device_of, timeline, q, now)
                for i in range(n_parked):
                    q.head_s[q.parked[i]] = now
                n_parked = 0
                continue
            if at == INFINITY:
                return total
            now = at
        if event < n_devices:
            head = q.device_head[event]
            op = q.device_op[event, head]
            if q.resting[event]:
                q.resting[event] = 0
                q.head_s[event] = INFINITY
                q.parked[n_parked] = event
                n_parked += 1
                continue
            head += 1
            q.device_head[event] = head
            q.head_s[event] = INFINITY
            if head < q.device_tail[event]:
                finish = timeline.finish[q.device_op[event, head]]
                if finish > now:
                    q.head_s[event] = finish
                    q.resting[event] = timeline.start[q.device_op[event, head]] == finish
                else:
                    q.parked[n_parked] = event
                    n_parked += 1
            total = max(total, now)
            produce(p, device_of, timeline, q, op, now)
        else:
            slot = dequeue_arrival(p, timeline, q, event - n_devices)
            tensor = slot // n_devices
            target = slot - tensor * n_devices
            for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
                if device_of[p.consumer_item[j]] == target:
                    supply(q, p.consumer_item[j])


# --- memory ----------------------------------------------------------------------------------------


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


# --- whole placements ------------------------------------------------------------------------------


@njit(cache=True, nogil=True)
def run_many(p, devices_of, track_memory, total_s, peak):
    """Time each row of `devices_of` (n, n_ops) into `total_s` (n,); its memory into `peak` (n, n_devices)."""
    timeline = new_timeline(len(p.is_free), len(p.producer), len(p.memory))
    for row in range(len(devices_of)):
        total_s[row] = run(p, devices_of[row], timeline)
        if track_memory:
            peak_memory(p, devices_of[row], timeline, total_s[row], peak[row])
