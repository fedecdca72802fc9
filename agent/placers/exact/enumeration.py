"""Every placement of a small problem, one after the other."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState
from envs.problem import Problem

MAX_PLACEMENTS = 2**20
AT_A_TIME = 1024


def n_placements(problem: Problem) -> int:
    """Number of placements that keep colocation."""
    return int(problem.n_devices ** len(problem.graph.units))


def can_enumerate(search: SearchState) -> bool:
    """Says whether the placements are few, and the evaluations that are left suffice for all."""
    most, count = search.budget.evaluations, n_placements(search.problem)
    return count <= MAX_PLACEMENTS and (most is None or count <= most - search.evaluations)


def enumerate_placements(search: SearchState) -> bool:
    """Simulates every placement; returns whether all were.

    Devices that are alike are told apart, as the order in which a tensor is sent to several goes by their
    index. It stops after the first few where the seconds that are left will not suffice.
    """
    problem, count = search.problem, n_placements(search.problem)
    place_value = problem.n_devices ** np.arange(len(problem.graph.units))
    for first in range(0, count, AT_A_TIME):
        began_s = search.elapsed_s
        codes = np.arange(first, min(first + AT_A_TIME, count))
        if len(search.score_units(codes[:, None] // place_value % problem.n_devices)) < len(codes):
            return False
        left = (count - codes[-1] - 1) / AT_A_TIME
        if (search.elapsed_s - began_s) * left > search.seconds_left:
            return False
    return True
