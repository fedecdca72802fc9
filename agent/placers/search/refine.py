"""Annealing that begins with what heuristics, or rollouts as well, find; with nothing learned."""

from __future__ import annotations

import numpy as np

from agent.placers.base import PLACERS, SearchState, placer
from agent.placers.search.annealing import PLANNING, STARTS, anneal_from_leaders
from agent.placers.search.rollout import draw_rollouts

START_SHARE = 0.6
"""Share of a budget of seconds that heuristics may take together. Tuned on large graphs that no test uses."""
SAMPLES = 16
"""Rollouts that `rollout-refine` draws, and episodes that `policy-refine` and `policy-sample` do, where the
budget allows."""
BATCH_COST, MAX_DRAWING_SHARE = 4, 0.25
"""About how many times as long as the greedy one drawn ones take side by side, and the share of a budget
that is spent on them at most: annealing makes more of the rest."""


@placer("refine", uses_rng=True)
def refine(search: SearchState, rng: np.random.Generator) -> None:
    """Anneals at a low temperature from the best placements of heuristics; never worse than one it tried."""
    score_starts(search, rng)
    anneal_from_leaders(search, rng)


@placer("rollout-refine", uses_rng=True)
def rollout_refine(search: SearchState, rng: np.random.Generator) -> None:
    """Anneals at a low temperature from the best placements of the heuristics and of some drawn rollouts.

    It is `policy-refine` without the network. If the budget is short, it draws no rollouts.
    """
    score_starts(search, rng)
    before = search.progress
    if search.left:
        draw_rollouts(search, rng, 0)
    if search.left and BATCH_COST * (search.progress - before) < MAX_DRAWING_SHARE:
        draw_rollouts(search, rng, SAMPLES)
    anneal_from_leaders(search, rng)


def score_starts(search: SearchState, rng: np.random.Generator) -> None:
    """Scores what each heuristic of the registry finds by itself.

    With a budget of evaluations alone, every heuristic is scored as long as evaluations are left, so searches
    that begin here are never worse than a heuristic. With a budget of seconds, the heuristics of local search
    come first, all heuristics share `START_SHARE` of it, and one that would take longer is left out.
    """
    starts = [placer.strategy for placer in PLACERS.values() if placer.is_start]
    but_s = 0.0
    if search.budget.seconds is not None:
        starts = list(dict.fromkeys([*STARTS, *starts]))
        but_s = (1.0 - START_SHARE) * search.budget.seconds
    for strategy in starts:
        if search.best is None or search.has_time(PLANNING, but_s=but_s):
            search.run_alone(strategy, rng, within_s=search.seconds_left - but_s)
