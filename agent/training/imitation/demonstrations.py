"""Placements to learn from, by search or by the policy itself, with the cost of every single move from them.

Search finds in a second what reinforcement learning finds in hours, but for one graph at a time. A policy
that imitates what it found on many graphs starts from there, and carries over to graphs it never saw.

Much of what a search decides is chance: an op off the critical path may be anywhere. So a demonstration says
of every device how much longer the step becomes with this one op there. That can be said of any placement,
also of the policy's own, whose episodes pass through the situations that it gets itself into.

Source: imitation before reinforcement as in DOPPLER (Yao et al. 2025), here with annealing as the expert;
the cost of each choice instead of a single label, and in the learner's own situations, as in AggreVaTe
(Ross and Bagnell 2014, arXiv 1406.5979), the cost to go being that of a single move from the placement.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.policy.decoding import Samples, decode_many
from agent.policy.policy import Policy
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from envs.simulator.single_moves import single_move_costs
from graphs.system.array_types import IntArray

REGRET_LIMIT = 0.02
"""Regret, in units of reward, beyond which no difference is made any more."""


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A placement to imitate.

    Attributes:
        device_of: device of each op, int64 (n_ops,).
        regret: of each placement unit and device, how much longer the step is with this unit there than with
            it on its best device, all else as it is; units of reward, float32 (n_units, n_devices); infinity
            where it is much longer.
    """

    problem: int
    device_of: IntArray
    regret: NDArray[np.float32]


def regrets(problem: Problem, device_of: IntArray) -> NDArray[np.float32]:
    """Computes the regret of moving each placement unit alone, as in `Demonstration.regret`.

    Args:
        device_of: device of each op, int64 (n_ops,).

    Returns:
        Infinity for what is out of the question: longer than the placement by more than `REGRET_LIMIT`.
    """
    total_s = single_move_costs(problem, device_of, REGRET_LIMIT * problem.scale_s)
    regret = (total_s - total_s.min(axis=1, keepdims=True)) / problem.scale_s
    return np.asarray(regret, dtype=np.float32)


def own_placements(
    policy: Policy, problems: Sequence[Problem], *, order: str, rng: np.random.Generator
) -> list[Demonstration]:
    """Places every problem once by a policy, sampling each device; leaves out placements that are out of
    memory.
    """
    placements = decode_many(policy, problems, order, Samples(1, greedy=False), rng)

    def judge(index: int) -> Demonstration | None:
        problem, device_of = problems[index], placements[index][0]
        if not simulate_problem(problem, device_of).fits:
            return None
        return Demonstration(index, device_of, regrets(problem, device_of))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        judged = pool.map(judge, range(len(problems)))
        return [demonstration for demonstration in judged if demonstration is not None]
