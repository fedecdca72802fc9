"""The observation of the op at hand: features of each candidate device, and which have free memory.

The kernels `fill_...` write columns of `features`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.placement.masks import fill_mask
from envs.placement.observation.candidates import evaluate_in_full, evaluate_incrementally, fill_neighbours
from envs.placement.observation.consumer_features import fill_consumer_features
from envs.placement.observation.features import COLUMN, FEATURE_BOUND, HORIZONS, N_DEVICE_FEATURES
from envs.placement.observation.rollout_features import simulate_rollouts
from envs.placement.state import (
    IS_INCREMENTAL,
    LAST_DEVICE,
    LONGEST,
    MEAN_OP_S,
    POSITION,
    REWARD_S,
    updated_s,
)
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

ROLLOUT_STEP_TIME, ROLLOUT_MEAN_FINISH, ROLLOUT_DRAINED = (
    tuple(getattr(COLUMN, f"rollout_{what}_{horizon}_over_least") for horizon in HORIZONS)
    for what in ("step_time", "mean_finish", "drained")
)
"""Columns of `features`, one for each horizon."""


class Observation(NamedTuple):
    """The observation of a policy, one row per episode."""

    problem: IntArray  # (n, 1)
    op: IntArray  # (n, 1)
    devices: FloatArray  # float32 (n, max_devices, N_DEVICE_FEATURES)
    mask: IntArray  # int8 (n, max_devices)


def new_observation(n: int, max_devices: int) -> Observation:
    """Allocates the observation of `n` episodes."""
    return Observation(
        problem=np.zeros((n, 1), dtype=np.int64),
        op=np.zeros((n, 1), dtype=np.int64),
        devices=np.zeros((n, max_devices, N_DEVICE_FEATURES), dtype=np.float32),
        mask=np.ones((n, max_devices), dtype=np.int8),
    )


@kernel(inline=True)
def observe(m, p, episode, scratch, rules, observation, i, e):
    """Fills in the observation of the op at hand, and says whether any device is offered.

    Args:
        episode, scratch: written while candidates are evaluated; then the episode is restored.
        observation: row `e` is written; features are 0 for devices that the problem lacks.
        i: index of the problem, int.
    """
    op, features = episode.visits[episode.state[POSITION]], observation.devices[e]
    observation.problem[e, 0], observation.op[e, 0] = i, op
    features[:] = 0.0
    if episode.state[IS_INCREMENTAL]:
        evaluate_incrementally(p, episode, op, scratch)
    else:
        evaluate_in_full(m, p, episode, op, scratch, rules.improving)
    if not rules.improving:
        count_updates(m, p, episode, op, scratch)
    fill_neighbours(p, episode, op, scratch)
    fill_consumer_features(m, p, episode, op, scratch)
    fill_candidates(m, p, episode, scratch, features)
    fill_state(m, p, episode, op, features)
    if rules.rolls_out:
        simulate_rollouts(m, p, episode, scratch.rollout)
        fill_rollout(m, p, scratch.rollout, features)
    return fill_mask(m, p, episode, op, rules, observation.mask[e])


@kernel
def count_updates(m, p, episode, op, scratch):
    """Raises each candidate's step time to two lower bounds that a partial simulation does not see.

    It has no updates of parameters, which no episode visits. They may be most of the work of a unit, such as
    those of an embedding, and gradients the largest tensors that are sent. So the step ends no earlier than
    the update that reads the op's outputs, and takes at least as long as the busiest device works for the
    units placed on it, the unit at hand included. The longest unit to come counts too, on the device where
    that is soonest done.

    Args:
        scratch: `step_time_s` is written.
    """
    n_devices, longest = len(p.memory), longest_unplaced(m, episode, m.unit_of[op])
    busiest_s, least_s, next_s, idlest = 0.0, np.inf, np.inf, -1
    for device in range(n_devices):
        busiest_s = max(busiest_s, episode.busy[device])
        with_it_s = episode.busy[device] + unit_seconds(m, p, longest, device) if longest >= 0 else 0.0
        if with_it_s < least_s:
            least_s, next_s, idlest = with_it_s, least_s, device
        else:
            next_s = min(next_s, with_it_s)
    for device in range(n_devices):
        unit_s, finish_s = unit_seconds(m, p, op, device), scratch.finish_s[device]
        longest_s = min(least_s + unit_s, next_s) if device == idlest else least_s
        busy_s = max(busiest_s, episode.busy[device] + unit_s, longest_s)
        device_of = episode.device_of
        end_s = updated_s(m, p, episode.timeline, device_of, episode.waiting_s, op, device, finish_s)
        scratch.step_time_s[device] = max(scratch.step_time_s[device], busy_s, end_s)


@kernel
def longest_unplaced(m, episode, unit):
    """Returns an op of the longest unplaced unit other than the one at hand; -1 if there is none.

    Args:
        episode: `state` is written.
    """
    for rank in range(episode.state[LONGEST], len(m.by_seconds)):
        other = m.by_seconds[rank]
        op = m.unit_item[m.unit_ptr[other]]
        if episode.device_of[op] < 0 and other != unit:
            return op
        if episode.device_of[op] >= 0 and rank == episode.state[LONGEST]:
            episode.state[LONGEST] += 1
    return -1


@kernel
def fill_candidates(m, p, episode, scratch, features):
    """Fills the columns of the evaluated candidates: times, and the shares of the neighbours' bytes there."""
    timeline, scale = episode.timeline, 1.0 / m.scales[MEAN_OP_S]
    step_time = start = finish = ready = free = consumer_finish = np.inf
    for device in range(len(p.memory)):
        step_time = min(step_time, scratch.step_time_s[device])
        start = min(start, scratch.start_s[device])
        finish = min(finish, scratch.finish_s[device])
        ready = min(ready, scratch.ready_s[device])
        free = min(free, timeline.free[device])
        consumer_finish = min(consumer_finish, scratch.consumer_finish_s[device])
    for device in range(len(p.memory)):
        row, there_s = features[device], scratch.step_time_s[device]
        link_busy_s = link_busy_until(p, timeline, device)
        row[COLUMN.step_time_over_least] = squash((there_s - step_time) * scale)
        row[COLUMN.step_time_growth] = squash((there_s - episode.time_s[0]) * scale)
        row[COLUMN.start_over_earliest] = squash((scratch.start_s[device] - start) * scale)
        row[COLUMN.finish_over_earliest] = squash((scratch.finish_s[device] - finish) * scale)
        row[COLUMN.device_free_over_earliest] = squash((timeline.free[device] - free) * scale)
        row[COLUMN.inputs_ready_over_earliest] = squash((scratch.ready_s[device] - ready) * scale)
        row[COLUMN.link_busy_beyond_start] = squash(max(link_busy_s - start, 0.0) * scale)
        row[COLUMN.input_transfer_time] = squash(scratch.input_transfer_s[device] * scale)
        row[COLUMN.idle_time] = squash((episode.time_s[0] - timeline.free[device]) * scale)
        row[COLUMN.step_time_beyond_finish] = squash((there_s - scratch.finish_s[device]) * scale)
        row[COLUMN.output_transfer_time] = squash(scratch.output_transfer_s[device] * scale)
        row[COLUMN.consumer_transfer_time_over_least] = squash(scratch.consumer_transfer_s[device] * scale)
        consumer_delay_s = scratch.consumer_finish_s[device] - consumer_finish
        row[COLUMN.consumer_finish_over_earliest] = squash(consumer_delay_s * scale)
        row[COLUMN.input_bytes_there] = scratch.inputs_there[device]
        row[COLUMN.output_bytes_there] = scratch.outputs_there[device]
        row[COLUMN.consumer_input_bytes_there] = scratch.consumer_inputs_there[device]


