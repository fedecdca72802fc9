"""What each candidate device would do to the step: the numba loops of a walk over many episodes at once.

`construct` in program order under a `program` cluster is simulated incrementally: the timeline of an episode
always holds the walked prefix, and a candidate costs O(degree). Any other walk simulates the partial
placement once per candidate. What `envs.mdp.rollout_features` adds costs some dozen ops more per candidate.
`envs.mdp.placement_env` computes the same observation the long way round.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.mdp.consumer_features import outlook
from envs.mdp.features import HORIZONS, column
from envs.mdp.rollout_features import RolloutScratch, simulate_rollouts
from envs.problem_arrays import N_LINKS
from envs.simulator.jit import kernel
from envs.simulator.kernels import Timeline, copy, inputs_ready, peak_memory, run, run_op
from envs.simulator.transfers import transfer_seconds
from graphs.op_graph import FloatArray, IntArray

FIRST_ROLLOUT = column(f"rollout_step_time_{HORIZONS[0]}_over_least")
"""First column of what the truncated rollouts tell."""


class MdpArrays(NamedTuple):
    """What a walk needs to know of a problem beyond its simulation."""

    unit_of: IntArray  # (n_ops,) decision unit
    unit_ptr: IntArray  # (n_units + 1,) ops of a unit
    unit_item: IntArray
    footprint_bytes: (
        FloatArray  # (n_units,) memory a unit holds for long: resident bytes and saved activations
    )
    slowness: FloatArray  # (n_devices,) single-device step time over the least
    scales: FloatArray  # (2,) mean op seconds, seconds per unit of reward


class Episode(NamedTuple):
    """State of one episode; arrays are views into the batch."""

    walk: IntArray  # (n_visits,) ops in the order they are visited
    device_of: IntArray  # (n_ops,) decided devices
    shown: IntArray  # (n_ops,) the part of `device_of` that is simulated
    timeline: Timeline
    busy: FloatArray  # (n_devices,) seconds
    load: FloatArray  # (n_devices,) bytes
    state: IntArray  # (3,) position in the walk, last device, 1 = incremental
    time_s: FloatArray  # (1,) step time of what is shown


class Trial(NamedTuple):
    """What the candidates would do; one entry per device, and a timeline to try them on."""

    total_s: FloatArray
    start_s: FloatArray
    finish_s: FloatArray
    ready_s: FloatArray
    inputs_there: FloatArray  # share of bytes
    outputs_there: FloatArray  # share of bytes
    transfer_s: FloatArray
    send_s: FloatArray  # of the outputs, to placed consumers
    others_there: FloatArray  # share of bytes that unplaced consumers read from elsewhere
    gather_s: FloatArray  # transfers that unplaced consumers need at best
    onward_s: FloatArray  # finish of the last unplaced consumer at best
    moved_s: FloatArray  # room for one consumer
    met_s: FloatArray  # room for one consumer
    reached: NDArray[np.bool_]  # room for one tensor
    link_free: FloatArray
    timeline: Timeline
    ahead: RolloutScratch


@kernel
def squash(x):
    """sign(x) log(1 + |x|)."""
    if x == 0.0:
        return 0.0
    return np.log1p(x) if x >= 0.0 else -np.log1p(-x)


@kernel
def decide(w, p, episode, op, device):
    """Put the unit of `op` on a device, taking it from where it was."""
    unit = w.unit_of[op]
    before = episode.device_of[op]
    if before >= 0:
        episode.load[before] -= w.footprint_bytes[unit]
    episode.load[device] += w.footprint_bytes[unit]
    for k in range(w.unit_ptr[unit], w.unit_ptr[unit + 1]):
        member = w.unit_item[k]
        episode.device_of[member] = device
        if before >= 0:
            episode.busy[before] -= p.op_seconds[member, before]
            episode.busy[device] += p.op_seconds[member, device]
    episode.state[1] = device


@kernel
def show(w, p, episode, op, shown_device):
    """Let a simulation see (or, with -1, not see) `op` and the parameters and inputs of its unit."""
    unit = w.unit_of[op]
    episode.shown[op] = shown_device
    for k in range(w.unit_ptr[unit], w.unit_ptr[unit + 1]):
        if p.is_source[w.unit_item[k]]:
            episode.shown[w.unit_item[k]] = shown_device


@kernel
def visit(w, p, episode, op):
    """Add a decided op to what is simulated."""
    device = episode.device_of[op]
    episode.busy[device] += p.op_seconds[op, device]
    if episode.state[2]:
        timeline = episode.timeline
        ready = inputs_ready(p, episode.device_of, timeline, timeline.link_free, op, device, True)
        episode.time_s[0] = max(episode.time_s[0], run_op(p, timeline, op, device, ready))
    else:
        show(w, p, episode, op, device)


@kernel(inline=True)
def construct(w, p, episode, device):
    """Decide the op at hand and visit on to the next undecided one; returns whether the walk is over."""
    walk, state = episode.walk, episode.state
    decide(w, p, episode, walk[state[0]], device)
    while state[0] < len(walk) and episode.device_of[walk[state[0]]] >= 0:
        visit(w, p, episode, walk[state[0]])
        state[0] += 1
    over = state[0] == len(walk)
    if over:
        copy(episode.device_of, episode.shown)
    if over or not state[2]:
        episode.time_s[0] = run(p, episode.shown, episode.timeline)
    return over


@kernel(inline=True)
def improve(w, p, episode, device):
    """Move the unit of the op at hand and go on; returns whether the walk is over."""
    op = episode.walk[episode.state[0]]
    moved = episode.device_of[op] != device
    decide(w, p, episode, op, device)
    if moved:
        show_unit(w, episode, op, device)
        episode.time_s[0] = run(p, episode.shown, episode.timeline)
    episode.state[0] += 1
    return episode.state[0] == len(episode.walk)


@kernel
def show_unit(w, episode, op, device):
    """Let a simulation see the whole unit of `op` on a device."""
    unit = w.unit_of[op]
    for k in range(w.unit_ptr[unit], w.unit_ptr[unit + 1]):
        episode.shown[w.unit_item[k]] = device


@kernel
def neighbours(p, episode, op, trial):
    """Fill in where the placed neighbours' bytes are, and the transfers each device would wait for."""
    n_devices = len(p.memory)
    inputs = outputs = 0.0
    for device in range(n_devices):
        trial.inputs_there[device] = trial.outputs_there[device] = trial.transfer_s[device] = 0.0
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        source = episode.device_of[p.producer[tensor]]
        if source < 0:
            continue
        inputs += p.size[tensor]
        for device in range(n_devices):
            if device == source or episode.timeline.arrival[tensor * n_devices + device] >= 0.0:
                trial.inputs_there[device] += p.size[tensor]
            else:
                trial.transfer_s[device] += transfer_seconds(p, p.size[tensor], source, device)
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            target = episode.device_of[p.consumer_item[j]]
            if target >= 0:
                outputs += p.size[tensor]
                trial.outputs_there[target] += p.size[tensor]
    for device in range(n_devices):
        if inputs > 0.0:
            trial.inputs_there[device] /= inputs
        if outputs > 0.0:
            trial.outputs_there[device] /= outputs


