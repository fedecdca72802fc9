"""The placer for every budget: list schedules, a rollout, a walk of the policy, annealing."""

from __future__ import annotations

from collections.abc import Sequence
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

ROLLOUT_COST, WALK_COST = 31.0, 1.5
"""About how many times as long as a list schedule `rollout` takes, and as `rollout` a walk of the policy."""
PROBED_UNITS = 2_000
"""Placement units from which on that is too rough, and the first decisions of a rollout are timed."""
SHARE = 0.4
"""Share of the seconds left in which each start must end, but for the first walk, which may take all, unless
annealing could move every unit once in them. Tuned on graphs that no test uses; all but `HASTY_SHARE`, which
was on graphs that the policy trains on, on those of the page `budgets`."""
HASTY_SHARE = 0.85
"""Share of them in which a walk that comes before most list schedules must be predicted to end."""
SLOW_LINKS = 3.2
"""Seconds of all transfers over those of all ops from which on links count as slow."""


@learned("auto", is_hybrid=True)
def auto(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Anneals from the best few starts, each of which it tries only if it is predicted to end in time.

    Starts are the fastest single device, list schedules, the rule of `rollout` and a walk of the policy. The
    walk comes before `rollout` where seconds count and memory is ample, and before list schedules where it
    takes most of the seconds. Where there is time, all other heuristics and drawn rollouts follow. Where
    links are slow or no single device has the memory, a budget of seconds begins with `contiguous`: few
    tensors cross its cuts, and list schedules that overflow repeat up to 16 times. Where no single device has
    the memory, `m-etf` comes before `heft`, as it heeds it.
    """
    first, *schedules = STARTS
    first(search, rng)
    n_units, rollout_s = len(search.problem.graph.units), np.inf
    is_timed = search.budget.seconds is not None and search.has_time(PLANNING)
    if n_units > PROBED_UNITS and is_timed:
        rollout_s = expected_rollout_s(search.problem, search.budget.clock)
    is_hasty = search.is_feasible and not _has_time(search, WALK_COST * rollout_s, SHARE)
    if is_hasty and _has_time(search, WALK_COST * rollout_s, HASTY_SHARE):
        _timed_s(search, schedules.pop(0), rng, SHARE)
    else:
        is_hasty, schedule_s = False, _schedule(search, rng, schedules)
        rollout_s = rollout_s if rollout_s < np.inf else ROLLOUT_COST * schedule_s
    decode = partial(policy_greedy, policy=policy, order=order)
    walks: list[tuple[float, Strategy]] = [(1.0, partial(draw_rollouts, n_drawn=0)), (WALK_COST, decode)]
    one_move_each_s, has_walked = n_units * search.least_simulation_s, False
    for cost, walk in reversed(walks) if search.is_feasible and is_timed else walks:
        share = SHARE if has_walked or cost * rollout_s >= one_move_each_s else 1.0
        if _has_time(search, cost * rollout_s, share):
            before, walk_s = search.evaluations, _timed_s(search, walk, rng, share)
            if search.evaluations > before:
                rollout_s, has_walked = walk_s / cost, True
    if is_hasty and not has_walked:
        _schedule(search, rng, schedules)
    if _has_time(search, BATCH_COST * rollout_s, MAX_DRAWING_SHARE):
        score_starts(search, rng)
        if search.left:
            _timed_s(search, partial(draw_rollouts, n_drawn=SAMPLES), rng, SHARE)
    anneal_from_leaders(search, rng)


def _schedule(search: SearchState, rng: np.random.Generator, schedules: Sequence[Strategy]) -> float:
    """Tries `contiguous` and list schedules; returns the seconds of the quickest schedule, inf if none."""
    schedules = schedules if search.is_feasible else schedules[::-1]
    problem, schedules_s = search.problem, list[float]()
    transfers_s, ops_s = problem.mean_transfer_s.sum(), problem.op_seconds.mean(axis=1).sum()
    needs_cuts = not search.is_feasible or transfers_s > SLOW_LINKS * ops_s
    if needs_cuts and search.budget.seconds is not None and search.has_time(PLANNING):
        _timed_s(search, contiguous, rng, SHARE)
    for start in schedules:
        if search.has_time(PLANNING) and _has_time(search, max(schedules_s, default=0.0), SHARE):
            schedules_s.append(_timed_s(search, start, rng, SHARE))
    return min(schedules_s, default=np.inf)


def _timed_s(search: SearchState, strategy: Strategy, rng: np.random.Generator, share: float) -> float:
    """Runs a strategy in a share of the seconds that are left, and returns the seconds it took."""
    before_s = search.elapsed_s
    search.run_alone(strategy, rng, within_s=share * search.seconds_left)
    return search.elapsed_s - before_s


def _has_time(search: SearchState, seconds: float, share: float) -> bool:
    """Says whether so many seconds are within a share of those that are left."""
    return search.left > 0 and (search.budget.seconds is None or seconds < share * search.seconds_left)
