"""Transfers: the one place where a tensor is sent, the log that takes sends back, and the estimate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.problem_arrays import (
    IS_EAGER,
    ISSUE_S,
    NEXT_ISSUE_S,
    OVERLAP_CLOCKS,
    SENDS_PER_TENSOR,
    TRANSFER_GAP_S,
)
from envs.simulator.arrays import UNSENT
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel


class SendLog(NamedTuple):
    """The slots of a timeline that sends have filled, in order; each was `UNSENT` before."""

    slot: NDArray[np.int32]  # (capacity,) at least two for every tensor that is sent to a device
    n: IntArray  # (1,) slots logged


@kernel
def send(p, timeline, free, tensor, source, device, commit, log):
    """Sends a tensor to another device that it has not been sent to; returns when it is there, in seconds.

    Args:
        timeline: the producer has finished in it; with `commit`, `sent` and `arrival` are written.
        free: written.
        commit: true if the transfer takes place, bool; else only `free` is written.
    """
    base = tensor * len(p.memory)
    end = timeline.sent[base + source] if p.rules[SENDS_PER_TENSOR] else UNSENT
    is_first = end < 0.0
    if is_first:
        end = reserve(p, free, tensor, source, device, timeline.finish[p.producer[tensor]])
    arrival = end + p.latency[source, device]
    if p.detailed is not None and p.rules[IS_EAGER]:
        free[source] = free[device] = arrival
    if commit:
        timeline.sent[base + device] = end
        timeline.arrival[base + device] = arrival
        if log is not None:
            note(log, base + device)
        if p.rules[SENDS_PER_TENSOR] and is_first:
            timeline.sent[base + source] = end
            if log is not None:
                note(log, base + source)
    return arrival


@kernel
def reserve(p, free, tensor, source, target, ready_s):
    """Issues one transfer between two devices, occupies their link for it, and returns its end in seconds.

    Args:
        free: the clocks of the host, of the link and of copies beside ops are written.
    """
    pair = source if p.rules[SENDS_PER_TENSOR] else target
    size = p.size[tensor]
    start = copy_start_s(p, free, source, target, ready_s)
    if p.detailed is not None:
        size += p.n_half[source, pair]
        free[len(p.memory)] += p.gaps[NEXT_ISSUE_S]
    end = start + size / p.bandwidth[source, pair]
    link = p.link[source, target]
    if link >= 0:
        free[link] = end + p.gaps[TRANSFER_GAP_S]
    if p.slows is not None and p.rules[OVERLAP_CLOCKS]:
        slow_ops(p, free, source, start, end)
        slow_ops(p, free, target, start, end)
    return end


@kernel
def slow_ops(p, free, device, start, end):
    """Slows the ops of a device beside a copy to or from it.

    Those issued before make it late, those issued later see its end.

    Args:
        free: the clocks of copies beside the ops of the device are written.
        start, end: start and end of the copy, seconds.
    """
    copies = p.rules[OVERLAP_CLOCKS] + device
    beside = min(end, free[device]) - max(start, free[copies])
    if beside > 0.0:
        free[copies + len(p.memory)] += beside * (1.0 - 1.0 / p.slowdown[device])
    free[copies] = max(free[copies], end)


@kernel(inline=True)
def copy_start_s(p, free, source, target, ready_s):
    """Returns a copy's start in seconds: it is issued, its link is free, and if it is eager, both devices."""
    link = p.link[source, target]
    start = max(ready_s, free[link]) if link >= 0 else ready_s
    if p.detailed is not None:
        start = max(start, free[len(p.memory)] + p.gaps[ISSUE_S])
        if p.rules[IS_EAGER]:
            start = max(start, free[source], free[target])
    return start


@kernel
def note(log, slot):
    """Adds a slot to a log."""
    log.slot[log.n[0]] = slot
    log.n[0] += 1


@kernel
def rollback(timeline, log, n_kept):
    """Takes back all logged sends but the first ones; the clocks stay as they are.

    Args:
        timeline: `sent` and `arrival` of the slots taken back become `UNSENT`.
        log: shortened to `n_kept` slots; written.
    """
    for i in range(n_kept, log.n[0]):
        timeline.sent[log.slot[i]] = timeline.arrival[log.slot[i]] = UNSENT
    log.n[0] = n_kept


@kernel
def transfer_seconds(p, size, source, target):
    """Estimates a transfer of `size` bytes over a free link in seconds, latency included; nothing is sent.

    Args:
        size: bytes, float; from a device to itself they take no time.
    """
    if source == target:
        return 0.0
    if p.detailed is not None:
        size += p.n_half[source, target]
    return size / p.bandwidth[source, target] + p.latency[source, target]
