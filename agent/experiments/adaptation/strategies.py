"""Strategies that choose what to measure; the first measurement of each is the best simulated placement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from agent.adaptation.adapt import EVALUATIONS, adapt
from agent.adaptation.corrections import models_of
from agent.experiments.adaptation.worlds import Meter
from agent.placers.base import Budget, SearchState
from agent.placers.heuristics.contiguous import cut
from agent.placers.search.refine import refine
from agent.placers.units import per_unit, unit_seconds, units_by_layer
from envs.problem import Problem
from graphs.limits import MIN_SECONDS
from graphs.system.array_types import IntArray

TEMPERATURE = 0.02
"""Of annealing: the mean loss that it accepts, as a logarithm of step times."""
GROUPS, KEPT, RATE, SCALE = 16, 0.9, 1.0, 0.1
"""Of reinforcement: segments of layers with a softmax of their own, the first probability that a segment
stays, the learning rate, and the difference of logarithms that is an advantage of 1."""


class Case(NamedTuple):
    """The input of a strategy.

    Attributes:
        problem: as it is simulated.
        starts: placements that searches with other seeds found there, best first.
        meter: measures placements.
        n_measured: number of measurements.
    """

    problem: Problem
    starts: Sequence[IntArray]
    meter: Meter
    n_measured: int
    rng: np.random.Generator


def adapted(case: Case) -> None:
    """Corrects classes, devices, links and rules."""
    adapt(models_of(case.problem), case.starts, case.meter, case.n_measured, case.rng)


def random_corrections(case: Case) -> None:
    """Measures what searches with drawn corrections find, without a fit."""
    models, rng = models_of(case.problem), case.rng
    case.meter(case.starts[0])
    for _ in range(case.n_measured - 1):
        model = models[rng.integers(len(models))]
        drawn = model.corrected(model.spreads * rng.standard_normal(len(model.spreads)))
        search = SearchState(drawn, Budget(2 * EVALUATIONS))
        refine(search, rng)
        case.meter(search.result().placement.device_of)


def best_of(case: Case) -> None:
    """Measures what searches with other seeds found."""
    for start in case.starts[: case.n_measured]:
        case.meter(start)


def annealing(case: Case) -> None:
    """Moves segments of layers to other devices, each move measured."""
    problem, starts, meter, count, rng = case
    graph, order = problem.graph, units_by_layer(problem.graph)
    current, current_s = per_unit(graph, starts[0]), meter(starts[0])
    for _ in range(count - 1):
        length = int(len(order) ** rng.uniform())
        first = int(rng.integers(len(order) - length + 1))
        tried = current.copy()
        tried[order[first : first + length]] = rng.integers(problem.n_devices)
        seconds = meter(tried[graph.unit_of])
        if np.log(seconds / current_s) < TEMPERATURE * rng.exponential():
            current, current_s = tried, seconds


def reinforcement(case: Case) -> None:
    """Follows the policy gradient of a softmax for each segment of layers: stay, or go to a device."""
    problem, starts, meter, count, rng = case
    weight = np.maximum(unit_seconds(problem).mean(axis=1), MIN_SECONDS)
    group_of = cut(units_by_layer(problem.graph), weight, np.arange(GROUPS), np.ones(GROUPS))
    base, n = per_unit(problem.graph, starts[0]), problem.n_devices
    logits = np.tile(np.log([KEPT, *[(1 - KEPT) / n] * n]), (GROUPS, 1))
    mean = np.log(meter(starts[0]))
    for number in range(1, count):
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        action = (rng.random((GROUPS, 1)) > p.cumsum(axis=1)[:, :-1]).sum(axis=1)
        chosen = action[group_of]
        log_s = np.log(meter(np.where(chosen > 0, chosen - 1, base)[problem.graph.unit_of]))
        if np.isfinite(log_s):
            logits += RATE * (mean - log_s) / SCALE * (np.eye(n + 1)[action] - p)
            mean += (log_s - mean) / (number + 1)


STRATEGIES: dict[str, Callable[[Case], None]] = {
    "adapt": adapted,
    "random corrections": random_corrections,
    "best of K": best_of,
    "annealing": annealing,
    "reinforcement": reinforcement,
}