@kernel
def try_incremental(p, episode, op, trial):
    """Fill in what each candidate would do, from the timeline of the walked prefix."""
    timeline = episode.timeline
    n_links = p.rules[N_LINKS]
    for device in range(len(p.memory)):
        for link in range(n_links):
            trial.link_free[link] = timeline.link_free[link]
        ready = inputs_ready(p, episode.device_of, timeline, trial.link_free, op, device, False)
        start = max(ready, timeline.device_free[device])
        finish = start + p.op_seconds[op, device]
        trial.ready_s[device] = ready
        trial.start_s[device] = start
        trial.finish_s[device] = finish
        trial.total_s[device] = max(episode.time_s[0], finish)


@kernel(inline=True)
def try_full(w, p, episode, op, trial, improving):
    """Fill in what each candidate would do, simulating what is shown with the op there."""
    n_devices = len(p.memory)
    timeline = trial.timeline
    now = episode.shown[op]
    for device in range(n_devices):
        if improving:
            show_unit(w, episode, op, device)
        else:
            show(w, p, episode, op, device)
        trial.total_s[device] = run(p, episode.shown, timeline)
        trial.start_s[device] = timeline.start[op]
        trial.finish_s[device] = timeline.finish[op]
        ready = 0.0
        for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
            tensor = p.input_item[k]
            source = episode.shown[p.producer[tensor]]
            if source == device:
                ready = max(ready, timeline.finish[p.producer[tensor]])
            elif source >= 0:
                ready = max(ready, timeline.arrival[tensor * n_devices + device])
        trial.ready_s[device] = ready
    if improving:
        show_unit(w, episode, op, now)
    else:
        show(w, p, episode, op, np.int64(-1))


@kernel
def link_busy_until(p, timeline, device):
    """When the last outgoing link of a device is free."""
    until = 0.0
    for target in range(len(p.memory)):
        if target != device and p.link[device, target] >= 0:
            until = max(until, timeline.link_free[p.link[device, target]])
    return until


