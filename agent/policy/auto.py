"""The placer for every budget: quick heuristics, walks of the policy, a race of descents, then annealing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from agent.placers.base import PLACERS, Leader, SearchState
from agent.placers.search.annealing import (
    COOL_MOVES,
    COOL_TEMPERATURE,
    LAST_TEMPERATURE,
    PLANNING,
    STARTS,
    layout_of,
    run_chain,
)
from agent.placers.search.rollout import draw_rollouts
from agent.policy.placers import learned, policy_greedy

if TYPE_CHECKING:
    from agent.policy.decoding import ActingPolicy

WALK, ROLLOUT, HEURISTIC = 450, 220, 60
"""Simulations of a placement that take about as long as a walk of the policy or of the rule of `rollout`, for
each placement unit of an op, and as one of the other heuristics."""
WALK_SHARE, ROLLOUT_SHARE, HEURISTICS_SHARE = 0.2, 0.3, 0.35
"""Shares of a budget of seconds by which walks and other heuristics must have ended."""
RACE_SHARE, RACE_MOVES = 0.3, 2
"""Share of the budget that is left, for a race of descents, and moves for each unit that a start needs."""


@learned("auto")
def auto(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Anneals from the start that a short descent leads furthest from.

    Starts are the fastest single device, list schedules, a walk of the policy, one of the rule of `rollout`
    and other heuristics, each only if it is predicted to take a small share of the seconds.
    """
    STARTS[0](search, rng)
    single = search.leaders[0]
    if search.budget.seconds is not None:
        search.score(single.device_of[None])  # timed again: the first simulations also load compiled code
    for start in STARTS[1:]:
        if search.has_time(PLANNING):
            start(search, rng)
    graph = search.problem.graph
    units_per_op = len(graph.units) / max(graph.n_ops, 1)
    if _has_time(search, WALK * units_per_op, WALK_SHARE):
        walk = partial(policy_greedy, policy=policy, order=order)
        search.run_alone(walk, rng, within_s=_left_s(search, WALK_SHARE))
    if _has_time(search, ROLLOUT * units_per_op, ROLLOUT_SHARE):
        search.run_alone(partial(draw_rollouts, n_drawn=0), rng, within_s=_left_s(search, ROLLOUT_SHARE))
    others = [each.strategy for each in PLACERS.values() if each.is_start and each.name != "rollout"]
    for strategy in others:
        if strategy not in STARTS and _has_time(search, HEURISTIC, HEURISTICS_SHARE):
            search.run_alone(strategy, rng, within_s=_left_s(search, HEURISTICS_SHARE))
    starts = [*search.leaders]
    if all(leader.score != single.score for leader in starts):
        starts.append(single)
    anneal_from_best(search, rng, starts)


def anneal_from_best(search: SearchState, rng: np.random.Generator, starts: list[Leader]) -> None:
    """Races descents from some starts, the slower half leaving after each round, and anneals from the winner.

    Where the seconds end after few moves, by what the descents show, the winner descends further instead.
    Source: successive halving, Jamieson and Talwalkar 2016 (arXiv 1502.07943).
    """
    if not search.has_time(PLANNING):
        return
    began, evaluations, layout = search.progress, search.evaluations, layout_of(search.problem)
    starts = _racing(search, starts)
    n_rounds, temperature = (len(starts) - 1).bit_length(), COOL_TEMPERATURE
    for number in range(n_rounds):
        ended = []
        for at, start in enumerate(starts):
            share = RACE_SHARE * (number + (at + 1) / len(starts)) / n_rounds
            until = began + (1.0 - began) * share
            ended.append(run_chain(search, rng, 0.0, 0.0, layout=layout, start=start, until=until) or start)
        starts = sorted(ended, key=lambda leader: leader.score)[: (len(starts) + 1) // 2]
    n_moves = (search.evaluations - evaluations) / RACE_SHARE
    is_short = n_moves < COOL_MOVES * len(search.problem.graph.units)
    if n_rounds and search.budget.seconds is not None and is_short:
        temperature = 0.0
    run_chain(search, rng, temperature, LAST_TEMPERATURE, layout=layout)


def _racing(search: SearchState, starts: list[Leader]) -> list[Leader]:
    """Takes as many starts as the budget is long enough for, at least the first and the last one."""
    left = search.left if search.budget.seconds is None else search.seconds_left / search.least_simulation_s
    n = int(RACE_SHARE * left / (RACE_MOVES * len(search.problem.graph.units)))
    return [*starts[: max(n - 1, 1)], *starts[1:][-1:]] if n < len(starts) else starts


def _left_s(search: SearchState, share: float) -> float:
    """Seconds until a share of the budget is spent; infinite without a limit of seconds."""
    seconds = search.budget.seconds
    return np.inf if seconds is None else share * seconds - search.elapsed_s


def _has_time(search: SearchState, simulations: float, share: float) -> bool:
    """Says whether what takes as long as some simulations ends before a share of the budget is spent."""
    return search.left > 0 and simulations * search.least_simulation_s < _left_s(search, share)
