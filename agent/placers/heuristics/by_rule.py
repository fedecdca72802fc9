"""Placements by a rule that knows nothing of the graph: round-robin, and uniformly at random."""

from __future__ import annotations

import numpy as np

from agent.placers.base import BATCH, SearchState, placer


@placer("round-robin")
def round_robin(search: SearchState, rng: np.random.Generator) -> None:
    """Places the units in program order, each on the next device."""
    n_units = len(search.problem.graph.units)
    search.score_units((np.arange(n_units) % search.problem.n_devices)[None])


@placer("random", uses_rng=True)
def random(search: SearchState, rng: np.random.Generator) -> None:
    """Keeps the best of as many placements as the budget allows, each unit's device drawn uniformly."""
    n_units = len(search.problem.graph.units)
    while left := search.left:
        search.score_units(rng.integers(search.problem.n_devices, size=(min(left, BATCH), n_units)))