@kernel
def fill_features(w, p, episode, op, trial, features):
    """Fill `features` (n_devices or more, N_DEVICE_FEATURES) from a trial; see `DEVICE_FEATURES`."""
    n_devices = len(p.memory)
    timeline, now = episode.timeline, episode.device_of[op]
    scale = 1.0 / w.scales[0]
    total = start = finish = ready = free = seconds = onward = np.inf
    busy = 0.0
    for device in range(n_devices):
        total = min(total, trial.total_s[device])
        start = min(start, trial.start_s[device])
        finish = min(finish, trial.finish_s[device])
        ready = min(ready, trial.ready_s[device])
        free = min(free, timeline.device_free[device])
        seconds = min(seconds, p.op_seconds[op, device])
        onward = min(onward, trial.onward_s[device])
        busy += episode.busy[device] / n_devices
    bytes_ = w.footprint_bytes[w.unit_of[op]]
    for device in range(n_devices):
        row = features[device]
        row[0] = squash((trial.total_s[device] - total) * scale)
        row[1] = squash((trial.total_s[device] - episode.time_s[0]) * scale)
        row[2] = squash((trial.start_s[device] - start) * scale)
        row[3] = squash((trial.finish_s[device] - finish) * scale)
        row[4] = squash((timeline.device_free[device] - free) * scale)
        row[5] = squash((trial.ready_s[device] - ready) * scale)
        row[6] = squash(max(link_busy_until(p, timeline, device) - start, 0.0) * scale)
        row[7] = trial.inputs_there[device]
        row[8] = trial.outputs_there[device]
        row[9] = episode.busy[device] / busy - 1.0 if busy > 0.0 else 0.0
        left = p.memory[device] - episode.load[device] - (0.0 if now == device else bytes_)
        row[10] = max(left / p.memory[device], -1.0)
        row[11] = squash((p.op_seconds[op, device] - seconds) * scale)
        row[12] = squash(p.op_seconds[op, device] * scale)
        row[13] = 1.0 if now == device else 0.0
        row[14] = 1.0 if episode.state[1] == device else 0.0
        row[15] = squash(trial.transfer_s[device] * scale)
        row[16] = squash((episode.time_s[0] - timeline.device_free[device]) * scale)
        row[17] = squash((trial.total_s[device] - trial.finish_s[device]) * scale)
        row[18] = squash(w.slowness[device] - 1.0)
        row[19] = episode.time_s[0] / w.scales[1]
        row[20] = episode.state[0] / len(episode.walk)
        row[21] = squash(trial.send_s[device] * scale)
        row[22] = trial.others_there[device]
        row[23] = squash(trial.gather_s[device] * scale)
        row[24] = squash((trial.onward_s[device] - onward) * scale)


@kernel
def fill_foresight(w, ahead, n_devices, features):
    """Fill in the features of `features` that look further than the consumers of the op at hand."""
    scale = 1.0 / w.scales[0]
    for level in range(len(HORIZONS)):
        at = FIRST_ROLLOUT + 2 * level
        time_s = finish_s = np.inf
        for device in range(n_devices):
            time_s = min(time_s, ahead.time_s[level, device])
            finish_s = min(finish_s, ahead.finish_s[level, device])
        for device in range(n_devices):
            features[device, at] = squash((ahead.time_s[level, device] - time_s) * scale)
            features[device, at + 1] = squash((ahead.finish_s[level, device] - finish_s) * scale)


@kernel
def fill_mask(w, p, episode, op, mask):
    """Mark the devices with room for the unit of `op`; returns whether there is one."""
    any_room = False
    bytes_ = w.footprint_bytes[w.unit_of[op]]
    for device in range(len(mask)):
        mask[device] = 0
        if device < len(p.memory):
            stays = episode.device_of[op] == device
            if stays or episode.load[device] + bytes_ <= p.memory[device]:
                mask[device] = 1
                any_room = True
    return any_room


@kernel(inline=True)
def observe(w, p, episode, trial, improving, features, mask):
    """Fill in the observation of the op at hand; returns whether any device has room for it."""
    op = episode.walk[episode.state[0]]
    features[:] = 0.0
    if episode.state[2]:
        try_incremental(p, episode, op, trial)
    else:
        try_full(w, p, episode, op, trial, improving)
    neighbours(p, episode, op, trial)
    outlook(w, p, episode, op, trial)
    fill_features(w, p, episode, op, trial, features)
    if not improving:
        simulate_rollouts(w, p, episode, trial.ahead)
        fill_foresight(w, trial.ahead, len(p.memory), features)
    return fill_mask(w, p, episode, op, mask)


@kernel(inline=True)
def overflow(p, episode, peak):
    """Share of the memory that the shown placement needs beyond what its devices have; 0 where it fits."""
    peak_memory(p, episode.shown, episode.timeline, episode.time_s[0], peak)
    over = 0.0
    for device in range(len(p.memory)):
        over += max(peak[device] - p.memory[device], 0.0)
    return over / p.memory.sum()
