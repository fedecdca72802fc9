"""The lookahead: what the step would become with the op at hand on each candidate device.

`construct` in program order under a `program` cluster is simulated incrementally: the timeline of an episode
always holds what has been visited, and a candidate costs O(degree). Any other order simulates the partial
placement once per candidate.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.placement.observation.rollout_features import RolloutScratch, new_rollout_scratch
from envs.placement.state import simulate_op
from envs.simulator.arrays import Timeline, copy_clocks, finish_s, n_clocks, start_s
from envs.simulator.kernels import inputs_ready, run
from envs.simulator.transfers import transfer_seconds
from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel

if TYPE_CHECKING:
    from envs.problem import Problem


class CandidateScratch(NamedTuple):
    """Results per candidate device, (max_devices,) unless it says otherwise, and scratch arrays."""

    step_time_s: FloatArray  # step time with the op there
    start_s: FloatArray
    finish_s: FloatArray
    ready_s: FloatArray  # when all inputs are there
    inputs_there: FloatArray  # share of the bytes of placed inputs
    outputs_there: FloatArray  # share of the bytes that placed consumers read
    input_transfer_s: FloatArray  # transfers of inputs that are not there
    output_transfer_s: FloatArray  # transfers of outputs to placed consumers
    consumer_inputs_there: FloatArray  # share of the placed bytes that unplaced consumers read besides
    consumer_transfer_s: FloatArray  # transfers that unplaced consumers need at best, over the least
    consumer_finish_s: FloatArray  # finish of the last unplaced consumer at best
    transfer_to_s: FloatArray  # scratch, of one consumer
    others_ready_s: FloatArray  # scratch, of one consumer
    is_sent_to: NDArray[np.bool_]  # scratch, of one tensor
    timeline: Timeline  # scratch, of one candidate's simulation
    rollout: RolloutScratch


def new_candidate_scratch(problems: Sequence[Problem]) -> CandidateScratch:
    """Allocates the arrays to evaluate the candidates of any of the problems."""
    n = max(problem.n_devices for problem in problems)
    n_ops = max(problem.graph.n_ops for problem in problems)
    n_slots = max(problem.graph.n_tensors * problem.n_devices for problem in problems)
    n_reads = max(len(problem.arrays.input_item) for problem in problems)
    per_device = CandidateScratch._fields[: CandidateScratch._fields.index("is_sent_to")]
    return CandidateScratch(
        **{name: np.zeros(n) for name in per_device},
        is_sent_to=np.zeros(n, dtype=np.bool_),
        timeline=Timeline(
            start=np.zeros(n_ops),
            finish=np.zeros(n_ops),
            sent=np.zeros(n_slots),
            arrival=np.zeros(n_slots),
            free=np.zeros(n_clocks(n)),
        ),
        rollout=new_rollout_scratch(n, n_ops, n_reads),
    )


@kernel
def cut_timeline(timeline, p):
    """Returns views: a timeline cut to the size of one problem."""
    n_ops, n_devices = len(p.is_source), len(p.memory)
    n_slots = len(p.producer) * n_devices
    return Timeline(
        start=timeline.start[:n_ops],
        finish=timeline.finish[:n_ops],
        sent=timeline.sent[:n_slots],
        arrival=timeline.arrival[:n_slots],
        free=timeline.free[: n_clocks(n_devices)],
    )


@kernel
def evaluate_incrementally(p, episode, op, scratch):
    """Evaluates each candidate from the timeline of what has been visited.

    Args:
        scratch: `ready_s`, `start_s`, `finish_s`, `step_time_s` and `timeline.free` are written.
    """
    timeline, trial = episode.timeline, scratch.timeline.free
    for device in range(len(p.memory)):
        copy_clocks(p, timeline.free, trial)
        ready = inputs_ready(p, episode.device_of, timeline, trial, op, device, False)
        start = start_s(p, trial, op, device, ready)
        finish = finish_s(p, trial, op, device, start)
        scratch.ready_s[device] = ready
        scratch.start_s[device] = start
        scratch.finish_s[device] = finish
        scratch.step_time_s[device] = max(episode.time_s[0], finish)


@kernel(inline=True)
def evaluate_in_full(m, p, episode, op, scratch, improving):
    """Evaluates each candidate by a simulation of all that is simulated so far with the op there.

    Args:
        episode: `simulated` is written, and restored.
        scratch: `ready_s`, `start_s`, `finish_s`, `step_time_s` and `timeline` are written.
        improving: true if the op is placed already and moves with its unit, bool.
    """
    timeline = cut_timeline(scratch.timeline, p)
    current = episode.simulated[op]
    for device in range(len(p.memory)):
        simulate_op(m, p, episode, op, device, improving)
        scratch.step_time_s[device] = run(p, episode.simulated, timeline)
        scratch.start_s[device] = timeline.start[op]
        scratch.finish_s[device] = timeline.finish[op]
        scratch.ready_s[device] = inputs_there_s(p, episode, op, device, timeline)
    simulate_op(m, p, episode, op, current, improving)


@kernel
def inputs_there_s(p, episode, op, device, timeline):
    """Returns when the inputs of an op are on its device in a finished simulation, in seconds.

    Inputs that `episode.simulated` lacks are available at time 0.
    """
    ready = 0.0
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        source = episode.simulated[p.producer[tensor]]
        if source == device:
            ready = max(ready, timeline.finish[p.producer[tensor]])
        elif source >= 0:
            ready = max(ready, timeline.arrival[tensor * len(p.memory) + device])
    return ready


@kernel
def fill_neighbours(p, episode, op, scratch):
    """Finds where the bytes of placed neighbours are, and the transfers that each device would wait for.

    Args:
        scratch: `inputs_there`, `outputs_there` and `input_transfer_s` are written.
    """
    n_devices = len(p.memory)
    input_bytes = output_bytes = 0.0
    for device in range(n_devices):
        scratch.inputs_there[device] = scratch.outputs_there[device] = scratch.input_transfer_s[device] = 0.0
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        source = episode.device_of[p.producer[tensor]]
        if source < 0:
            continue
        input_bytes += p.size[tensor]
        for device in range(n_devices):
            if device == source or episode.timeline.arrival[tensor * n_devices + device] >= 0.0:
                scratch.inputs_there[device] += p.size[tensor]
            else:
                scratch.input_transfer_s[device] += transfer_seconds(p, p.size[tensor], source, device)
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            target = episode.device_of[p.consumer_item[j]]
            if target >= 0:
                output_bytes += p.size[tensor]
                scratch.outputs_there[target] += p.size[tensor]
    for device in range(n_devices):
        if input_bytes > 0.0:
            scratch.inputs_there[device] /= input_bytes
        if output_bytes > 0.0:
            scratch.outputs_there[device] /= output_bytes
