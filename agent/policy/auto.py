"""The placer for every budget: list schedules, a rollout, a walk of the policy, annealing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from agent.placers.base import SearchState, Strategy
from agent.placers.heuristics.contiguous import contiguous
from agent.placers.heuristics.list_scheduling import heft, m_etf
from agent.placers.heuristics.single import single
from agent.placers.search.annealing import PLANNING, anneal_from_leaders
from agent.placers.search.refine import SAMPLES, score_starts
from agent.placers.search.rollout import draw_rollouts, expected_rollout_s
from agent.policy.placers import learned, policy_greedy

if TYPE_CHECKING:
    from agent.policy.decoding import ActingPolicy

ROLLOUT_COST, WALK_COST, MOVE_COST, PASS_COST = 31.0, 1.5, 0.2, 1.2
"""About how many times as long as a list schedule `rollout` takes, as `rollout` a walk of the policy, as a
simulation a move of annealing, and as its first decisions those of a rollout with a backward pass."""
LARGE_UNITS = 2_000
"""Placement units from which on that is too rough, and the first decisions of a rollout are timed."""
SHARE, SHARE_AFTER_WALK, MOST = 0.4, 0.1, 0.9
"""Shares of the seconds left in which a start, a list schedule after a walk, and a second walk that may take
most must be predicted to end. Tuned on graphs that no test uses, and on those of the page `budgets`."""


@learned("auto", is_hybrid=True)
def auto(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Anneals from the best few starts, each of which it tries only if it is predicted to end in time.

    Starts are the fastest single device, list schedules, a walk of the policy and the rule of `rollout`; on
    large graphs the walks come before list schedules, unless no single device has the memory. The first walk
    may take all seconds if annealing could not simulate every unit once meanwhile, the other most if it
    could not move every unit once. Drawn rollouts take 17 times as long as one: only where no seconds count.
    """
    single(search, rng)
    is_timed = search.budget.seconds is not None
    is_large = is_timed and len(search.problem.graph.units) > LARGE_UNITS and search.has_time(PLANNING)
    walks_first = is_large and search.is_feasible
    rollout_s = np.inf if walks_first else ROLLOUT_COST * _schedule(search, rng, SHARE)
    if is_large:
        rollout_s = PASS_COST * expected_rollout_s(search.problem, search.budget.clock)
    has_walked = _walk(search, rng, rollout_s, partial(policy_greedy, policy=policy, order=order))
    if walks_first:
        _schedule(search, rng, SHARE_AFTER_WALK if has_walked else SHARE)
    if not is_timed:
        score_starts(search, rng)
        if search.left:
            search.run_alone(partial(draw_rollouts, n_drawn=SAMPLES), rng)
    anneal_from_leaders(search, rng)


def _schedule(search: SearchState, rng: np.random.Generator, share: float) -> float:
    """Tries list schedules and `contiguous`; returns the seconds of the quickest, infinite if none.

    Where memory lacks, `heft` comes last, as it does not heed it and repeats up to 16 times.
    """
    schedules, schedules_s = [heft, m_etf, *[contiguous] * (search.budget.seconds is not None)], list[float]()
    for schedule in schedules if search.is_feasible else schedules[::-1]:
        longest_s = max(schedules_s, default=0.0)
        if search.has_time(round(PLANNING / share)) and _has_time(search, longest_s, share):
            schedules_s.append(_timed_s(search, schedule, rng, share))
    return min(schedules_s, default=np.inf)


def _walk(search: SearchState, rng: np.random.Generator, rollout_s: float, decode: Strategy) -> bool:
    """Tries the walk of the policy and the rollout, predicted to take `rollout_s`; says if one ended.

    The rollout comes first where memory lacks, as it heeds it, and where seconds do not count.
    """
    has_walked, sweep_s = False, len(search.problem.graph.units) * search.least_simulation_s
    walks: list[tuple[float, Strategy]] = [(1.0, partial(draw_rollouts, n_drawn=0)), (WALK_COST, decode)]
    policy_first = search.is_feasible and search.budget.seconds is not None
    for cost, walk in reversed(walks) if policy_first else walks:
        most = MOST if has_walked else 1.0
        share, limit = (most, 1.0) if cost * rollout_s < sweep_s else (SHARE, SHARE)
        if _has_time(search, cost * rollout_s, share):
            before, walk_s = search.evaluations, _timed_s(search, walk, rng, limit)
            if search.evaluations > before:
                rollout_s, sweep_s, has_walked = walk_s / cost, MOVE_COST * sweep_s, True
    return has_walked


def _timed_s(search: SearchState, strategy: Strategy, rng: np.random.Generator, share: float) -> float:
    """Runs a strategy in a share of the seconds that are left, and returns the seconds it took."""
    before_s = search.elapsed_s
    search.run_alone(strategy, rng, within_s=share * search.seconds_left)
    return search.elapsed_s - before_s


def _has_time(search: SearchState, seconds: float, share: float) -> bool:
    """Says whether so many seconds are within a share of those that are left."""
    return search.left > 0 and (search.budget.seconds is None or seconds < share * search.seconds_left)
