"""The foresight: how the walk would go on from each candidate device, if a simple rule took over.

From each candidate the next ops of the walk are placed one by one where they finish earliest, and what that
does to the step is noted after some of them; then all is undone. So a policy sees what a choice leads to
beyond the op's own consumers: devices and links that will be wanted by others. To judge a choice by following
a simple rule from there is the rollout algorithm of Bertsekas, Tsitsiklis and Wu 1997
(doi:10.1023/A:1009635226865), here cut off after a few ops, and a feature rather than the decision.

Arguments as in `envs.mdp.observation`: walk arrays, problem arrays, an episode and a trial to fill in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.mdp.consumer_features import transfer_seconds
from envs.mdp.features import HORIZONS
from envs.simulator.arrays import copy, run_op
from envs.simulator.jit import kernel
from envs.simulator.program import inputs_ready
from graphs.op_graph import FloatArray, IntArray

FURTHEST = HORIZONS[-1]


class Foresight(NamedTuple):
    """What was foreseen of each candidate, and what a look ahead has to undo."""

    time_s: FloatArray  # (n_horizons, n_devices) step time at each horizon
    finish_s: FloatArray  # (n_horizons, n_devices) mean finish of the ops up to there
    device_free: FloatArray  # (n_devices,)
    link_free: FloatArray  # (n_devices ** 2,)
    load: FloatArray  # (n_devices,)
    unit: IntArray  # (FURTHEST,) units that were placed
    ran: FloatArray  # (2, FURTHEST) start and finish that ops had before
    slot: IntArray  # (2 * n_reads,) slots of the timeline that were filled
    sent: FloatArray  # (2 * n_reads,) what they had
    arrival: FloatArray  # (2 * n_reads,)


def new_foresight(n_devices: int, n_reads: int) -> Foresight:
    """Room to look ahead in problems of up to so many devices, and tensors read by ops."""
    return Foresight(
        time_s=np.zeros((len(HORIZONS), n_devices)),
        finish_s=np.zeros((len(HORIZONS), n_devices)),
        device_free=np.zeros(n_devices),
        link_free=np.zeros(n_devices**2),
        load=np.zeros(n_devices),
        unit=np.zeros(FURTHEST, dtype=np.int64),
        ran=np.zeros((2, FURTHEST)),
        slot=np.zeros(2 * n_reads, dtype=np.int64),
        sent=np.zeros(2 * n_reads),
        arrival=np.zeros(2 * n_reads),
    )


@kernel
def foresee(w, p, episode, ahead):
    """Fill in `time_s` and `finish_s` of every candidate for the op at hand; the episode stays as it is."""
    copy(episode.timeline.device_free, ahead.device_free)
    copy(episode.timeline.link_free, ahead.link_free)
    for device in range(len(p.memory)):
        copy(episode.load, ahead.load)
        n_units, n_slots = go_on(w, p, episode, device, ahead)
        undo(w, episode, ahead, n_units, n_slots)


@kernel(inline=True)
def go_on(w, p, episode, first_device, ahead):
    """Place the op at hand on a device, and those after it by the rule; returns units and slots to undo."""
    walk, timeline, device_of = episode.visits, episode.timeline, episode.device_of
    position = episode.state[0]
    end = min(position + FURTHEST, len(walk))
    n_units = n_slots = level = 0
    time_s, sum_s = episode.time_s[0], 0.0
    for at in range(position, end):
        op = walk[at]
        if device_of[op] < 0:
            device = first_device if at == position else finishes_first(w, p, episode, op, ahead)
            unit = w.unit_of[op]
            for k in range(w.unit_ptr[unit], w.unit_ptr[unit + 1]):
                device_of[w.unit_item[k]] = device
            ahead.load[device] += w.footprint_bytes[unit]
            ahead.unit[n_units] = unit
            n_units += 1
        device = device_of[op]
        n_slots = remember(p, episode, op, device, ahead, n_slots)
        ahead.ran[0, at - position], ahead.ran[1, at - position] = timeline.start[op], timeline.finish[op]
        ready = inputs_ready(p, device_of, timeline, timeline.link_free, op, device, True)
        finish = run_op(p, timeline, op, device, ready)
        time_s, sum_s = max(time_s, finish), sum_s + finish
        done = at - position + 1
        while level < len(HORIZONS) and (done >= HORIZONS[level] or at == end - 1):
            ahead.time_s[level, first_device] = time_s
            ahead.finish_s[level, first_device] = sum_s / done
            level += 1
    return n_units, n_slots


@kernel(inline=True)
def finishes_first(w, p, episode, op, ahead):
    """Where an op would finish first: with one of its inputs or where it could start and run soonest.

    Each transfer is thought to find its link as it is now; where no device has room, memory is not looked at.
    """
    timeline, device_of = episode.timeline, episode.device_of
    held = w.footprint_bytes[w.unit_of[op]]
    soonest, soonest_s = -1, np.inf
    for device in range(len(p.memory)):
        finish = timeline.device_free[device] + p.op_seconds[op, device]
        if finish < soonest_s and ahead.load[device] + held <= p.memory[device]:
            soonest, soonest_s = device, finish
    chosen, earliest, before = soonest, np.inf, -1
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        source = device_of[p.producer[p.input_item[k]]]
        if source < 0 or source in (before, soonest):
            continue
        if soonest < 0 or ahead.load[source] + held <= p.memory[source]:
            finish = finish_at_best(p, timeline, device_of, op, source)
            if finish < earliest or (finish == earliest and source < chosen):
                chosen, earliest = source, finish
        before = source
    if soonest >= 0 and soonest_s <= earliest:
        finish = finish_at_best(p, timeline, device_of, op, soonest)
        if finish < earliest or (finish == earliest and soonest < chosen):
            chosen = soonest
    return max(chosen, 0)


@kernel
def finish_at_best(p, timeline, device_of, op, device):
    """When an op would end on a device, if each of its inputs had its link to itself from now on."""
    n_devices = len(p.memory)
    ready = timeline.device_free[device]
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        producer = p.producer[tensor]
        source = device_of[producer]
        if source < 0:
            continue
        there = timeline.finish[producer]
        if source != device:
            arrival = timeline.arrival[tensor * n_devices + device]
            if arrival >= 0.0:
                there = arrival
            else:
                link = p.link[source, device]
                if link >= 0:
                    there = max(there, timeline.link_free[link])
                there += transfer_seconds(p, p.size[tensor], source, device)
        ready = max(ready, there)
    return ready + p.op_seconds[op, device]


@kernel(inline=True)
def remember(p, episode, op, device, ahead, n_slots):
    """Note the slots of the timeline that running an op will fill; returns how many are noted."""
    n_devices, timeline = len(p.memory), episode.timeline
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        source = episode.device_of[p.producer[tensor]]
        if source >= 0 and source != device and timeline.arrival[tensor * n_devices + device] < 0.0:
            for there in (device, source):
                slot = tensor * n_devices + there
                ahead.slot[n_slots] = slot
                ahead.sent[n_slots], ahead.arrival[n_slots] = timeline.sent[slot], timeline.arrival[slot]
                n_slots += 1
    return n_slots


@kernel(inline=True)
def undo(w, episode, ahead, n_units, n_slots):
    """Take back what `go_on` did to an episode."""
    timeline, position = episode.timeline, episode.state[0]
    for k in range(n_slots - 1, -1, -1):
        timeline.sent[ahead.slot[k]] = ahead.sent[k]
        timeline.arrival[ahead.slot[k]] = ahead.arrival[k]
    for k in range(n_units):
        unit = ahead.unit[k]
        for member in range(w.unit_ptr[unit], w.unit_ptr[unit + 1]):
            episode.device_of[w.unit_item[member]] = -1
    for at in range(position, min(position + FURTHEST, len(episode.visits))):
        op = episode.visits[at]
        timeline.start[op] = ahead.ran[0, at - position]
        timeline.finish[op] = ahead.ran[1, at - position]
    for device in range(len(timeline.device_free)):
        timeline.device_free[device] = ahead.device_free[device]
    for link in range(len(timeline.link_free)):
        timeline.link_free[link] = ahead.link_free[link]
