"""Everything on one device."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer


@placer("single")
def single(search: SearchState, rng: np.random.Generator) -> None:
    """Puts everything on the best single device; those that compute the step fastest are tried first."""
    n_ops = search.problem.graph.n_ops
    fastest_first = np.argsort(search.problem.op_seconds.sum(axis=0), kind="stable")
    search.score(np.repeat(fastest_first[:, None], n_ops, axis=1))
