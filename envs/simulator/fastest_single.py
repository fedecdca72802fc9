"""The fastest single device of a problem, which ratios to a single device are relative to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.problem import Problem, kinds
from envs.simulator.simulate import simulate_problem


class FastestSingle(NamedTuple):
    """The fastest device that has the memory for all ops; where none has, the fastest of all.

    Attributes:
        step_s: simulated seconds of the step with all ops on it; 1 where no op takes time.
        fits: true if it has the memory.
    """

    device: int
    step_s: float
    fits: bool


def fastest_single(problem: Problem) -> FastestSingle:
    """Finds the fastest single device; one device of each kind is simulated."""
    ranked = []
    of_kind, _ = kinds(np.vstack([problem.op_seconds, problem.cluster.memory_bytes]))
    for device in of_kind.tolist():
        step = simulate_problem(problem, np.full(problem.graph.n_ops, device, dtype=np.int64))
        ranked.append((not step.fits, step.total_s, device))
    overflows, step_s, device = min(ranked)
    return FastestSingle(device, step_s or 1.0, not overflows)
