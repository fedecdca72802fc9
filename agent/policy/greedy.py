"""Greedy placements of a policy while it learns: their steps over one device's, and a drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from agent.placers.memory_limits import MemoryLimits
from agent.policy.decoding import decode_many
from agent.policy.policy import Policy
from envs.placement.render import Picture, timeline
from envs.placement.reward import Reward, simulated, timed_step
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem

INFEASIBLE_RATIO = 2.0
"""Step-time ratio that a placement out of memory counts as: much worse than any sensible one, but not so much
that one graph decides over all others."""


def ratios_over_orders(
    policy: Policy, problems: Sequence[Problem], orders: Sequence[str], *how: Any
) -> list[float]:
    """Computes `greedy_ratios` with a share of the orders for each problem, which costs as much as one order.

    The first problems are placed in the first orders, the next in the next, and so on: in one order each, or
    in as many as it takes for every order to be used. A problem in several gets the mean.

    Args:
        how: further arguments of `greedy_ratios`.
    """
    n_each = -(-len(orders) // max(len(problems), 1))
    sums = np.zeros(len(problems))
    for turn, order in enumerate(orders):
        placed = [index for index in range(len(problems)) if (turn - index * n_each) % len(orders) < n_each]
        sums[placed] += greedy_ratios(policy, [problems[index] for index in placed], order, *how)
    return [float(total) for total in sums / n_each]


def greedy_ratios(
    policy: Policy, problems: Sequence[Problem], order: str, reward: Reward = simulated, threads: int = 1
) -> list[float]:
    """Step time of the policy's greedy placement over that of the fastest single device, per problem.

    As the placer does, it places again with less memory where a placement is out of memory.

    Args:
        reward: says what the step takes under a placement that fits, and on the single device.
        threads: number of threads that share the placing.
    """
    ratios: dict[int, float] = {}
    waiting = {index: MemoryLimits(problem) for index, problem in enumerate(problems)}
    while waiting:
        left = [limits.problem for limits in waiting.values()]
        placements = decode_many(policy, left, order, threads=threads)
        for (index, limits), device_of in zip(list(waiting.items()), placements, strict=True):
            step = simulate_problem(problems[index], device_of[0])
            if step.fits:
                timed = step if reward is simulated else timed_step(reward, problems[index], device_of[0])
                ratio = timed.total_s / _single_device_s(problems[index], reward)
                ratios[index] = ratio if math.isfinite(ratio) else INFEASIBLE_RATIO
            if step.fits or not limits.tighten(step.peak_bytes) or not limits.problem.is_feasible:
                del waiting[index]
    return [ratios.get(index, INFEASIBLE_RATIO) for index in range(len(problems))]


def _single_device_s(problem: Problem, reward: Reward) -> float:
    """Seconds of the step on the fastest single device; simulated where it cannot be measured."""
    if reward is simulated:
        return problem.scale_s
    device = int(problem.single_device_s.argmin())
    step_s = timed_step(reward, problem, np.full(problem.graph.n_ops, device)).total_s
    return step_s if math.isfinite(step_s) else problem.scale_s


def drawn(policy: Policy, problem: Problem, order: str) -> Picture:
    """Draws the step of the policy's greedy placement, at least as wide as the step of one device."""
    device_of = decode_many(policy, [problem], order)[0][0]
    return timeline(problem, device_of, simulate_problem(problem, device_of), problem.scale_s)
