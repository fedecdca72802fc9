"""Placements that are found with costs that measured steps correct, and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from agent.adaptation.adapt import adapt
from agent.adaptation.corrections import models_of
from agent.evaluation.results import Trial
from envs.problem import Problem
from envs.runtime.step_time_store import StepTimeStore
from envs.simulator.simulate import simulate_problem
from graphs.system.array_types import IntArray

ADAPT = "adapt"
"""The placer of these placements in `measured.csv`; their seed is their number."""
Placed = tuple[Trial, IntArray]
"""A trial, and the device of each op, (n_ops,)."""


def adapted(
    problem: Problem,
    found: Sequence[Placed],
    measurements: StepTimeStore,
    count: int,
    report: Callable[[int, int], None],
) -> list[Placed]:
    """Measures the best placement, and `count - 1` others that are found with corrected costs.

    Args:
        found: different placements of the trials, the best first.
        measurements: keeps the measured steps.
        report: called with (measurements made, measurements in all) before each.

    Returns:
        What was measured, in that order; fewer than `count` where the searches find no others.
    """
    n_made = 0

    def measure(device_of: IntArray) -> float:
        nonlocal n_made
        report(n_made, count)
        n_made += 1
        return measurements.measure(device_of).median_s

    (best, first), others = found[0], [device_of for trial, device_of in found[1:] if trial.feasible]
    known = {device_of.tobytes(): trial for trial, device_of in found}
    made, _ = adapt(models_of(problem), [first, *others], measure, count, np.random.default_rng(0))

    def trial_of(number: int, device_of: IntArray) -> Trial:
        simulated_s = simulate_problem(problem, device_of).total_s
        drawn = replace(best, placer=ADAPT, order="", seed=number, step_time_s=simulated_s)
        return known.get(device_of.tobytes(), drawn)

    return [(trial_of(number, each), each) for number, each in enumerate(made)]
