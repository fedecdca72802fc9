"""Rewards: what the step takes under the placement of an episode that ended.

During an episode, the reward of a decision is the drop of the simulated step time of what is placed. At the
end of an episode, the last reward changes so that the return is minus the step time that a `Reward` says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from envs.placement.generator import MdpError
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.system.array_types import IntArray
from graphs.system.errors import checked

if TYPE_CHECKING:
    from envs.problem import Problem

Reward: TypeAlias = "Callable[[Problem, IntArray], StepTime | float]"
"""Returns the step under a placement, int (n_ops,), or its seconds; infinite where it is infeasible."""

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
        return timed_step(self._timer, problem, device_of)


def timed_step(reward: Reward, problem: Problem, device_of: IntArray) -> StepTime:
    """Returns the step that a reward gives; of a number of seconds, the simulated step with that time.

    Raises:
        MdpError: it gives something else, or a time that is not above 0.
    """
    step = checked(MdpError, "the result of the reward", reward(problem, device_of), float, StepTime)
    if not isinstance(step, StepTime):
        step = replace(simulate_problem(problem, device_of), total_s=float(step))
    if step.fits and not step.total_s > 0.0:
        raise MdpError(f"the reward gives {step.total_s} seconds for a step; give seconds above 0")
    return replace(step, fits=step.fits and math.isfinite(step.total_s))
