"""Ratios of step times, their geometric means over graphs and seeds, and the intervals of these."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

import numpy as np

from agent.evaluation.comparison.intervals import Interval, nested_interval
from agent.evaluation.results import Trial

Where = tuple[str, str]
"""A graph and a cluster."""
Run = tuple[str, str]
"""A placer and its order."""


def geometric_mean(values: Iterable[float | None]) -> float | None:
    """Geometric mean of the values that are not None; None if there are none, 0 if one is 0."""
    numbers = [value for value in values if value is not None]
    if not numbers:
        return None
    return math.exp(fmean(map(math.log, numbers))) if min(numbers) > 0 else 0.0


def ratio_to_bound(trial: Trial) -> float | None:
    """Step time of a feasible placement over the lower bound; None where there is no bound for it."""
    is_bounded = trial.feasible and trial.is_placement and trial.lower_bound_s > 0
    return trial.step_time_s / trial.lower_bound_s if is_bounded else None


def ratio_to_single(trials: Iterable[Trial]) -> Interval | None:
    """Step time over that of the fastest single device, of feasible placements; None if there is none."""
    return _interval((trial, np.log(trial.ratio_to_single)) for trial in trials if trial.ratio_to_single)


def by_run(trials: Iterable[Trial]) -> dict[Run, dict[Where, list[Trial]]]:
    """Trials by placer and order, then by graph and cluster."""
    trials_of: dict[Run, dict[Where, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        trials_of[trial.placer, trial.order][trial.graph, trial.cluster].append(trial)
    return trials_of


def log_time(trials: Sequence[Trial]) -> float | None:
    """Mean logarithm of the step times of one placer's seeds; None if one is infeasible or takes no time."""
    if not trials or any(not trial.feasible or trial.step_time_s <= 0 for trial in trials):
        return None
    return float(np.mean([np.log(trial.step_time_s) for trial in trials]))


def compared(one: Mapping[Where, Sequence[Trial]], other: Mapping[Where, Sequence[Trial]]) -> Interval | None:
    """Step time over that of another placer on the graphs that both solved; None if there is none."""
    logs = []
    for where, trials in one.items():
        centre = log_time(other.get(where, ()))
        if centre is not None and log_time(trials) is not None:
            logs += [(trial, float(np.log(trial.step_time_s) - centre)) for trial in trials]
    return _interval(logs)


def _interval(logs: Iterable[tuple[Trial, float]]) -> Interval | None:
    nested = [(trial.family, (trial.graph, trial.cluster), log) for trial, log in logs]
    return nested_interval(nested) if nested else None
