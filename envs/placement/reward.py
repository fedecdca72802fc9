"""Rewards: what the step takes under the placement of an episode that ended.

During an episode, the reward of a decision is the drop of the simulated step time of what is placed. At the
end of an episode, the last reward changes so that the return is minus the step time that a `Reward` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from envs.simulator.simulate import StepTime, simulate_problem
from graphs.system.array_types import IntArray

if TYPE_CHECKING:
    from envs.problem import Problem

Reward: TypeAlias = "Callable[[Problem, IntArray], StepTime]"
"""Returns the step under a placement, int (n_ops,); one that does not fit counts as infeasible."""

simulated: Reward = simulate_problem


class Measured:
    """Measures the step.

    Args:
        timer: returns the seconds of a step on real devices, infinite where it cannot be run.
    """

    def __init__(self, timer: Callable[[Problem, IntArray], float]) -> None:
        self._timer = timer

    def __call__(self, problem: Problem, device_of: IntArray) -> StepTime:
        """Returns the simulated step with the measured time."""
        step, measured_s = simulate_problem(problem, device_of), self._timer(problem, device_of)
        return replace(step, total_s=measured_s, fits=step.fits and math.isfinite(measured_s))
