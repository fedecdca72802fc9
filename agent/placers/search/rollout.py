"""Truncated rollouts of a simple rule decide alone, with nothing learned: the best at each op, or drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agent.placers.base import SearchState, placer
from agent.placers.memory_limits import MemoryLimits, complete_placement, retry_until_feasible
from agent.placers.search.walks import TAKE_BEST, Decider, Group, GroupWalk, WalkTooLongError
from envs.objective import OVER_BYTES
from envs.placement.episodes import EpisodeBatch
from envs.placement.generator import MdpError
from envs.placement.observation.features import COLUMN, HORIZONS
from envs.placement.transition import advance
from envs.problem import InfeasibleError, Problem
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel
from graphs.system.running_time import Clock

COSTS = tuple(
    getattr(COLUMN, f"rollout_{what}_{horizon}_over_least")
    for horizon in HORIZONS[1:]
    for what in ("step_time", "mean_finish")
)
"""Columns of the observation: step time and mean finish at all horizons but the near one."""
TEMPERATURE = 0.1
"""By what the cost of a device is divided where devices are drawn."""
PARTICLES = 63
"""Episodes of `rollout-beam` and `policy-beam` beside the greedy one, where the budget allows."""


@placer("rollout")
def rollout(search: SearchState, rng: np.random.Generator) -> None:
    """Places ops in program order, each where a simple rule leads to the earliest step and finishes.

    Source: the rollout algorithm of Bertsekas, Tsitsiklis and Wu 1997, truncated as in
    `envs.placement.observation.rollout_features`; step time and mean finish are added up.
    """
    draw_rollouts(search, rng, 0)


@placer("rollout-beam", uses_rng=True)
def rollout_beam(search: SearchState, rng: np.random.Generator) -> None:
    """Keeps the best of many particles whose devices are drawn from the rollouts alone; one is greedy.

    It is `policy-beam` with the network left out: a device's logit is the step time after its rollout and
    the mean finish, both over the least of all devices, divided by -0.1.
    """
    draw_rollouts(search, rng, PARTICLES)


def draw_rollouts(search: SearchState, rng: np.random.Generator, n_drawn: int) -> None:
    """Scores the greedy rollout and drawn ones, with less memory until one is feasible.

    Rollouts that would not end in time are given up, unless the search needs a first placement.

    Args:
        n_drawn: number of drawn ones, where the budget allows.
    """
    problem = search.problem
    if n_drawn and search.needs_placement and search.budget.seconds is not None:
        draw_rollouts(search, rng, 0)

    def place_within(limits: MemoryLimits) -> IntArray | None:
        limit_s = np.inf if search.needs_placement else search.seconds_left
        try:
            n_left = max(min(n_drawn, search.left - 1), 0)
            placements = _roll_out(limits.problem, n_left, rng, limit_s, search.budget.clock)
        except WalkTooLongError:
            return None
        over_bytes = search.score(placements, overdue=True)[:, OVER_BYTES]
        return None if (over_bytes == 0.0).any() or not search.left else placements[0]

    retry_until_feasible(problem, place_within)


def expected_rollout_s(problem: Problem, clock: Clock) -> float:
    """Predicts the seconds of a greedy rollout by its first decisions; a short one is taken to its end."""
    began_s = clock()
    try:
        _roll_out(problem, 0, np.random.default_rng(0), 0.0, clock)
    except WalkTooLongError as error:
        return error.all_s
    return clock() - began_s


def _roll_out(
    problem: Problem, n_drawn: int, rng: np.random.Generator, limit_s: float, clock: Clock
) -> IntArray:
    """Devices of each op in the greedy episode and in drawn ones, int (1 + n_drawn, n_ops).

    Raises:
        WalkTooLongError: they would not end in time.
    """
    group = Group(0, np.arange(1 + n_drawn) > 0, rng if n_drawn else None, resamples=n_drawn > 0)
    try:
        batch = EpisodeBatch([problem], group.size)
    except (InfeasibleError, MdpError):  # nothing to decide, or no memory for it
        return complete_placement(problem, np.full(problem.graph.n_ops, -1))[None]
    return np.stack(GroupWalk(RolloutRule(batch), batch, [group], rng).run(limit_s, clock)[0][1])


class RolloutRule(Decider):
    """The rule of `rollout` and of its drawn episodes, which construct."""

    def __init__(self, batch: EpisodeBatch) -> None:
        self._batch = batch

    def decide(self, n_decisions: IntArray, draws: NDArray[np.float64]) -> None:
        self._batch.loop(roll_out_groups, draws, n_decisions)


@kernel(entry=True)
def roll_out_groups(packed, episodes, scratch, rules, first, draws, observation, result, n_decisions):
    """Takes decisions of the rule in some groups of episodes in a row.

    Args:
        packed, episodes, scratch, rules, observation, result: see `step_episodes`.
        first: index of the first group, int.
        draws: draws of these groups, see `Decider.decide`.
        n_decisions: number for each group of the batch, int64 (n_groups of all,).
    """
    size = draws.shape[1]
    for row in range(len(draws)):
        group, n_left, n_done = first + row, size, 0
        while n_left == size and n_done < n_decisions[group]:
            for member in range(size):
                e = group * size + member
                if not result.done[e]:
                    device = choose(observation.devices[e], observation.mask[e], draws[row, member, n_done])
                    advance(packed, episodes, scratch, rules, e, device, observation, result)
                n_left -= result.done[e]
            n_done += 1


@kernel
def choose(features, mask, draw):
    """Chooses a device by what truncated rollouts lead to.

    Args:
        features: float32 (max_devices, N_DEVICE_FEATURES).
        mask: int8 (max_devices,), 1 = offered; at least one is.
        draw: uniform number from 0 to 1 that picks a device, float; `TAKE_BEST` picks that of the least cost.

    Returns:
        Index of the device, int.
    """
    best, least = -1, np.inf
    for device in range(len(mask)):
        if mask[device] and (best < 0 or cost(features[device]) < least):
            best, least = device, cost(features[device])
    if draw == TAKE_BEST:
        return best
    total = 0.0
    for device in range(len(mask)):
        if mask[device]:
            total += np.exp((least - cost(features[device])) / TEMPERATURE)
    left = draw * total
    for device in range(len(mask)):
        if mask[device]:
            best = device
            left -= np.exp((least - cost(features[device])) / TEMPERATURE)
            if left < 0.0:
                break
    return best


@kernel
def cost(row):
    """Computes the mean, over the horizons, of step time plus mean finish after a device's rollouts."""
    total = 0.0
    for column in COSTS:
        total += np.float64(row[column])
    return total / (len(HORIZONS) - 1)
