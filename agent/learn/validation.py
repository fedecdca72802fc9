"""The quality of a policy while it trains: greedy placements of graphs kept for that, and references."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from agent.placers.base import PLACERS, Budget
from agent.placers.memory_limits import MemoryLimits
from agent.policy.decoding import decode_many
from agent.policy.policy import Policy
from envs.placement.render import Picture, timeline
from envs.placement.reward import Reward, simulated, timed_step
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.system import json_fields
from graphs.system.json_files import FileFormatError, read_json, write_json_atomic

Item = TypeVar("Item")
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
    for at, order in enumerate(orders):
        placed = [index for index in range(len(problems)) if (at - index * n_each) % len(orders) < n_each]
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


def some(items: Sequence[Item], most: int = 16) -> list[Item]:
    """Draws at most that many items, the same each time, in their order."""
    chosen = np.random.default_rng(0).permutation(len(items))[:most]
    return [items[index] for index in np.sort(chosen)]


ANNEALING_EVALUATIONS = 10_000
FORMAT = "placewalk.references/1"


def annealed_s(problems: Sequence[Problem], tell: Callable[[float], None] = lambda _: None) -> list[float]:
    """Step times that annealing finds with a fixed seed, or of one device if it finds no feasible placement.

    Args:
        tell: called with the share that is done.
    """

    def search(problem: Problem) -> float:
        found = PLACERS["annealing"].place(problem, Budget(ANNEALING_EVALUATIONS), np.random.default_rng(0))
        return found.step_time.total_s if found.feasible else problem.scale_s

    total_s: list[float] = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for found_s in pool.map(search, problems):
            tell(len(total_s) / len(problems))
            total_s.append(found_s)
    return total_s


def annealing_s(
    problems: Sequence[Problem], path: Path | None, announce: Callable[[str, float], None]
) -> list[float]:
    """Returns `annealed_s` of some problems, from a file if it has them.

    Args:
        path: file that keeps them for the same problems; it is written if they are not there. None for none.
            All is repeatable, so a file that is damaged is written anew; `announce` is told.
        announce: called with what goes on and which share of it is done.
    """
    keys = [f"{problem.graph.name} on {problem.cluster.name}" for problem in problems]
    try:
        if path is not None and (kept := _read(path, keys)) is not None:
            return kept
    except FileFormatError as error:
        announce(f"{error}; its content will be computed again", 0.0)
    activity = f"annealing {len(problems)} graphs to compare with"
    total_s = annealed_s(problems, partial(announce, activity))
    rows = [[key, found_s] for key, found_s in zip(keys, total_s, strict=True)]
    if path is not None:
        record = {"format": FORMAT, "evaluations": ANNEALING_EVALUATIONS, "annealing_s": rows}
        write_json_atomic(path, record)
    return total_s


def _read(path: Path, keys: Sequence[str]) -> list[float] | None:
    """The references of these problems, if the file holds them and no others.

    Raises:
        FileFormatError: the file is damaged.
    """
    if not path.exists():
        return None
    record, where = read_json(path), f"{path}: annealing_s"
    values = json_fields.fields(record, str(path), {"format", "evaluations", "annealing_s"}, format=FORMAT)
    names, found_s = [], []
    for row in json_fields.array(values["annealing_s"], where):
        if len(json_fields.array(row, where)) != 2:
            raise FileFormatError(f"{where}: holds a row of {len(row)} values; expected a name and seconds")
        names.append(json_fields.text(row[0], where))
        found_s.append(json_fields.number(row[1], where))
    if any(each <= 0 for each in found_s):
        raise FileFormatError(f"{where}: holds a step time that is not positive")
    return found_s if names == list(keys) else None
