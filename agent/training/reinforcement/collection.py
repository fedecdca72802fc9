"""Collection of rollouts: a policy decides in all places of an environment, in one compiled loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from agent.policy.compiled.head import HeadArrays
from agent.policy.compiled.walk import check_finite_scores, new_walk_state
from agent.training.reinforcement.recording import CriticArrays, Decisions, roll_out
from agent.training.workers import SOLO, WorkerGroup
from envs.placement.vec_env import PlacementVecEnv
from graphs.system.array_types import IntArray

Heads = Callable[[IntArray], HeadArrays]
"""Returns the head of the policy, with the contexts of some problems, given by index, int (n,)."""


class Ended(NamedTuple):
    """The end of an episode: row and place of its last decision, and what the environment says of it."""

    row: int
    place: int
    info: dict[str, Any]


def collect(
    env: PlacementVecEnv, heads: Heads, critic: CriticArrays, decisions: Decisions, group: WorkerGroup = SOLO
) -> list[Ended]:
    """Takes decisions in every place.

    Args:
        heads: called when episodes have begun.
        critic: of the policy.
        decisions: rows to fill; `starts` is 0.
        group: the workers, each with such an environment.

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
    env.draw_beginnings(int(group.gather(torch.tensor([len(env.beginnings)])).max()))
    return ended
