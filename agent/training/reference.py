"""The list schedule that a policy is measured against while it trains."""

from __future__ import annotations

import numpy as np

from agent.placers.base import PLACERS, Budget, PlacementResult
from envs.problem import Problem

LIST_SCHEDULERS = ("heft", "m-etf")


def best_list_schedule(problem: Problem) -> PlacementResult | None:
    """The faster of the list schedules that fit; None where none does."""
    rng = np.random.default_rng(0)
    found = [PLACERS[name].place(problem, Budget(evaluations=8), rng) for name in LIST_SCHEDULERS]
    feasible = [result for result in found if result.feasible]
    return min(feasible, key=lambda result: result.step_time.total_s, default=None)


def list_schedule_s(problem: Problem) -> float:
    """Step time of the best list schedule that fits; of the fastest single device where none does."""
    best = best_list_schedule(problem)
    return problem.scale_s if best is None else best.step_time.total_s
