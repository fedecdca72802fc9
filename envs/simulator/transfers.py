"""Transfers: the one place where a tensor is sent, the log that takes sends back, and the estimate."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.problem_arrays import SENDS_PER_TENSOR, TRANSFER_GAP_S
from envs.simulator.arrays import UNSENT
from envs.simulator.jit import kernel
from graphs.op_graph import IntArray


class SendLog(NamedTuple):
    """The slots of a timeline that sends have filled, in order; each was `UNSENT` before."""

    slot: NDArray[np.int32]  # (capacity,) at least two for every tensor that is sent to a device
    n: IntArray  # (1,) slots logged


@kernel
def send(p, timeline, link_free, tensor, source, device, commit, log):
    """Sends a tensor to a device that it has not been sent to.

    Args:
        p: `ProblemArrays`.
        timeline: `Timeline` in which the producer has finished; with `commit`, `sent` and `arrival` are
            written.
        link_free: when each link is free, seconds, (n_links,) or longer; written: that of the timeline, or a
            copy.
        tensor, source, device: indices, int; the producer is on `source`, another device than `device`.
        commit: whether the transfer takes place, bool; if not, only `link_free` is written.
        log: `SendLog` that with `commit` gets the slots which are filled, or None.

    Returns:
        When the tensor is on the device, seconds.
    """
    base = tensor * len(p.memory)
    end = timeline.sent[base + source] if p.rules[SENDS_PER_TENSOR] else UNSENT
    is_first = end < 0.0
    if is_first:
        end = reserve(p, link_free, tensor, source, device, timeline.finish[p.producer[tensor]])
    at = end + p.latency[source, device]
    if commit:
        timeline.sent[base + device] = end
        timeline.arrival[base + device] = at
        if log is not None:
            note(log, base + device)
        if p.rules[SENDS_PER_TENSOR] and is_first:
            timeline.sent[base + source] = end
            if log is not None:
                note(log, base + source)
    return at


@kernel
def reserve(p, link_free, tensor, source, target, ready_s):
    """Occupies the link between two devices for one transfer.

    Args:
        p: `ProblemArrays`.
        link_free: when each link is free, seconds, (n_links,) or longer; written.
        tensor, source, target: indices, int.
        ready_s: when the tensor is ready to be sent, seconds.

    Returns:
        When the transfer ends, seconds.
    """
    link = p.link[source, target]
    rate = p.bandwidth[source, source] if p.rules[SENDS_PER_TENSOR] else p.bandwidth[source, target]
    if link < 0:
        return ready_s + p.size[tensor] / rate
    end = max(ready_s, link_free[link]) + p.size[tensor] / rate
    link_free[link] = end + p.gaps[TRANSFER_GAP_S]
    return end


@kernel
def note(log, slot):
    """Adds a slot to a log."""
    log.slot[log.n[0]] = slot
    log.n[0] += 1


@kernel
def rollback(timeline, log, n_kept):
    """Takes back all logged sends but the first ones; devices and links stay as they are.

    Args:
        timeline: `Timeline`; `sent` and `arrival` of the slots taken back become `UNSENT`.
        log: `SendLog`; shortened to `n_kept`.
        n_kept: slots to keep, int.
    """
    for i in range(n_kept, log.n[0]):
        timeline.sent[log.slot[i]] = timeline.arrival[log.slot[i]] = UNSENT
    log.n[0] = n_kept


@kernel
def transfer_seconds(p, size, source, target):
    """Estimates a transfer over a free link, latency included; nothing is sent.

    Args:
        p: `ProblemArrays`.
        size: bytes to send, float.
        source, target: device indices, int.

    Returns:
        Seconds; 0 from a device to itself.
    """
    return size / p.bandwidth[source, target] + p.latency[source, target] if source != target else 0.0
