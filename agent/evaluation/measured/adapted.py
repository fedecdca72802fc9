"""Placements that are found with costs that measured steps correct, and measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count

import numpy as np

from agent.adaptation.adapt import adapt
from agent.adaptation.corrections import models_of
from agent.evaluation.results import Trial
from envs.problem import Problem
from envs.runtime.step_meter import StepTimeStore
from envs.simulator.simulate import step_time_s
from graphs.system.array_types import IntArray

Placed = tuple[Trial, IntArray]
"""A trial, and the device of each op, (n_ops,)."""


def adapted(
    problem: Problem,
    found: Sequence[Placed],
    measurements: StepTimeStore,
    n_measured: int,
    report: Callable[[int, int], None],
) -> list[Placed]:
    """Measures the best placement, and others that are found with corrected costs.

    Args:
        found: different placements of the trials, the best first.
        report: called with (measurements made, measurements in all) before each.

    Returns:
        What was measured, in that order; fewer than `n_measured` where the searches find no others. New
        placements are trials of a placer `adapt`, and their seed is their number.
    """
    made = count()

    def measure(device_of: IntArray) -> float:
        report(next(made), n_measured)
        return measurements.measure(device_of).median_s

    trials = {device_of.tobytes(): trial for trial, device_of in found}
    starts = [device_of for trial, device_of in found if trial.feasible] or [found[0][1]]
    devices_of, _ = adapt(models_of(problem), starts, measure, n_measured, np.random.default_rng(0))
    new = replace(found[0][0], placer="adapt", order="")
    return [
        (
            trials.get(each.tobytes()) or replace(new, seed=number, step_time_s=step_time_s(problem, each)),
            each,
        )
        for number, each in enumerate(devices_of)
    ]
