"""The devices one after another, again and again."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer


@placer("round-robin")
def round_robin(search: SearchState, rng: np.random.Generator) -> None:
    """Places the units in program order, each on the next device."""
    n_units = len(search.problem.graph.units)
    search.score_units((np.arange(n_units) % search.problem.n_devices)[None])
