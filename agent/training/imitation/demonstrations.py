"""Placements to learn from, by search or by the policy itself, with the cost of every deviation from them.

Search finds in a second what reinforcement learning finds in hours, but for one graph at a time. A policy
that imitates what it found on many graphs starts from there, and carries over to graphs it never saw.

Much of what a search decides is chance: an op off the critical path may be anywhere. So a demonstration says
of every device how much longer the step becomes with this one op there. That can be said of any placement:
`practise` says it of the policy's own, whose walks pass through the situations that it gets itself into.

Source: imitation before reinforcement as in DOPPLER (Yao et al. 2025), here with annealing as the teacher;
the cost of each choice instead of one right answer, and in the learner's own situations, as in AggreVaTe
(Ross and Bagnell 2014, arXiv 1406.5979), the cost to go being that of a single deviation from the placement.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.placers.base import PLACERS, Budget
from agent.policy.decoding import decode_many
from agent.policy.policy import Policy
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from envs.simulator.single_moves import single_move_costs
from graphs.op_graph import IntArray

FAR = 0.02
"""Regret, in units of reward, beyond which no difference is made any more."""


@dataclass(frozen=True, eq=False)
class Demonstration:
    """A placement to imitate.

    Attributes:
        problem: index of its problem.
        device_of: device of each op, int (n_ops,).
        regret: of each decision unit and device, how much longer the step is with this unit there than with
            it on its best device, all else as it is; units of reward, float32 (n_units, n_devices); infinity
            where it is much longer.
    """

    problem: int
    device_of: IntArray
    regret: NDArray[np.float32]


def demonstrate(
    problems: Sequence[Problem],
    *,
    repeats: int,
    evaluations: int,
    seed: int,
    announce: Callable[[str, float], None],
    should_stop: Callable[[], bool],
) -> list[Demonstration]:
    """Search every problem `repeats` times, on all cores; what does not fit in memory is left out.

    Args:
        evaluations: of each annealing.
        announce: told what goes on, and which share of it is done.
        should_stop: looked at between problems; what is done by then is returned.
    """
    jobs = [(problem, repeat) for repeat in range(repeats) for problem in range(len(problems))]
    activity = f"searching {len(jobs)} placements to imitate"

    def search(job: tuple[int, int]) -> Demonstration | None:
        problem, repeat = job
        if should_stop():
            return None
        rng = np.random.default_rng([seed, problem, repeat])
        found = PLACERS["annealing"].place(problems[problem], Budget(evaluations), rng)
        if not found.feasible:
            return None
        device_of = found.placement.device_of
        return Demonstration(problem, device_of, regrets(problems[problem], device_of))

    found = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done, result in enumerate(pool.map(search, jobs)):
            announce(activity, done / len(jobs))
            found.append(result)
    return [demonstration for demonstration in found if demonstration is not None]


def regrets(problem: Problem, device_of: IntArray) -> NDArray[np.float32]:
    """What moving each decision unit alone would cost or gain, as `Demonstration.regret` has it.

    Args:
        device_of: device of each op, int (n_ops,).

    Returns:
        Infinity for what is out of the question: longer than the placement by more than `FAR`.
    """
    total_s = single_move_costs(problem, device_of, FAR * problem.scale_s)
    regret = (total_s - total_s.min(axis=1, keepdims=True)) / problem.scale_s
    return np.asarray(regret, dtype=np.float32)


def practise(
    policy: Policy, problems: Sequence[Problem], *, order: str, rng: np.random.Generator
) -> list[Demonstration]:
    """Let a policy place every problem once, drawing each device; what does not fit in memory is left out.

    Args:
        order: what it walks in.
    """
    placements = decode_many(policy, problems, order, n_samples=1, rng=rng, greedy=False)

    def judge(index: int) -> Demonstration | None:
        problem, device_of = problems[index], placements[index][0]
        if not simulate_problem(problem, device_of).fits:
            return None
        return Demonstration(index, device_of, regrets(problem, device_of))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        judged = pool.map(judge, range(len(problems)))
        return [demonstration for demonstration in judged if demonstration is not None]