@kernel
def fill_state(m, p, episode, op, features):
    """Fills the columns that need no evaluated candidate: load, free memory, the unit's time, progress."""
    n_devices, current, scale = len(p.memory), episode.device_of[op], 1.0 / m.scales[MEAN_OP_S]
    footprint = m.footprint_bytes[m.unit_of[op]]
    least_s, mean_busy_s, drained_s = np.inf, 0.0, np.inf
    for device in range(n_devices):
        least_s = min(least_s, unit_seconds(m, p, op, device))
        mean_busy_s += episode.busy[device] / n_devices
        drained_s = min(drained_s, episode.timeline.free[device] + episode.updates_s[device])
    for device in range(n_devices):
        row, unit_s = features[device], unit_seconds(m, p, op, device)
        load = episode.busy[device] / mean_busy_s - 1.0 if mean_busy_s > 0.0 else 0.0
        row[COLUMN.load_over_mean] = min(load, FEATURE_BOUND)
        beyond_s = episode.timeline.free[device] + episode.updates_s[device] - drained_s
        row[COLUMN.drained_over_earliest] = squash(beyond_s * scale)
        free = p.memory[device] - episode.load[device] - (0.0 if current == device else footprint)
        row[COLUMN.free_memory] = max(free / p.memory[device], -1.0)
        row[COLUMN.op_time_over_least] = squash((unit_s - least_s) * scale)
        row[COLUMN.op_time] = squash(unit_s * scale)
        row[COLUMN.is_current_device] = 1.0 if current == device else 0.0
        row[COLUMN.is_last_device] = 1.0 if episode.state[LAST_DEVICE] == device else 0.0
        row[COLUMN.slowness] = squash(m.slowness[device] - 1.0)
        row[COLUMN.step_time] = min(episode.time_s[0] / m.scales[REWARD_S], FEATURE_BOUND)
        row[COLUMN.visits_done] = episode.state[POSITION] / len(episode.visits)


@kernel
def unit_seconds(m, p, op, device):
    """Returns the seconds that the ops of an op's unit take on a device, with updates of its parameters."""
    unit, seconds = m.unit_of[op], 0.0
    for k in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
        seconds += p.op_seconds[m.unit_item[k], device]
    return seconds


@kernel
def fill_rollout(m, p, rollout, features):
    """Fills the columns of the truncated rollouts.

    Args:
        rollout: `RolloutScratch`.
    """
    n_devices, scale = len(p.memory), 1.0 / m.scales[MEAN_OP_S]
    for level in range(len(HORIZONS)):
        time_s = finish_s = drained_s = np.inf
        for device in range(n_devices):
            time_s = min(time_s, rollout.time_s[level, device])
            finish_s = min(finish_s, rollout.finish_s[level, device])
            drained_s = min(drained_s, rollout.drained_s[level, device])
        for device in range(n_devices):
            row = features[device]
            row[ROLLOUT_STEP_TIME[level]] = squash((rollout.time_s[level, device] - time_s) * scale)
            row[ROLLOUT_MEAN_FINISH[level]] = squash((rollout.finish_s[level, device] - finish_s) * scale)
            row[ROLLOUT_DRAINED[level]] = squash((rollout.drained_s[level, device] - drained_s) * scale)


@kernel
def link_busy_until(p, timeline, device):
    """Returns when the last outgoing link of a device is free, in seconds; 0 where it has none."""
    until = 0.0
    for target in range(len(p.memory)):
        if target != device and p.link[device, target] >= 0:
            until = max(until, timeline.free[p.link[device, target]])
    return until


@kernel
def squash(x):
    """Returns sign(x) log(1 + |x|)."""
    if x == 0.0:
        return 0.0
    return np.log1p(x) if x >= 0.0 else -np.log1p(-x)
