"""The transition: what a decision does to an episode, its reward, and the batch's loop over episodes.

The kernels write `episode`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.placement.observation.observe import observe
from envs.placement.packing import mdp_arrays_at, problem_at
from envs.placement.state import (
    IS_INCREMENTAL,
    LAST_DEVICE,
    N_DECISIONS,
    N_WAITING,
    POSITION,
    REWARD_S,
    episode_at,
    queue_gradient,
    simulate_op,
)
from envs.simulator.arrays import copy, run_op
from envs.simulator.kernels import inputs_ready, run
from envs.simulator.memory import peak_memory
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

FITS, OVERFLOWS, INFEASIBLE = range(3)
"""The ends of an episode: within the memory, with a device that overflows, or with an op that no device had
free memory for."""

OVERFLOW_PENALTY, INFEASIBLE_PENALTY = 1.0, 2.0
"""Taken off the last reward of an episode that runs out of memory, in single-device step times; an overflow
costs its share of the cluster's memory more."""


class StepResult(NamedTuple):
    """The result of a step of a batch, one row per episode."""

    reward: FloatArray  # (n,) single-device step times
    done: NDArray[np.bool_]  # (n,)
    outcome: IntArray  # (n,) FITS, OVERFLOWS or INFEASIBLE, where done
    peak_bytes: FloatArray  # (n, max_devices) scratch, of the check of the memory


def new_step_result(n: int, max_devices: int) -> StepResult:
    """Allocates the result of a step of `n` episodes."""
    return StepResult(
        reward=np.zeros(n),
        done=np.zeros(n, dtype=np.bool_),
        outcome=np.zeros(n, dtype=np.int64),
        peak_bytes=np.zeros((n, max_devices)),
    )


@kernel(entry=True)
def step_episodes(packed, episodes, scratch, rules, first, actions, observation, result):
    """Takes one decision in each of some episodes in a row; those that are done keep their last observation.

    One entry for a batch's first observation too, as each entry is compiled with all that it calls.

    Args:
        episodes, observation, result: rows of the episodes are written.
        scratch: written; threads that run at a time need one each.
        first: index of the first of the episodes, int.
        actions: device for each of the episodes, int64 (n_actions,); -1 decides nothing and only observes.
    """
    for e in range(first, first + len(actions)):
        advance(packed, episodes, scratch, rules, e, actions[e - first], observation, result)


@kernel
def advance(packed, episodes, scratch, rules, e, action, observation, result):
    """Takes one decision in one episode.

    Args:
        episodes, scratch, observation, result: see `step_episodes`.
        action: index of the device, int; -1 decides nothing and only observes.
    """
    i = episodes.problem[e]
    p, m = problem_at(packed, i), mdp_arrays_at(packed, i)
    episode = episode_at(episodes, p, e)
    before_s = episode.time_s[0]
    result.outcome[e] = FITS
    if action < 0:
        done = False
    elif rules.improving:
        done = improve(m, p, episode, action)
    else:
        done = construct(m, p, episode, action)
    if rules.improving:
        keep_best(p, episode)
    reward = -(episode.time_s[0] - before_s) / m.scales[REWARD_S]
    if done:
        overflow = share_of_overflow(p, episode, result.peak_bytes[e, : len(p.memory)])
        if overflow > 0.0:
            result.outcome[e] = OVERFLOWS
            reward -= rules.memory_penalty * (OVERFLOW_PENALTY + overflow)
    elif not observe(m, p, episode, scratch, rules, observation, i, e):
        done = True
        result.outcome[e] = INFEASIBLE
        reward -= rules.memory_penalty * INFEASIBLE_PENALTY
    result.reward[e] = reward
    result.done[e] = done
    episodes.returned[e] += reward
    episode.state[N_DECISIONS] += action >= 0


@kernel(inline=True)
def construct(m, p, episode, device):
    """Decides the unit of the op at hand and visits on to the next op that is not decided.

    Returns:
        Whether all visits are done, bool.
    """
    visits, state = episode.visits, episode.state
    assign(m, p, episode, visits[state[POSITION]], device)
    while state[POSITION] < len(visits) and episode.device_of[visits[state[POSITION]]] >= 0:
        visit(m, p, episode, visits[state[POSITION]])
        queue_gradient(m, p, episode.device_of, episode.waiting_s, visits[state[POSITION]])
        state[POSITION] += 1
        state[N_WAITING] -= 1
    done = state[POSITION] == len(visits)
    if done:
        copy(episode.device_of, episode.simulated)
    if done or not state[IS_INCREMENTAL]:
        episode.time_s[0] = run(p, episode.simulated, episode.timeline)
    return done


@kernel(inline=True)
def improve(m, p, episode, device):
    """Moves the unit of the op at hand, simulates it again if its device changes, and goes to the next visit.

    Returns:
        Whether all visits are done, bool.
    """
    op = episode.visits[episode.state[POSITION]]
    moves = episode.device_of[op] != device
    assign(m, p, episode, op, device)
    if moves:
        simulate_op(m, p, episode, op, device, True)
        episode.time_s[0] = run(p, episode.simulated, episode.timeline)
    episode.state[POSITION] += 1
    return episode.state[POSITION] == len(episode.visits)


@kernel
def keep_best(p, episode):
    """Keeps the fastest placement so far whose footprints are within the memory."""
    for device in range(len(p.memory)):
        if episode.load[device] > p.memory[device]:
            return
    if episode.time_s[0] < episode.best_s[0]:
        episode.best_s[0] = episode.time_s[0]
        copy(episode.device_of, episode.best_device_of)


@kernel
def assign(m, p, episode, op, device):
    """Puts the unit of an op on a device, taking it from where it was."""
    unit = m.unit_of[op]
    before = episode.device_of[op]
    if before >= 0:
        episode.load[before] -= m.footprint_bytes[unit]
    episode.load[device] += m.footprint_bytes[unit]
    for k in range(m.unit_ptr[unit], m.unit_ptr[unit + 1]):
        member = m.unit_item[k]
        episode.device_of[member] = device
        if before >= 0:
            episode.busy[before] -= p.op_seconds[member, before]
            episode.busy[device] += p.op_seconds[member, device]
        else:
            episode.busy[device] += p.op_seconds[member, device]
            episode.updates_s[device] += p.op_seconds[member, device] * (1 - m.is_compute[member])
            episode.state[N_WAITING] += m.is_compute[member]
    episode.state[LAST_DEVICE] = device


@kernel
def visit(m, p, episode, op):
    """Adds a decided op to what is simulated: to the timeline if the episode is incremental."""
    device = episode.device_of[op]
    if episode.state[IS_INCREMENTAL]:
        timeline = episode.timeline
        ready = inputs_ready(p, episode.device_of, timeline, timeline.free, op, device, True)
        episode.time_s[0] = max(episode.time_s[0], run_op(p, timeline, op, device, ready))
    else:
        simulate_op(m, p, episode, op, device, False)


@kernel(inline=True)
def share_of_overflow(p, episode, peak_bytes):
    """Returns the memory that a placement needs beyond that of its devices, as a share of all memory.

    Args:
        peak_bytes: bytes, (n_devices,); written.
    """
    peak_memory(p, episode.simulated, episode.timeline, episode.time_s[0], peak_bytes)
    beyond = 0.0
    for device in range(len(p.memory)):
        beyond += max(peak_bytes[device] - p.memory[device], 0.0)
    return beyond / p.memory.sum()
