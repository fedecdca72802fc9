"""Random search."""

from __future__ import annotations

import numpy as np

from agent.placers.base import BATCH, SearchState, placer


@placer("random", uses_rng=True)
def random(search: SearchState, rng: np.random.Generator) -> None:
    """Keeps the best of as many placements as the budget allows, each unit's device drawn uniformly."""
    n_units = len(search.problem.graph.units)
    while left := search.left:
        search.score_units(rng.integers(search.problem.n_devices, size=(min(left, BATCH), n_units)))
