"""The compiled loop of a rollout: a policy decides, and what it saw and did is recorded."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.policy.compiled.walk import decide
from envs.simulator.arrays import copy
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel


class Decisions(NamedTuple):
    """The decisions of a rollout, a column for each place of an episode."""

    problem: IntArray  # int64 (n_steps, n) index of the problem
    op: IntArray  # int64 (n_steps, n) op at hand
    devices: NDArray[np.float32]  # (n_steps, n, max_devices, N_DEVICE_FEATURES) observed features
    mask: NDArray[np.int8]  # (n_steps, n, max_devices) 1 = offered
    action: IntArray  # int64 (n_steps, n) device that was drawn
    reward: NDArray[np.float32]  # (n_steps, n)
    starts: NDArray[np.float32]  # (n_steps, n) 1 = the first decision of an episode


@kernel(entry=True)
def roll_out(
    packed, episodes, scratch, rules, first, draws, observation, result, head, state, n_taken, decisions
):
    """Takes decisions in some episodes in a row, in each until it is done or its rows are full.

    Args:
        packed, episodes, scratch, rules, first, observation, result: as of `step_episodes`.
        draws: of these episodes, as of `choose`, (n_episodes, n_steps).
        head: `HeadArrays`.
        state: `WalkState`; rows of the episodes are written.
        n_taken: number of rows that are full, int64 (n,); written.
        decisions: `Decisions`; written, but `starts`.
    """
    n_steps = draws.shape[1]
    for row in range(len(draws)):
        e = first + row
        while n_taken[e] < n_steps and not result.done[e] and state.is_finite[e]:
            at = n_taken[e]
            decisions.problem[at, e] = observation.problem[e, 0]
            decisions.op[at, e] = observation.op[e, 0]
            copy(observation.mask[e], decisions.mask[at, e])
            for device in range(observation.devices.shape[1]):
                copy(observation.devices[e, device], decisions.devices[at, e, device])
            decisions.action[at, e] = decide(
                packed, episodes, scratch, rules, e, draws[row, at], observation, result, head, state
            )
            decisions.reward[at, e] = result.reward[e]
            n_taken[e] += 1
