"""Placing a graph too large to be placed op by op: by groups, timed op by op."""

from __future__ import annotations

import time

import numpy as np

from agent.placers.base import Budget, PlacementResult, Placer
from envs.coarse_problem import CoarseProblem
from envs.placement.placement import Placement
from envs.simulator.simulate import simulate_problem


def place_coarsely(
    placer: Placer, coarse: CoarseProblem, budget: Budget, rng: np.random.Generator
) -> PlacementResult:
    """What a placer finds for the coarse graph, as a placement of the graph itself.

    The step time, and whether the placement fits, are those of the graph itself; evaluations are of the
    coarse one.
    """
    found = placer.place(coarse, budget, rng)
    began = time.perf_counter()
    device_of = coarse.coarsening.expand(found.placement.device_of)
    step_time = simulate_problem(coarse.fine, device_of)
    wall_s = found.wall_s + time.perf_counter() - began
    return PlacementResult(Placement(device_of), step_time, found.evaluations, wall_s)
