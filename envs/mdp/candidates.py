"""The lookahead: what the step would become with the op at hand on each candidate device.

`construct` in program order under a `program` cluster is simulated incrementally: the timeline of an episode
always holds what has been visited, and a candidate costs O(degree). Any other order simulates the partial
placement once per candidate.

The kernels share the arguments `m`, `p` and `episode` of `envs.mdp.state`, and

    scratch (CandidateScratch): results per candidate device.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.mdp.rollout_features import RolloutScratch, new_rollout_scratch
from envs.mdp.state import simulate_op, simulate_unit
from envs.problem import Problem
from envs.simulator.arrays import Timeline, copy_clocks, finish_s, n_clocks, start_s
from envs.simulator.kernels import run
from envs.simulator.program import inputs_ready
from envs.simulator.transfers import transfer_seconds
from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel


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
    free: FloatArray  # (n_clocks,) scratch, of one candidate
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
        free=np.zeros(n_clocks(n)),
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
def scratch_for(scratch, p):
    """Returns scratch with views of its timeline, cut to one problem's size."""
    n_ops, n_devices = len(p.is_source), len(p.memory)
    n_slots = len(p.producer) * n_devices
    full = scratch.timeline
    return CandidateScratch(
        step_time_s=scratch.step_time_s,
        start_s=scratch.start_s,
        finish_s=scratch.finish_s,
        ready_s=scratch.ready_s,
        inputs_there=scratch.inputs_there,
        outputs_there=scratch.outputs_there,
        input_transfer_s=scratch.input_transfer_s,
        output_transfer_s=scratch.output_transfer_s,
        consumer_inputs_there=scratch.consumer_inputs_there,
        consumer_transfer_s=scratch.consumer_transfer_s,
        consumer_finish_s=scratch.consumer_finish_s,
        transfer_to_s=scratch.transfer_to_s,
        others_ready_s=scratch.others_ready_s,
        is_sent_to=scratch.is_sent_to,
        free=scratch.free,
        timeline=Timeline(
            start=full.start[:n_ops],
            finish=full.finish[:n_ops],
            sent=full.sent[:n_slots],
            arrival=full.arrival[:n_slots],
            free=full.free[: n_clocks(n_devices)],
        ),
        rollout=scratch.rollout,
    )


@kernel
def evaluate_incrementally(p, episode, op, scratch):
    """Evaluates each candidate from the timeline of what has been visited.

    Args:
        p: `ProblemArrays`.
        episode: `Episode`.
        op: index of the op at hand, int.
        scratch: `CandidateScratch`; `ready_s`, `start_s`, `finish_s` and `step_time_s` are written; `free` is
            scratch.
    """
    timeline = episode.timeline
    for device in range(len(p.memory)):
        copy_clocks(p, timeline.free, scratch.free)
        ready = inputs_ready(p, episode.device_of, timeline, scratch.free, op, device, False)
        start = start_s(p, scratch.free, op, device, ready)
        finish = finish_s(p, scratch.free, op, device, start)
        scratch.ready_s[device] = ready
        scratch.start_s[device] = start
        scratch.finish_s[device] = finish
        scratch.step_time_s[device] = max(episode.time_s[0], finish)


@kernel(inline=True)
def evaluate_in_full(m, p, episode, op, scratch, improving):
    """Evaluates each candidate by a simulation of all that is simulated so far with the op there.

    Args:
        m: `MdpArrays`. p: `ProblemArrays`.
        episode: `Episode`; `simulated` is written, and restored.
        op: index of the op at hand, int.
        scratch: `CandidateScratch`; `ready_s`, `start_s`, `finish_s` and `step_time_s` are written;
            `timeline` is scratch.
        improving: whether the op is placed already and moves with its unit, bool.
    """
    timeline = scratch.timeline
    current = episode.simulated[op]
    for device in range(len(p.memory)):
        if improving:
            simulate_unit(m, episode, op, device)
        else:
            simulate_op(m, p, episode, op, device)
        scratch.step_time_s[device] = run(p, episode.simulated, timeline)
        scratch.start_s[device] = timeline.start[op]
        scratch.finish_s[device] = timeline.finish[op]
        scratch.ready_s[device] = inputs_there_s(p, episode, op, device, timeline)
    if improving:
        simulate_unit(m, episode, op, current)
    else:
        simulate_op(m, p, episode, op, np.int64(-1))


@kernel
def inputs_there_s(p, episode, op, device, timeline):
    """Returns when the inputs of an op are on a device in a finished simulation, in seconds.

    Args:
        p: `ProblemArrays`.
        episode: `Episode`; `simulated` is read; inputs that it lacks are available at time 0.
        op, device: indices, int.
        timeline: `Timeline`; the simulation, with the op on the device.
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
    """Finds out where the bytes of placed neighbours are, and the transfers that each device would wait for.

    Args:
        p: `ProblemArrays`.
        episode: `Episode`.
        op: index of the op at hand, int.
        scratch: `CandidateScratch`; `inputs_there`, `outputs_there` and `input_transfer_s` are written.
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
