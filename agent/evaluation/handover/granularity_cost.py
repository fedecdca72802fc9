"""The cost of a granularity: the step that a search by op finds."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from agent.evaluation.handover.explain import WORTH_IT
from agent.placers.base import PLACERS, Budget
from envs.problem import Problem
from graphs.granularity import graph_by_op

EVALUATIONS = 1_000
"""Placements by op that are tried."""


def granularity_lines(problem: Problem, placed_s: float) -> list[str]:
    """Says in a line of 80 characters what placing by module, block or layer costs; no line by op."""
    by_op_s, budget = _by_op_s(problem), f"in {EVALUATIONS:,} evaluations"
    if by_op_s is None:
        return []
    if by_op_s > (1.0 - WORTH_IT) * placed_s:
        return [f"refine by op finds no shorter step {budget}"]
    times = f"{placed_s / by_op_s:.2f} times" if by_op_s else "many times"
    return [f"refine by op finds {by_op_s * 1e3:.4g} ms {budget}: {times} as fast"]


@lru_cache(maxsize=1)
def _by_op_s(problem: Problem) -> float | None:
    """Step by op, infinite if none is feasible; None for a graph that is by op.

    An evaluation asks for it with one placement of a problem after the other.
    """
    by_op = graph_by_op(problem.graph)
    if by_op is None:
        return None
    found = PLACERS["refine"].place(
        Problem(by_op, problem.cluster), Budget(EVALUATIONS), np.random.default_rng(0)
    )
    return found.step_time.total_s if found.feasible else math.inf
