"""Placements by rule: everything on one device, round-robin, uniformly at random."""

from __future__ import annotations

import numpy as np

from agent.placers.base import BATCH, SearchState, placer
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
