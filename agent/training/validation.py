"""How good a policy is while it trains: greedy walks over graphs kept for that."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from agent.placers.memory_limits import MemoryLimits
from agent.policy.decoding import decode_many
from agent.policy.policy import Policy
from agent.training.reference import list_schedule_s
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem

INFEASIBLE_RATIO = 2.0
"""What a placement that does not fit counts as: much worse than any sensible one, but not so much that one
graph decides over all others."""


class RelativeMetrics:
    """Relates step times of some problems to one device's and to the best list schedule's, by family."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = problems
        self._list_ratio = [list_schedule_s(problem) / problem.scale_s for problem in problems]

    def metrics(self, use: str, ratios: Iterable[tuple[int, float]]) -> dict[str, float]:
        """Geometric means of step-time ratios, `ratio/USE` and `ratio_to_list/USE`, per family and overall.

        Args:
            ratios: (index of the problem, step time over that of the fastest single device) pairs.
        """
        logs: defaultdict[str, list[float]] = defaultdict(list)
        for index, ratio in ratios:
            family = self.problems[index].graph.family
            to_list = ratio / self._list_ratio[index]
            for name, value in (("ratio", ratio), ("ratio_to_list", to_list)):
                logs[f"{name}/{use}"].append(np.log(value))
                logs[f"{name}/{use}/{family}"].append(np.log(value))
        return {name: float(np.exp(np.mean(values))) for name, values in logs.items()}


def ratios_over_orders(policy: Policy, problems: Sequence[Problem], orders: Sequence[str]) -> list[float]:
    """`greedy_ratios` with a share of the orders for each problem, so that all together cost as much as one.

    The first problems walk in the first orders, the next in the next, and so on: in one order each, or in as
    many as it takes to walk in all. A problem in several gets the mean.
    """
    n_each = -(-len(orders) // max(len(problems), 1))
    sums = np.zeros(len(problems))
    for at, order in enumerate(orders):
        walking = [index for index in range(len(problems)) if (at - index * n_each) % len(orders) < n_each]
        sums[walking] += greedy_ratios(policy, [problems[index] for index in walking], order)
    return [float(total) for total in sums / n_each]


def greedy_ratios(policy: Policy, problems: Sequence[Problem], order: str) -> list[float]:
    """Step time of the policy's greedy placement over that of the fastest single device, per problem.

    As the placer does, it walks again with less memory where a placement does not fit.
    """
    ratios: dict[int, float] = {}
    waiting = {index: MemoryLimits(problem) for index, problem in enumerate(problems)}
    while waiting:
        placements = decode_many(policy, [limits.problem for limits in waiting.values()], order)
        for (index, limits), device_of in zip(list(waiting.items()), placements, strict=True):
            step = simulate_problem(problems[index], device_of[0])
            if step.fits:
                ratios[index] = step.total_s / problems[index].scale_s
            if step.fits or not limits.tighten(step.peak_bytes) or not limits.problem.is_feasible:
                del waiting[index]
    return [ratios.get(index, INFEASIBLE_RATIO) for index in range(len(problems))]
