"""Placement of a graph that is too large to place op by op: by groups, timed op by op."""

from __future__ import annotations

import time

import numpy as np

from agent.placers.base import Budget, PlacementResult, Placer
from envs.coarse_problem import CoarseProblem
from envs.placement.placement import Placement


def place_coarsely(
    placer: Placer, coarse: CoarseProblem, budget: Budget, rng: np.random.Generator
) -> PlacementResult:
    """Places the groups of a coarse graph and expands the result to the ops of the graph itself.

    Step time and memory are those of the graph itself; evaluations are of the coarse one.
    """
    found = placer.place(coarse, budget, rng)
    began, cpu_began = time.perf_counter(), time.process_time()
    device_of = coarse.coarsening.expand(found.placement.device_of)
    wall_s = found.wall_s + time.perf_counter() - began
    cpu_s = found.cpu_s + time.process_time() - cpu_began
    return PlacementResult(coarse.fine, Placement(device_of), found.evaluations, wall_s, cpu_s)
