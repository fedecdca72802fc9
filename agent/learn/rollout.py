"""Rollouts: a policy decides in all places of an environment, in one compiled loop that records it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.policy.compiled.head import Floats, HeadArrays, add_product, by_input, output_of
from agent.policy.compiled.walk import check_finite_scores, decide, new_walk_state
from envs.placement.vec_env import PlacementVecEnv
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
    log_prob: NDArray[np.float32]  # (n_steps, n) of the action
    value: NDArray[np.float32]  # (n_steps, n) of what was observed
    reward: NDArray[np.float32]  # (n_steps, n)
    starts: NDArray[np.float32]  # (n_steps, n) 1 = the first decision of an episode


class CriticArrays(NamedTuple):
    """Weights of the critic, float32."""

    pool_weight: Floats  # (3 * n_features, hidden) first layer, of the pooled features
    hidden_weight: Floats  # (hidden, hidden) second layer, inputs first
    hidden_bias: Floats  # (hidden,)
    out_weight: Floats  # (hidden,)
    out_bias: Floats  # (1,)


def critic_arrays(weights: Mapping[str, Floats]) -> CriticArrays:
    """Lays out the critic, by the names of the weights in `PlacementNetwork`."""
    hidden = len(weights["critic.1.bias"])
    return CriticArrays(
        pool_weight=by_input(weights["of_pool.weight"][hidden:]),
        hidden_weight=by_input(weights["critic.1.weight"]),
        hidden_bias=weights["critic.1.bias"],
        out_weight=weights["critic.3.weight"][0],
        out_bias=weights["critic.3.bias"],
    )


Heads = Callable[[IntArray], HeadArrays]
"""Returns the head of the policy, with the contexts of some problems, given by index, int (n,)."""


class Ended(NamedTuple):
    """The end of an episode: row and place of its last decision, and what the environment says of it."""

    row: int
    place: int
    info: dict[str, Any]


def collect(env: PlacementVecEnv, heads: Heads, critic: CriticArrays, decisions: Decisions) -> list[Ended]:
    """Takes decisions in every place.

    Args:
        heads: called when episodes have begun.
        critic: weights of the policy's critic.
        decisions: rows to fill; `starts` is 0.

    Returns:
        The ends of episodes.

    Raises:
        FloatingPointError: a score of the policy is NaN or infinite.
    """
    n_steps = len(decisions.op)
    draws, batch = env.begin_rollout(n_steps), env.batch
    n_taken, ended = np.zeros(env.num_envs, dtype=np.int64), list[Ended]()
    while (n_taken < n_steps).any():
        for place in env.begin_episodes(n_taken < n_steps):
            decisions.starts[n_taken[place], place] = 1.0
        head = heads(np.unique(batch.observation.problem))
        state, before = new_walk_state(head, batch), n_taken.copy()
        batch.loop(roll_out, draws, head, critic, state, n_taken, decisions)
        check_finite_scores(state)
        rewards = batch.rewards
        for place in np.flatnonzero(batch.done & (n_taken > before)).tolist():
            row = int(n_taken[place]) - 1
            decisions.reward[row, place] = rewards[place]
            ended.append(Ended(row, place, env.end_episode(place)))
    return ended


@kernel(entry=True)
def roll_out(
    packed,
    episodes,
    scratch,
    rules,
    first,
    draws,
    observation,
    result,
    head,
    critic,
    state,
    n_taken,
    decisions,
):
    """Takes decisions in some episodes in a row, in each until it is done or its rows are full.

    Args:
        packed, episodes, scratch, rules, first, observation, result: see `step_episodes`.
        draws: draws of these episodes, see `choose`, (n_episodes, n_steps).
        head: `HeadArrays`, with contexts of both heads. critic: `CriticArrays`.
        state: `WalkState`; rows of the episodes are written.
        n_taken: number of rows that are full, int64 (n,); written.
        decisions: `Decisions`; written, but `starts`.
    """
    n_steps = draws.shape[1]
    for row in range(len(draws)):
        e = first + row
        while n_taken[e] < n_steps and not result.done[e] and state.is_finite[e]:
            i = n_taken[e]
            decisions.problem[i, e] = observation.problem[e, 0]
            decisions.op[i, e] = observation.op[e, 0]
            copy(observation.mask[e], decisions.mask[i, e])
            for device in range(observation.devices.shape[1]):
                copy(observation.devices[e, device], decisions.devices[i, e, device])
            decisions.action[i, e] = decide(
                packed, episodes, scratch, rules, e, draws[row, i], observation, result, head, state
            )
            logits = state.scratch.logits[e]
            decisions.log_prob[i, e] = log_prob(logits, decisions.mask[i, e], decisions.action[i, e])
            decisions.value[i, e] = state_value(
                head, critic, state.scratch, e, decisions.problem[i, e], decisions.op[i, e]
            )
            decisions.reward[i, e] = result.reward[e]
            n_taken[e] += 1


@kernel
def log_prob(logits, mask, action):
    """Returns the log-probability of a device.

    Args:
        logits: float32 (max_devices,), of the offered devices.
        mask: int8 (max_devices,), 1 = offered.
        action: index of the device, int; negative where a logit is not finite.
    """
    if action < 0:
        return 0.0
    greatest, total = -np.inf, 0.0
    for device in range(len(mask)):
        if mask[device]:
            greatest = max(greatest, logits[device])
    for device in range(len(mask)):
        if mask[device]:
            total += np.exp(logits[device] - greatest)
    return logits[action] - greatest - np.log(total)


@kernel
def state_value(head, critic, scratch, e, problem, op):
    """Computes the value of the state in which the last decision was taken.

    Args:
        head: `HeadArrays`, with contexts of both heads. critic: `CriticArrays`.
        scratch: `HeadScratch` as `score` left it; `first` and `second` are written.
        e, problem, op: see `score`.
    """
    first, second = scratch.first[e], scratch.second[e]
    row = head.row_of[head.first_op[problem] + op]
    copy(head.contexts[row, len(first) :], first)
    add_product(scratch.pooled[e], critic.pool_weight, first)
    return output_of(critic, first, second)
