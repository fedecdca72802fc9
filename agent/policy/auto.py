"""The placer for every budget: list schedules, a rollout, a walk of the policy, annealing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from agent.placers.base import SearchState, Strategy
from agent.placers.heuristics.contiguous import contiguous
from agent.placers.search.annealing import PLANNING, STARTS, anneal_from_leaders
from agent.placers.search.refine import BATCH_COST, MAX_DRAWING_SHARE, SAMPLES, score_starts
from agent.placers.search.rollout import draw_rollouts, expected_rollout_s
from agent.policy.placers import learned, policy_greedy

if TYPE_CHECKING:
    from agent.policy.decoding import ActingPolicy

ROLLOUT_COST, WALK_COST = 8.0, 2.5
"""About how many times as long as a list schedule `rollout` takes, and as `rollout` a walk of the policy."""
PROBED_UNITS, PROBE_COST = 2_000, 1.15
"""Placement units from which on that is too rough, and the first decisions of a rollout are timed; how many
times as long as these say it takes."""
FIRST_SHARE, SHARE = 1.0, 0.4
"""Share of the seconds that are left in which the first of the two must end, and each other start. Where a
walk takes most of a budget, annealing gains less in it than the walk, unless it could move every unit once.
`SHARE` was tuned on graphs that no test uses, all else here on graphs of the page `budgets`."""
SLOW_LINKS = 3.2
"""Seconds of all transfers over those of all ops from which on links count as slow."""


@learned("auto", is_hybrid=True)
def auto(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Anneals from the best few starts, each of which it tries only if it is predicted to end in time.

    Starts are the fastest single device, list schedules, the rule of `rollout` and a walk of the policy. The
    walk comes before `rollout` where seconds count and memory is ample. Where there is time, all other
    heuristics and drawn rollouts follow. Where links are slow or no single device has the memory, a
    budget of seconds begins with `contiguous`: few tensors cross its cuts, and list schedules that overflow
    repeat up to 16 times. Where no single device has the memory, `m-etf` comes before `heft`, as it heeds it.
    """
    first, *schedules = STARTS
    first(search, rng)
    if not search.is_feasible:
        schedules.reverse()
    is_timed = search.budget.seconds is not None and search.has_time(PLANNING)
    if is_timed and (_has_slow_links(search) or not search.is_feasible):
        _timed_s(search, contiguous, rng, SHARE)
    schedules_s: list[float] = []
    for start in schedules:
        if search.has_time(PLANNING) and _has_time(search, max(schedules_s, default=0.0), SHARE):
            schedules_s.append(_timed_s(search, start, rng, SHARE))
    rollout_s = ROLLOUT_COST * min(schedules_s, default=np.inf)
    if len(search.problem.graph.units) > PROBED_UNITS and _has_time(search, rollout_s, FIRST_SHARE):
        rollout_s = PROBE_COST * expected_rollout_s(search.problem, search.budget.clock)
    walks = [
        (1.0, partial(draw_rollouts, n_drawn=0)),
        (WALK_COST, partial(policy_greedy, policy=policy, order=order)),
    ]
    one_move_each_s = len(search.problem.graph.units) * search.least_simulation_s
    most = FIRST_SHARE
    for cost, walk in reversed(walks) if search.is_feasible and search.budget.seconds is not None else walks:
        share = most if cost * rollout_s < one_move_each_s else SHARE
        if _has_time(search, cost * rollout_s, share):
            before, most = search.evaluations, SHARE
            walk_s = _timed_s(search, walk, rng, share)
            rollout_s = max(walk_s / cost, rollout_s if search.evaluations == before else 0.0)
    if _has_time(search, BATCH_COST * rollout_s, MAX_DRAWING_SHARE):
        score_starts(search, rng)
        if search.left:
            _timed_s(search, partial(draw_rollouts, n_drawn=SAMPLES), rng, SHARE)
    anneal_from_leaders(search, rng)


def _has_slow_links(search: SearchState) -> bool:
    """Says whether seconds count and links are slow."""
    problem = search.problem
    transfers_s, ops_s = problem.mean_transfer_s.sum(), problem.op_seconds.mean(axis=1).sum()
    return search.budget.seconds is not None and bool(transfers_s > SLOW_LINKS * ops_s)


def _timed_s(search: SearchState, strategy: Strategy, rng: np.random.Generator, share: float) -> float:
    """Runs a strategy in a share of the seconds that are left, and returns the seconds it took."""
    before_s = search.elapsed_s
    search.run_alone(strategy, rng, within_s=share * search.seconds_left)
    return search.elapsed_s - before_s


def _has_time(search: SearchState, seconds: float, share: float) -> bool:
    """Says whether so many seconds are within a share of those that are left."""
    return search.left > 0 and (search.budget.seconds is None or seconds < share * search.seconds_left)
