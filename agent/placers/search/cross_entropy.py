"""The cross-entropy method: draws placements from device probabilities, and moves these towards the best."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.heuristics.contiguous import cut
from agent.placers.heuristics.fill import memory_fill
from agent.placers.heuristics.single import single
from agent.placers.units import unit_seconds, units_by_layer
from envs.objective import OVER_BYTES, TOTAL_S
from envs.problem import Problem
from graphs.limits import MIN_SECONDS
from graphs.system.array_types import FloatArray, IntArray

MAX_GROUPS = 128
"""Segments of layers that larger graphs are drawn in: a device for every unit alone is noise."""
POPULATION, MIN_POPULATION, ROUNDS = 400, 10, 60
"""Placements of a round, and the least of them; a small budget is spent in about so many rounds."""
ELITE = 0.1
"""Share of a round that the probabilities move towards."""
SMOOTHING = 0.3
"""Share of the old probabilities that is kept."""
EXPLORATION = 0.01
"""Share of the probabilities that stays even over all devices, so that no device is ruled out for good."""


@placer("cross-entropy", uses_rng=True)
def cross_entropy(search: SearchState, rng: np.random.Generator) -> None:
    """Draws each group of units from its own device probabilities, refitted to the best tenth of each round.

    The best single device and a fill by memory are scored first. Groups are segments of equal time of the
    units by layers.

    Source: Rubinstein 1999, "The cross-entropy method"; for device placement of groups of ops, Post (Gao et
    al., NeurIPS 2018), here without its policy gradient.
    """
    problem = search.problem
    for start in (single, memory_fill):
        if search.left:
            start(search, rng)
    if problem.n_devices == 1:
        return
    group_of, n_groups = _groups(problem)
    probability = np.full((n_groups, problem.n_devices), 1.0 / problem.n_devices)
    budget = search.budget.evaluations or POPULATION * ROUNDS
    population = min(max(budget // ROUNDS, MIN_POPULATION), POPULATION)
    while search.left:
        drawn = _draw(probability, population, rng)
        scores = search.score_units(drawn[:, group_of])
        if not len(scores):  # The seconds ended while they were drawn.
            return
        n_elite = max(round(ELITE * len(scores)), 1)
        elite = drawn[np.lexsort((scores[:, TOTAL_S], scores[:, OVER_BYTES]))[:n_elite]]
        frequency = (elite[:, :, None] == np.arange(problem.n_devices)).mean(axis=0)
        probability = SMOOTHING * probability + (1 - SMOOTHING) * frequency


def _groups(problem: Problem) -> tuple[IntArray, int]:
    """Group of each unit, int (n_units,), and the number of groups; each unit its own in small graphs."""
    n_units = len(problem.graph.units)
    if n_units <= MAX_GROUPS:
        return np.arange(n_units), n_units
    weight = np.maximum(unit_seconds(problem).mean(axis=1), MIN_SECONDS)
    every = np.arange(MAX_GROUPS)
    return cut(units_by_layer(problem.graph), weight, every, np.ones(MAX_GROUPS)), MAX_GROUPS


def _draw(probability: FloatArray, n: int, rng: np.random.Generator) -> IntArray:
    """Draws the device of each group, int (n, n_groups)."""
    n_groups, n_devices = probability.shape
    even = (1 - EXPLORATION) * probability + EXPLORATION / n_devices
    drawn: IntArray = (rng.random((n, n_groups, 1)) > even.cumsum(axis=1)[:, :-1]).sum(axis=2)
    return drawn
