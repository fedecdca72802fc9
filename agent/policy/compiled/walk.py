"""Walks: episodes in which a policy decides, compiled from the observation to the commit of each decision.

The kernels share these arguments:

    packed, episodes, scratch, rules, observation, result: see `step_episodes`; written as there.
    e: index of the episode, int.
    head: `HeadArrays`.
    state: `WalkState`; rows of the episodes are written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.placers.search.walks import TAKE_BEST, Decider
from agent.policy.compiled.head import HeadArrays, HeadScratch, new_head_scratch, score
from envs.placement.episodes import EpisodeBatch
from envs.placement.transition import advance
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel

TIE = np.float32(1e-4)
"""Logits this close are equal and the first device wins, whatever rounding makes of them."""
NOT_FINITE = -1
"""The choice where a logit is NaN or infinite."""


class WalkState(NamedTuple):
    """The state of a walk besides that of its episodes."""

    scratch: HeadScratch
    is_finite: NDArray[np.bool_]  # (n,) whether all logits of an episode were finite


def new_walk_state(head: HeadArrays, batch: EpisodeBatch) -> WalkState:
    """Allocates the state of a walk in all episodes of a batch."""
    return WalkState(new_head_scratch(head, batch.n, batch.max_devices), np.ones(batch.n, dtype=np.bool_))


def check_finite_scores(state: WalkState) -> None:
    """Checks the logits of a walk.

    Raises:
        FloatingPointError: one was NaN or infinite.
    """
    if not state.is_finite.all():
        raise FloatingPointError("the policy's scores are not finite")


class PolicyDecider(Decider):
    """A policy that decides in all episodes of a batch, whose problems its head has."""

    def __init__(self, head: HeadArrays, batch: EpisodeBatch) -> None:
        self._batch, self._head = batch, head
        self._state = new_walk_state(head, batch)

    def decide(self, n_decisions: IntArray, draws: NDArray[np.float64]) -> None:
        self._batch.loop(walk_groups, draws, self._head, self._state, n_decisions)
        check_finite_scores(self._state)

    @property
    def logits(self) -> NDArray[np.float32]:
        """The logits of each episode's last decision, (n, max_devices); only those of offered devices."""
        return self._state.scratch.logits


@kernel(entry=True)
def walk_groups(
    packed, episodes, scratch, rules, first, draws, observation, result, head, state, n_decisions
):
    """Takes decisions of a policy in some groups of episodes in a row.

    Args:
        first: index of the first group, int.
        draws: draws of these groups, as `Decider.decide` takes them.
        n_decisions: number for each group of the batch, int64 (n_groups of all,).
    """
    size = draws.shape[1]
    for row in range(len(draws)):
        group, n_left, n_done = first + row, size, 0
        while n_left == size and n_done < n_decisions[group]:
            for member in range(size):
                e, draw = group * size + member, draws[row, member, n_done]
                if not result.done[e]:
                    decide(packed, episodes, scratch, rules, e, draw, observation, result, head, state)
                n_left -= result.done[e] or not state.is_finite[e]
            n_done += 1


@kernel
def decide(packed, episodes, scratch, rules, e, draw, observation, result, head, state):
    """Takes one decision of a policy in one episode.

    Args:
        draw: see `choose`, float.

    Returns:
        Index of the device, int; `NOT_FINITE` where a logit is not finite, and no decision is taken.
    """
    problem, op = observation.problem[e, 0], observation.op[e, 0]
    devices, mask = observation.devices[e], observation.mask[e]
    score(head, state.scratch, e, problem, op, devices, mask)
    device = choose(state.scratch.logits[e], mask, draw)
    if device == NOT_FINITE:
        state.is_finite[e] = False
    else:
        advance(packed, episodes, scratch, rules, e, device, observation, result)
    return device


@kernel
def choose(logits, mask, draw):
    """Chooses a device.

    Args:
        logits: float32 (max_devices,), of the offered devices.
        mask: int8 (max_devices,), 1 = offered.
        draw: uniform number from 0 to 1 that picks a device by its probability, float; `TAKE_BEST` picks the
            first of those with the greatest logit.

    Returns:
        Index of the device, int; `NOT_FINITE` where a logit is not finite.
    """
    greatest = -np.inf
    for device in range(len(mask)):
        if mask[device]:
            if not np.isfinite(logits[device]):
                return NOT_FINITE
            greatest = max(greatest, logits[device])
    if draw == TAKE_BEST:
        for device in range(len(mask)):
            if mask[device] and logits[device] > greatest - TIE:
                return device
    total = 0.0
    for device in range(len(mask)):
        if mask[device]:
            total += np.exp(logits[device] - greatest)
    left, last = draw * total, NOT_FINITE
    for device in range(len(mask)):
        if mask[device]:
            last = device
            left -= np.exp(logits[device] - greatest)
            if left < 0.0:
                break
    return last
