"""The placer for every budget: list schedules, a rollout, a walk of the policy, annealing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from agent.placers.base import SearchState, Strategy
from agent.placers.search.annealing import PLANNING, STARTS, anneal_from_leaders
from agent.placers.search.refine import BATCH_COST, MAX_DRAWING_SHARE, SAMPLES, score_starts
from agent.placers.search.rollout import draw_rollouts
from agent.policy.placers import learned, policy_greedy

if TYPE_CHECKING:
    from agent.policy.decoding import ActingPolicy

ROLLOUT_COST, WALK_COST = 8.0, 3.0
"""At most, `rollout` takes so many times as long as a list schedule, and a walk of a policy as `rollout`."""
SHARE = 0.4
"""Share of the seconds that are left in which such a start must end. Tuned on graphs that no test uses."""


@learned("auto", is_hybrid=True)
def auto(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Anneals from the best few starts, each of which it tries only if it is predicted to end in time.

    Starts are the fastest single device, list schedules, the rule of `rollout` and a walk of the policy. Each
    takes some times as long as the one before, which is timed. Where they are quick, all other heuristics and
    drawn rollouts follow.
    """
    first, *schedules = STARTS
    first(search, rng)
    schedules_s = [_timed_s(search, start, rng) for start in schedules if search.has_time(PLANNING)]
    if _has_time(search, ROLLOUT_COST * min(schedules_s, default=np.inf)):
        rollout_s = _timed_s(search, partial(draw_rollouts, n_drawn=0), rng)
        if _has_time(search, WALK_COST * rollout_s):
            _timed_s(search, partial(policy_greedy, policy=policy, order=order), rng)
        if search.left and BATCH_COST * rollout_s < MAX_DRAWING_SHARE * search.seconds_left:
            score_starts(search, rng)
            draw_rollouts(search, rng, SAMPLES)
    anneal_from_leaders(search, rng)


def _timed_s(search: SearchState, strategy: Strategy, rng: np.random.Generator) -> float:
    """Runs a strategy in a share of the seconds that are left, and returns the seconds it took."""
    before_s = search.elapsed_s
    search.run_alone(strategy, rng, within_s=SHARE * search.seconds_left)
    return search.elapsed_s - before_s


def _has_time(search: SearchState, seconds: float) -> bool:
    """Says whether so many seconds are within a share of those that are left."""
    return search.left > 0 and (search.budget.seconds is None or seconds < SHARE * search.seconds_left)
