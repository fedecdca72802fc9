"""Truncated-rollout features: how the episode would continue from each candidate device under a simple rule.

From each candidate, the next units are decided one by one, each where the first of its ops that is visited is
of use soonest (`estimate_use`), and the least that the step can be and the finishes are recorded after some
numbers of decisions; then everything is rolled back. So a policy sees what other ops will need.

The kernels write `ahead`, and those of them that decide or visit ops the devices and timeline of `episode`,
until `restore_episode` takes that back.

Source: the rollout algorithm of Bertsekas, Tsitsiklis and Wu 1997 (doi:10.1023/A:1009635226865), here
truncated after a few ops, and a feature rather than the decision.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.placement.observation.features import HORIZONS
from envs.placement.state import N_WAITING, POSITION, TO_COME, queue_gradient, update_device, updated_s
from envs.simulator.arrays import copy, finish_s, n_clocks, run_op, start_s
from envs.simulator.kernels import inputs_ready
from envs.simulator.transfers import SendLog, copy_start_s, rollback, transfer_seconds
from graphs.system.array_types import BoolArray, FloatArray, IntArray
from graphs.system.jit import kernel

NEAR, FAR = 8, 64
"""Decisions up to the near and the far horizon, the one at hand included; the path is half as far."""
LONG, FAR_OF_LONG = 1_500, 32
"""In an episode of more than `LONG` visits the far horizon is `FAR_OF_LONG` decisions, to save time."""
PATH_ROW, FAR_ROW = HORIZONS.index("path"), HORIZONS.index("far")
"""Rows of the results in `RolloutScratch`."""

# Columns of `RolloutScratch.counts`:
N_UNITS = 0  # units decided
N_SEEN = 1  # visits looked at
N_RUN = 2  # ops run
N_TO_RUN = 3  # ops decided and not run yet
LAST_RUN = 4  # index of the op run last, -1 before the first

# Columns of `RolloutScratch.seconds`:
TIME_S = 0  # the least that the step can be
SUM_S = 1  # sum of the finishes of the ops run

SEEN = 64
"""Ops to come of which it is found when they could start, at most."""
JOIN_SHARE, LINK_PRICE, GAP_PRICE = 0.75, 0.25, 0.125
"""Weight of the time at which an output and what is read beside it are in one place, the rest being that of
the finish; of the seconds of copies; and of those in which the device waits for the inputs. Chosen on 45
draws of the families that policies train on."""


class RolloutScratch(NamedTuple):
    """The results of the rollouts of all candidates, and the changes that one rollout must take back."""

    time_s: FloatArray  # (n_horizons, n_devices) the least that the step can be
    finish_s: FloatArray  # (n_horizons, n_devices) mean finish of the ops visited up to there
    drained_s: FloatArray  # (n_horizons, n_devices) when all devices have run the updates placed on them too
    updates_s: FloatArray  # (n_devices,) as in `Episode`
    free: FloatArray  # (n_clocks,) of the timeline before
    load: FloatArray  # (n_devices,) bytes that the units placed on a device hold
    is_tried: BoolArray  # (n_devices,) devices that an op may go to by the rule
    waiting_s: FloatArray  # (n_clocks,) as in `Episode`
    unit: IntArray  # (FAR,) units that were placed
    start_before: FloatArray  # (n_ops,) start of the ops of the next visits, before
    finish_before: FloatArray  # (n_ops,) finish of the ops of the next visits, before
    counts: IntArray  # (5,) columns N_UNITS ... LAST_RUN
    seconds: FloatArray  # (2,) columns TIME_S and SUM_S
    log: SendLog  # slots of the timeline that were filled


def new_rollout_scratch(n_devices: int, n_ops: int, n_reads: int) -> RolloutScratch:
    """Creates scratch for problems of at most as many devices, ops, and reads of a tensor by an op."""
    return RolloutScratch(
        time_s=np.zeros((len(HORIZONS), n_devices)),
        finish_s=np.zeros((len(HORIZONS), n_devices)),
        drained_s=np.zeros((len(HORIZONS), n_devices)),
        updates_s=np.zeros(n_devices),
        free=np.zeros(n_clocks(n_devices)),
        load=np.zeros(n_devices),
        is_tried=np.zeros(n_devices, dtype=np.bool_),
        waiting_s=np.zeros(n_clocks(n_devices)),
        unit=np.zeros(FAR, dtype=np.int64),
        start_before=np.zeros(n_ops),
        finish_before=np.zeros(n_ops),
        counts=np.zeros(5, dtype=np.int64),
        seconds=np.zeros(2),
        log=SendLog(slot=np.zeros(2 * n_reads, dtype=np.int32), n=np.zeros(1, dtype=np.int64)),
    )


@kernel
def simulate_rollouts(m, p, episode, ahead):
    """Simulates a truncated rollout from every candidate device for the op at hand.

    The far horizon is recorded when all later ops of decided units ran too, such as the backward ops of
    modules. To the path's horizon, ops that only updates wait for are left out, such as those that make
    gradients of weights: they can give way to others, which the rule does not know of. If there are such ops,
    the path is recorded in a rollout of its own.

    Args:
        episode: incremental.
        ahead: `time_s`, `finish_s` and `drained_s` are the result, the rest is scratch.
    """
    far = FAR if len(episode.visits) <= LONG else FAR_OF_LONG
    horizons, n_visits = (NEAR, far // 2, far), len(episode.visits) - episode.state[POSITION]
    copy(episode.timeline.free, ahead.free)
    for device in range(len(p.memory)):
        begin_rollout(m, p, episode, device, ahead)
        has_gradients = False
        for row in range(len(HORIZONS)):
            is_met = decide_next(m, p, episode, horizons[row], False, ahead)
            has_gradients |= is_met and row <= PATH_ROW
            if row == FAR_ROW:
                while ahead.counts[N_TO_RUN] and ahead.counts[N_SEEN] < n_visits:
                    visit_ahead(m, p, episode, ahead)
            if row != PATH_ROW or not has_gradients:
                record_horizon(m, p, episode, row, device, ahead)
        restore_episode(m, episode, ahead)
        if has_gradients:
            begin_rollout(m, p, episode, device, ahead)
            decide_next(m, p, episode, far // 2, True, ahead)
            record_horizon(m, p, episode, PATH_ROW, device, ahead)
            restore_episode(m, episode, ahead)


@kernel(inline=True)
def begin_rollout(m, p, episode, device, ahead):
    """Begins a rollout: decides that the unit at hand goes to a device."""
    copy(episode.load, ahead.load)
    copy(episode.updates_s, ahead.updates_s)
    copy(episode.waiting_s, ahead.waiting_s)
    ahead.counts[:] = 0
    ahead.counts[N_TO_RUN], ahead.counts[LAST_RUN] = episode.state[N_WAITING], -1
    ahead.seconds[TIME_S], ahead.seconds[SUM_S] = episode.time_s[0], 0.0
    decide_ahead(m, p, episode, episode.visits[episode.state[POSITION]], device, ahead)


@kernel(inline=True)
def decide_ahead(m, p, episode, op, device, ahead):
    """Decides that the unit of an op goes to a device."""
    unit = m.unit_of[op]
    for k in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
        member = m.unit_item[k]
        episode.device_of[member] = device
        ahead.counts[N_TO_RUN] += m.is_compute[member]
        ahead.updates_s[device] += p.op_seconds[member, device] * (1 - m.is_compute[member])
    ahead.load[device] += m.footprint_bytes[unit]
    ahead.unit[ahead.counts[N_UNITS]] = unit
    ahead.counts[N_UNITS] += 1


@kernel(inline=True)
def decide_next(m, p, episode, n_units, leaves_out, ahead):
    """Visits ops and decides their units by the rule, until the next op would be of one unit too many.

    Args:
        n_units: number of units to decide, int.
        leaves_out: true if ops that only updates wait for stay undecided, bool.

    Returns:
        Whether there were undecided ops that only updates wait for, bool.
    """
    position, is_met = episode.state[POSITION], False
    while position + ahead.counts[N_SEEN] < len(episode.visits):
        op = episode.visits[position + ahead.counts[N_SEEN]]
        if episode.device_of[op] < 0:
            if ahead.counts[N_UNITS] >= n_units:
                break
            is_met |= m.waits[op] == 1
            if not (leaves_out and m.waits[op]):
                decide_ahead(m, p, episode, op, soonest_use(m, p, episode, op, ahead), ahead)
        visit_ahead(m, p, episode, ahead)
    return is_met


@kernel(inline=True)
def visit_ahead(m, p, episode, ahead):
    """Visits the next op, and runs it if it is decided."""
    device_of, timeline, n_seen = episode.device_of, episode.timeline, ahead.counts[N_SEEN]
    op = episode.visits[episode.state[POSITION] + n_seen]
    ahead.start_before[n_seen], ahead.finish_before[n_seen] = timeline.start[op], timeline.finish[op]
    ahead.counts[N_SEEN] += 1
    if device_of[op] >= 0:
        ready = inputs_ready(p, device_of, timeline, timeline.free, op, device_of[op], True, ahead.log)
        finish = run_op(p, timeline, op, device_of[op], ready)
        end = updated_s(m, p, timeline, device_of, ahead.waiting_s, op, device_of[op], finish)
        queue_gradient(m, p, device_of, ahead.waiting_s, op)
        ahead.seconds[TIME_S] = max(ahead.seconds[TIME_S], end, finish + m.tail_s[op])
        ahead.seconds[SUM_S] += finish
        ahead.counts[LAST_RUN] = op
        ahead.counts[N_RUN] += 1
        ahead.counts[N_TO_RUN] -= 1


@kernel(inline=True)
def record_horizon(m, p, episode, row, device, ahead):
    """Records what the rollout from a device is at a horizon.

    Args:
        row: row of the horizon in the results, int.
    """
    counts, seconds, drained_s = ahead.counts, ahead.seconds, 0.0
    for other in range(len(p.memory)):
        drained_s = max(drained_s, episode.timeline.free[other] + ahead.updates_s[other])
    ahead.time_s[row, device] = least_step_s(m, p, episode, counts[LAST_RUN], seconds[TIME_S])
    ahead.finish_s[row, device] = seconds[SUM_S] / counts[N_RUN]
    ahead.drained_s[row, device] = drained_s


@kernel
def least_step_s(m, p, episode, last, time_s):
    """Returns the least that the step can be by when each op to come could start, in seconds.

    An op can start where it comes soonest: its device is free, and what it reads of placed ops is there, sent
    behind all that links carry so far. So a link or device that is blocked for it is seen long before it is.
    Only those ops count that would lengthen the step if they started when all devices are free, and none if
    the visits are not in program order.

    Args:
        last: index of the op visited last, int.
        time_s: the least that the step can be by the visited ops, seconds.
    """
    state, longest_s, free_s = episode.state, time_s, 0.0
    for device in range(len(p.memory)):
        free_s = max(free_s, episode.timeline.free[device])
    rank, n_seen = state[TO_COME], 0
    while n_seen < SEEN and rank < len(m.by_end_s) and free_s + m.end_s[m.by_end_s[rank]] > time_s:
        op = m.by_end_s[rank]
        if op > last:
            n_seen += 1
            longest_s = max(longest_s, earliest_s(p, episode, op, longest_s - m.end_s[op]) + m.end_s[op])
        elif rank == state[TO_COME] and op < episode.visits[state[POSITION]]:
            state[TO_COME] += 1
        rank += 1
    return longest_s


@kernel
def earliest_s(p, episode, op, enough_s):
    """Returns when an op to come could start on the device where it comes soonest, in seconds.

    Args:
        enough_s: time up to which no earlier one is looked for, seconds.
    """
    timeline, device_of, earliest = episode.timeline, episode.device_of, np.inf
    for device in range(len(p.memory)):
        start = timeline.free[device]
        if start < earliest > enough_s:
            for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
                source = device_of[p.producer[p.input_item[k]]]
                if source >= 0:
                    start = max(start, there_s(p, timeline, p.input_item[k], source, device))
            earliest = min(earliest, start)
    return earliest


@kernel(inline=True)
def soonest_use(m, p, episode, op, ahead):
    """Returns the device on which what an op makes is of use soonest.

    Candidates are the devices of its inputs, that of its update or of what is read beside its output, and the
    one free soonest. If no device has enough memory, it does not count.
    """
    timeline, device_of = episode.timeline, episode.device_of
    footprint, n_devices = m.footprint_bytes[m.unit_of[op]], len(p.memory)
    soonest, least_s = -1, np.inf
    for device in range(n_devices):
        finish = finish_s(p, timeline.free, op, device, start_s(p, timeline.free, op, device, 0.0))
        ahead.is_tried[device] = False
        if finish < least_s and ahead.load[device] + footprint <= p.memory[device]:
            soonest, least_s = device, finish
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        source = device_of[p.producer[p.input_item[k]]]
        if source >= 0:
            ahead.is_tried[source] = True
    other = p.producer[m.beside[op]] if m.beside[op] >= 0 else op
    follower = m.update[op] if m.update[op] >= 0 else other
    for device in (device_of[follower], soonest):
        if soonest >= 0 and device >= 0:
            ahead.is_tried[device] = True
    chosen, least_s = 0, np.inf
    for device in range(n_devices):
        if ahead.is_tried[device] and (soonest < 0 or ahead.load[device] + footprint <= p.memory[device]):
            use = estimate_use(m, p, timeline, device_of, ahead.waiting_s, op, device)
            if use < least_s:
                chosen, least_s = device, use
    return chosen


@kernel
def estimate_use(m, p, timeline, device_of, waiting_s, op, device):
    """Estimates when what an op makes is of use, in seconds, with prices.

    That is when the update that it goes to has ended, or else a mean of its finish and of when it is in one
    place with what is read beside it. Added are prices of the copies, each alone, and of the time that the
    device waits for them, in which it runs nothing else.
    """
    n_devices, ready, copies_s = len(p.memory), 0.0, 0.0
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        source = device_of[p.producer[tensor]]
        if source < 0:
            continue
        ready = max(ready, there_s(p, timeline, tensor, source, device))
        if source != device and timeline.arrival[tensor * n_devices + device] < 0.0:
            copies_s += transfer_seconds(p, p.size[tensor], source, device)
    start = start_s(p, timeline.free, op, device, ready)
    finish, gap_s = finish_s(p, timeline.free, op, device, start), start - timeline.free[device]
    if m.update[op] >= 0:
        target = update_device(m, device_of, op, device)
        if target >= 0:
            copies_s += transfer_seconds(p, m.update_bytes[op], device, target)
        end = updated_s(m, p, timeline, device_of, waiting_s, op, device, finish)
        return end + LINK_PRICE * copies_s + GAP_PRICE * gap_s
    join, beside = finish, m.beside[op]
    where = device_of[p.producer[beside]] if beside >= 0 else -1
    if where >= 0:
        there, output_s, beside_s = timeline.finish[p.producer[beside]], 0.0, 0.0
        if where != device and p.size[m.joined[op]] <= p.size[beside]:
            output_s = transfer_seconds(p, p.size[m.joined[op]], device, where)
        elif where != device:
            beside_s = transfer_seconds(p, p.size[beside], where, device)
        join = max(finish + output_s, there + beside_s)
        copies_s += output_s + beside_s
    use_s = (1.0 - JOIN_SHARE) * finish + JOIN_SHARE * join
    return use_s + LINK_PRICE * copies_s + GAP_PRICE * gap_s


@kernel
def there_s(p, timeline, tensor, source, device):
    """Returns when a tensor is on a device, in seconds; one not sent yet goes behind all that links carry."""
    made = timeline.finish[p.producer[tensor]]
    if source == device:
        return made
    arrival = timeline.arrival[tensor * len(p.memory) + device]
    if arrival >= 0.0:
        return arrival
    start = copy_start_s(p, timeline.free, source, device, made)
    return start + transfer_seconds(p, p.size[tensor], source, device)


@kernel(inline=True)
def restore_episode(m, episode, ahead):
    """Takes back what a rollout did to an episode."""
    timeline, position = episode.timeline, episode.state[POSITION]
    rollback(timeline, ahead.log, 0)
    for k in range(ahead.counts[N_UNITS]):
        unit = ahead.unit[k]
        for member in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
            episode.device_of[m.unit_item[member]] = -1
    for k in range(ahead.counts[N_SEEN]):
        op = episode.visits[position + k]
        timeline.start[op], timeline.finish[op] = ahead.start_before[k], ahead.finish_before[k]
    copy(ahead.free[: len(timeline.free)], timeline.free)
