"""Truncated rollouts of a simple rule decide alone, with nothing learned: the best at each op, or drawn."""

from __future__ import annotations

import time

import numpy as np
from numpy.typing import NDArray

from agent.placers.base import SearchState, placer
from agent.placers.completion import complete_placement
from agent.placers.memory_limits import MemoryLimits, retry_until_feasible
from agent.placers.search.particles import replace_dead_ends, replace_slow, resampling_interval
from envs.mdp.episodes import EpisodeBatch
from envs.mdp.features import HORIZONS, column
from envs.mdp.observation import Observation
from envs.problem import InfeasibleError, Problem
from graphs.system.array_types import IntArray

STEP_TIME = column(f"rollout_step_time_{HORIZONS[-1]}_over_least")
MEAN_FINISH = column(f"rollout_mean_finish_{HORIZONS[-1]}_over_least")
"""Columns of the observation: step time and mean finish at the furthest horizon."""
FINISH_WEIGHT, TEMPERATURE = 3.0, 0.1
"""Of drawn devices: the weight of the mean finish beside the step time, and by what their sum is divided."""
DECISIONS = 16
"""Decisions between two readings of the clock."""
PARTICLES = 63
"""Episodes of `rollout-beam` beside the greedy one, where the budget allows; as `policy-beam` has."""


@placer("rollout")
def rollout(search: SearchState, rng: np.random.Generator) -> None:
    """Places ops in program order, each where the step is shortest after a simple rule placed the next.

    Source: the rollout algorithm of Bertsekas, Tsitsiklis and Wu 1997, truncated as in
    `envs.mdp.rollout_features`; ties go to the earlier mean finish.
    """
    draw_rollouts(search, rng, 0)


@placer("rollout-beam", uses_rng=True)
def rollout_beam(search: SearchState, rng: np.random.Generator) -> None:
    """Keeps the best of many particles whose devices are drawn from the rollouts alone; one is greedy.

    It is `policy-beam` with the network left out: a device's logit is the step time after its rollout and
    three times the mean finish, both over the least of all devices, divided by -0.1.
    """
    draw_rollouts(search, rng, PARTICLES)


def draw_rollouts(search: SearchState, rng: np.random.Generator, n_drawn: int) -> None:
    """Scores the greedy rollout and drawn ones, with less memory until one is feasible.

    Rollouts that would not end in time are given up, unless the search needs a first placement.

    Args:
        n_drawn: how many are drawn, where the budget allows.
    """
    problem = search.problem

    def attempt(limits: MemoryLimits) -> IntArray | None:
        limit_s = np.inf if search.best is None and search.must_place else search.seconds_left
        found = _roll_out(limits.problem, max(min(n_drawn, search.left - 1), 0), rng, limit_s)
        if found is None:
            return None
        complete = np.stack([complete_placement(problem, device_of) for device_of in found])
        over_bytes = search.score(complete, overdue=True)[:, 1]
        return None if (over_bytes == 0.0).any() or not search.left else complete[0]

    retry_until_feasible(problem, attempt)


def _roll_out(problem: Problem, n_drawn: int, rng: np.random.Generator, limit_s: float) -> IntArray | None:
    """Devices of each op in the greedy episode and in drawn ones, int (1 + n_drawn, n_ops).

    They are -1 from the first op on that no device has memory for. None if the episodes would take longer
    than a limit, by the decisions so far.
    """
    began, n_units = time.perf_counter(), len(problem.graph.units)
    nothing_placed = np.full((1 + n_drawn, problem.graph.n_ops), -1)
    if not problem.graph.is_compute.any():
        return nothing_placed
    try:
        batch = EpisodeBatch([problem], 1 + n_drawn)
    except InfeasibleError:
        return nothing_placed
    batch.begin(0, 0, 0, rng)
    for episode in range(1, batch.n):
        batch.fork(0, episode)
    episodes, interval, decisions = np.arange(batch.n), resampling_interval(problem.graph.n_ops), 0
    is_drawn, done = episodes > 0, np.zeros(batch.n, dtype=bool)
    while not done.all():
        if done.any():
            replace_dead_ends(batch, episodes, done)
        if n_drawn and decisions and decisions % interval == 0:
            replace_slow(batch, episodes, is_drawn)
        done = batch.step(_choose(batch.observation, is_drawn, rng))[1]
        decisions += 1
        passed_s = time.perf_counter() - began
        if decisions % DECISIONS == 0 and passed_s * n_units > limit_s * decisions:
            return None
    return np.stack([batch.result(episode).device_of for episode in range(batch.n)])


def _choose(observation: Observation, is_drawn: NDArray[np.bool_], rng: np.random.Generator) -> IntArray:
    """Device of each episode's decision, int (n,).

    Args:
        is_drawn: whether an episode draws its devices, bool (n,); the others take the best.
    """
    usable = observation.mask.astype(bool)
    step_time = np.where(usable, observation.devices[:, :, STEP_TIME], np.inf)
    mean_finish = np.where(usable, observation.devices[:, :, MEAN_FINISH], np.inf)
    is_shortest = step_time == step_time.min(axis=1, keepdims=True)
    best: IntArray = np.where(is_shortest, mean_finish, np.inf).argmin(axis=1)
    if not is_drawn.any():
        return best
    logits = -(step_time + FINISH_WEIGHT * mean_finish) / TEMPERATURE
    drawn = (logits + rng.gumbel(size=logits.shape)).argmax(axis=1)
    chosen: IntArray = np.where(is_drawn, drawn, best)
    return chosen
