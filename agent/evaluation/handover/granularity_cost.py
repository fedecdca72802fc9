"""The cost of a granularity: the step by op, and the modules whose ops wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from agent.evaluation.handover.waiting import unit_waiting_s
from agent.placers.base import PLACERS, Budget
from envs.problem import Problem
from graphs.granularity import granularity_of
from graphs.system.array_types import IntArray

EVALUATIONS = 1_000
"""Placements by op that are tried."""
N_MODULES = 3
"""Modules that are named; by op, they alone gained most of what all did."""


@dataclass(frozen=True)
class GranularityCost:
    """The cost of placing by module, block or layer.

    Attributes:
        by_op_s: step of the best placement by op that `refine` finds in `EVALUATIONS` evaluations, seconds;
            None if none is feasible.
        waiting: modules whose ops wait longest for others of the same unit, longest first; "" is the model.
    """

    by_op_s: float | None
    waiting: tuple[str, ...]


def granularity_cost(problem: Problem, device_of: IntArray) -> GranularityCost | None:
    """Finds what a granularity costs, and which units to split first; None for a graph that is placed by op.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.
    """
    granularity = granularity_of(problem.graph)
    if granularity is None:
        return None
    waiting_s = unit_waiting_s(problem, device_of)
    longest = [unit for unit in np.argsort(-waiting_s, kind="stable")[:N_MODULES] if waiting_s[unit] > 0]
    modules = tuple(granularity.modules[unit] for unit in longest)
    return GranularityCost(_by_op_s(problem), modules)


@lru_cache(maxsize=1)
def _by_op_s(problem: Problem) -> float | None:
    """Step by op; an evaluation asks for it with one placement of a problem after the other."""
    granularity = granularity_of(problem.graph)
    assert granularity is not None
    by_op = Problem(granularity.by_op, problem.cluster)
    step = PLACERS["refine"].place(by_op, Budget(EVALUATIONS), np.random.default_rng(0)).step_time
    return step.total_s if step.fits else None
