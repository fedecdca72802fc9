"""The list schedules that training is compared with on the way."""

from __future__ import annotations

import numpy as np

from agent.placers import PLACERS, Budget
from envs.problem import Problem

LIST_SCHEDULERS = ("heft", "m-etf")


def list_schedule_s(problem: Problem) -> float:
    """Step time of the best list schedule that fits; of the fastest single device where none does."""
    rng = np.random.default_rng(0)
    found = [PLACERS[name].place(problem, Budget(evaluations=8), rng) for name in LIST_SCHEDULERS]
    return min([result.step_time.total_s for result in found if result.feasible], default=problem.scale_s)
