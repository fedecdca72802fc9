"""Annealing that begins with what heuristics, or rollouts as well, find; with nothing learned."""

from __future__ import annotations

import numpy as np

from agent.placers.base import PLACERS, SearchState, placer
from agent.placers.search.annealing import anneal_from_leaders
from agent.placers.search.rollout import draw_rollouts

SAMPLES = 16
"""Rollouts that `rollout-refine` draws, where the budget allows; as many as `policy-refine` draws."""
BATCH_COST, MAX_DRAWING_SHARE = 4, 0.25
"""About how many times as long as the greedy rollout drawn ones take side by side, and the share of a budget
that is spent on them at most: annealing makes more of the rest."""


@placer("refine", uses_rng=True)
def refine(search: SearchState, rng: np.random.Generator) -> None:
    """Anneals, cool, from the best few that the heuristics find; so never worse than any of them."""
    score_heuristics(search, rng)
    anneal_from_leaders(search, rng)


@placer("rollout-refine", uses_rng=True)
def rollout_refine(search: SearchState, rng: np.random.Generator) -> None:
    """Anneals, cool, from the best few that the heuristics and some drawn rollouts find.

    It is `policy-refine` with the network left out. Where the budget is short, no rollouts are drawn.
    """
    score_heuristics(search, rng)
    before = search.progress
    if search.left:
        draw_rollouts(search, rng, 0)
    if search.left and BATCH_COST * (search.progress - before) < MAX_DRAWING_SHARE:
        draw_rollouts(search, rng, SAMPLES)
    anneal_from_leaders(search, rng)


def score_heuristics(search: SearchState, rng: np.random.Generator) -> None:
    """Scores what each heuristic of the registry finds by itself, as long as evaluations are left.

    Seconds do not end this: they limit what follows. So searches that begin here are never worse than a
    heuristic with the same budget, unless it has fewer evaluations than the heuristics make together.
    """
    for heuristic in PLACERS.values():
        if heuristic.is_start:
            search.run_to_end(heuristic.strategy, rng)
