"""What the one-pass rule for copies beside ops leaves out, measured against a fluid model of the whole step.

In the fluid model an op works at 1 / `overlap_slowdown` of its speed whenever a copy to or from its device
runs, whichever of the two was issued first, and all that waits for it waits longer. It is a fixed point: the
step is simulated with the times that the copies of the last simulation give, until these stay as they are.

`python -m tests.envs.simulator.fluid_overlap` compares the two on the first graph of each family.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.arrays import empty_timeline
from envs.simulator.kernels import run_many
from envs.simulator.simulate import step_time_s
from graphs.dataset import load_family
from tests.envs.random_problems import random_placement, with_slowdown

ROUNDS = 100
KEPT_SHARE = 0.5
"""Share of an op's last time that it keeps from round to round; without it some steps swing for ever."""
FAMILIES = ("cifar10", "gpt", "inception", "moe", "nmt", "ptb")
CLUSTERS = {"4xv100-sxm2": 1.24, "8xa100-sxm4": 2.2}
"""Presets, with the slowdown between GPUs of their kind (`envs/README.md`)."""


@dataclass
class Comparison:
    """Step times of one placement in seconds: without slowdown, by the rule, and of the fluid model."""

    without_s: float
    rule_s: float
    fluid_s: float

    @property
    def found_share(self) -> float:
        """Share of what copies cost the step that the rule finds."""
        return (self.rule_s - self.without_s) / (self.fluid_s - self.without_s)


def compare(problem: Problem, device_of: np.ndarray, slowdown: float) -> Comparison:
    """Simulates a placement without slowdown, by the rule and in the fluid model."""
    plain = Problem(problem.graph, with_slowdown(problem.cluster, 1.0))
    slowed = Problem(problem.graph, with_slowdown(problem.cluster, slowdown))
    return Comparison(
        step_time_s(plain, device_of),
        step_time_s(slowed, device_of),
        fluid_step_time_s(plain, device_of, slowdown),
    )


def fluid_step_time_s(problem: Problem, device_of: np.ndarray, slowdown: float) -> float:
    """Step time of the fluid model on a problem without slowdowns, seconds; of the last round."""
    ops, seconds = np.arange(len(device_of)), problem.op_seconds
    total_s, slowed = np.zeros(1), seconds.copy()
    for _ in range(ROUNDS):
        p = problem.arrays._replace(op_seconds=slowed)
        timeline = empty_timeline(len(device_of), problem.graph.n_tensors, problem.n_devices)
        run_many(p, device_of[None], timeline, False, total_s, np.zeros((1, 0)))
        copies = copy_times(problem, device_of, timeline.sent)
        given = np.array(
            [
                slowed_s(timeline.start[op], seconds[op, device_of[op]], copies[device_of[op]], slowdown)
                for op in ops
            ]
        )
        last = slowed[ops, device_of].copy()
        if np.allclose(given, last, rtol=1e-6, atol=0):
            break
        slowed[ops, device_of] = KEPT_SHARE * last + (1 - KEPT_SHARE) * given
    return float(total_s[0])


def copy_times(problem: Problem, device_of: np.ndarray, sent_s: np.ndarray) -> list[list[list[float]]]:
    """Beginnings and ends of the spans in which copies to or from each device run, in order."""
    p = problem.arrays
    spans: list[list[list[float]]] = [[] for _ in range(problem.n_devices)]
    for slot in np.flatnonzero(sent_s >= 0):
        tensor, target = divmod(int(slot), problem.n_devices)
        source = int(device_of[p.producer[tensor]])
        copy_s = (p.size[tensor] + p.n_half[source, target]) / p.bandwidth[source, target]
        for device in (source, target):
            spans[device].append([sent_s[slot] - copy_s, sent_s[slot]])
    return [merged(sorted(of_device)) for of_device in spans]


def merged(spans: list[list[float]]) -> list[list[float]]:
    """Joins spans that touch."""
    joined: list[list[float]] = []
    for since, until in spans:
        if joined and since <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], until)
        else:
            joined.append([since, until])
    return joined


def slowed_s(start_s: float, work_s: float, copies: list[list[float]], slowdown: float) -> float:
    """Seconds that an op takes beside copies."""
    now, left_s = start_s, work_s
    for since, until in copies:
        if until <= now:
            continue
        if now + left_s <= since:
            break
        left_s -= max(since - now, 0.0)
        now = max(since, now)
        if left_s * slowdown <= until - now:
            return now + left_s * slowdown - start_s
        left_s -= (until - now) / slowdown
        now = until
    return now + left_s - start_s


def annealed(problem: Problem) -> np.ndarray:
    """Placement that 2,000 evaluations of annealing find without slowdown, int64 (n_ops,)."""
    budget, rng = Budget(evaluations=2_000), np.random.default_rng(0)
    return PLACERS["annealing"].place(problem, budget, rng).placement.device_of


def drawn(problem: Problem) -> np.ndarray:
    """Random placement, int64 (n_ops,)."""
    return random_placement(np.random.default_rng(0), problem.graph, problem.n_devices)


def main() -> None:
    """Prints the comparison."""
    for preset, slowdown in CLUSTERS.items():
        for name, place in (("annealed", annealed), ("random", drawn)):
            problems = [Problem(load_family(family)[0], get_cluster(preset)) for family in FAMILIES]
            compared = [compare(problem, place(problem), slowdown) for problem in problems]
            costs = [each.fluid_s / each.without_s - 1 for each in compared]
            found = [each.found_share for each in compared]
            print(
                f"{preset}, slowdown {slowdown}, {name} placements: copies cost {min(costs):.1%} to "
                f"{max(costs):.1%} of the step; the rule finds {np.median(found):.0%} of that "
                f"({min(found):.0%} to {max(found):.0%})"
            )


if __name__ == "__main__":
    main()
