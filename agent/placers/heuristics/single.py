"""Everything on one device."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer
from envs.problem import Problem
from graphs.system.array_types import IntArray


@placer("single")
def single(search: SearchState, rng: np.random.Generator) -> None:
    """Puts everything on the best single device; those that compute the step fastest are tried first."""
    search.score(single_devices(search.problem))


def single_devices(problem: Problem) -> IntArray:
    """Makes the placements on one device each, those that compute the step fastest first.

    Returns:
        Device of each op, int (n_devices, n_ops).
    """
    fastest_first = np.argsort(problem.op_seconds.sum(axis=0), kind="stable")
    return np.repeat(fastest_first[:, None], problem.graph.n_ops, axis=1)
