"""Decoding: placements from a policy that takes the best device at every decision, or draws one.

A training compares the steps of greedy ones with one device's. With resampling, the episodes of a problem are
particles (`agent.placers.search.walks`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from agent.placers.memory_limits import MemoryLimits
from agent.placers.search.walks import Group, GroupWalk
from agent.policy.compiled.head import CompiledPolicy
from agent.policy.compiled.walk import PolicyDecider
from agent.policy.mdp_config import MdpConfig
from agent.policy.starts import episode_arguments
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.placement.observation.features import FEATURE_SETS, ROLLOUT
from envs.placement.render import Picture, timeline
from envs.placement.reward import Reward, simulated, timed_step
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.system.array_types import IntArray
from graphs.system.running_time import Clock, running_s


class ActingPolicy(Protocol):
    """A policy that can act; its weights may change between two decodings."""

    @property
    def mdp_config(self) -> MdpConfig:
        """The decision process that it acts in where nothing else is said."""

    def compiled(self) -> CompiledPolicy:
        """Returns the policy with its present weights in arrays."""


@dataclass(frozen=True)
class Samples:
    """The placements that are decoded of a problem.

    Attributes:
        drawn: number of those that draw each device.
        greedy: one that takes the best device at every op comes before them.
        resample: slow episodes are replaced by copies of fast ones, within subpopulations, and those without
            memory for an op by copies of others. The greedy one is replaced only where it has no memory for
            an op.
    """

    drawn: int = 0
    greedy: bool = True
    resample: bool = False


WIDTH = 64
"""Episodes decoded side by side."""


def decode(
    policy: ActingPolicy,
    problem: Problem,
    order: str = "topo",
    samples: Samples = Samples(),
    rng: np.random.Generator | None = None,
    **options: Any,
) -> IntArray:
    """Does what `decode_many` does for one problem; returns int64 (greedy + drawn, n_ops)."""
    return decode_many(policy, [problem], order, samples, rng, **options)[0]


def decode_many(
    policy: ActingPolicy,
    problems: Sequence[Problem],
    order: str = "topo",
    samples: Samples = Samples(),
    rng: np.random.Generator | None = None,
    *,
    mdp_config: MdpConfig | None = None,
    limit_s: float = math.inf,
    clock: Clock = running_s,
    threads: int = 1,
) -> list[IntArray]:
    """Finds placements of problems side by side, for one batch at a time.

    Args:
        order: name of the order to visit the ops in.
        rng: source of randomness; without it, one of a fixed seed.
        mdp_config: decision process; by default the policy's own.
        limit_s: seconds for all, without those of compiling.
        clock: counts these seconds.
        threads: number of threads that share the episodes of a batch.

    Returns:
        For each problem, the device of every op, int64 (greedy + drawn, n_ops). Where no device had
        memory for an op, `complete_placement` places the rest.

    Raises:
        MdpError, InfeasibleError, OrderError: as `EpisodeBatch`.
        FloatingPointError: a score of the policy is NaN or infinite.
        WalkTooLongError: the walks would not end in time.
    """
    ends_s = clock() + limit_s
    rng = rng or np.random.default_rng(0)
    compiled = policy.compiled()
    draws = [False] * samples.greedy + [True] * samples.drawn
    groups_of_each = [draws] if samples.resample else [[draw] for draw in reversed(draws)]
    # The decoder takes the last first: no long episode begins when the others are about to end.
    shortest_first = sorted(range(len(problems)), key=lambda index: problems[index].graph.n_ops)
    drawn = rng.spawn(len(groups_of_each) * len(problems)) if samples.drawn else []
    groups = [
        Group(index, np.array(draw), drawn.pop() if drawn else None, samples.resample)
        for index in shortest_first
        for draw in groups_of_each
    ]
    n_slots = min(max(WIDTH // groups[0].size, 1), len(groups))
    rolls_out = ROLLOUT in FEATURE_SETS[compiled.shape.feature_set]
    settings = EpisodeSettings((order,), **episode_arguments(mdp_config or compiled.mdp_config))
    batch = EpisodeBatch(problems, n_slots * groups[0].size, settings, threads=threads, rolls_out=rolls_out)
    decoded: list[list[IntArray]] = [[] for _ in problems]
    decider = PolicyDecider(compiled.head_arrays(problems), batch)
    for group, placements in GroupWalk(decider, batch, groups, rng).run(ends_s - clock(), clock):
        before = decoded[group.problem]
        before[:] = [*before, *placements] if group.draws[0] else [*placements, *before]
    return [np.stack(placements) for placements in decoded]


INFEASIBLE_RATIO = 2.0
"""Step-time ratio that a placement out of memory counts as: much worse than any sensible one, but not so much
that one graph decides over all others."""


def ratios_over_orders(
    policy: ActingPolicy, problems: Sequence[Problem], orders: Sequence[str], *how: Any
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
    policy: ActingPolicy,
    problems: Sequence[Problem],
    order: str,
    reward: Reward = simulated,
    threads: int = 1,
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


def drawn(policy: ActingPolicy, problem: Problem, order: str) -> Picture:
    """Draws the step of the policy's greedy placement, at least as wide as the step of one device."""
    device_of = decode_many(policy, [problem], order)[0][0]
    return timeline(problem, device_of, simulate_problem(problem, device_of), problem.scale_s)
