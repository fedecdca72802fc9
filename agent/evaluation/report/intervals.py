"""Ratios of step times over graphs and seeds, with intervals by hierarchical bootstrap."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from agent.evaluation.results import Trial

RESAMPLES = 1_000
Where = tuple[str, str]
"""A graph and a cluster."""
Run = tuple[str, str]
"""A placer and its order."""


class Interval(NamedTuple):
    """A geometric mean and its 95 % interval."""

    mean: float
    low: float
    high: float


def bootstrap(logs: Sequence[Sequence[float]]) -> Interval:
    """Geometric mean over graphs of the mean over seeds, and its 95 % interval.

    Graphs are drawn with replacement, and for each of them as many of its seeds as it has.

    Args:
        logs: logarithms of ratios; one list per graph, one number per seed; none is empty.
    """
    counts = np.array([len(each) for each in logs])
    padded = np.zeros((len(logs), counts.max()))
    for index, each in enumerate(logs):
        padded[index, : len(each)] = each
    means = padded.sum(axis=1) / counts
    rng = np.random.default_rng(0)
    drawn = np.array([_resampled_mean(padded, counts, rng) for _ in range(RESAMPLES)])
    mean, low, high = np.exp([means.mean(), *np.quantile(drawn, [0.025, 0.975])])
    return Interval(float(mean), float(low), float(high))


def _resampled_mean(padded: np.ndarray, counts: np.ndarray, rng: np.random.Generator) -> float:
    graphs = rng.integers(len(counts), size=len(counts))
    n = counts[graphs]
    if padded.shape[1] == 1:
        return float(padded[graphs, 0].mean())
    seeds = (rng.random((len(graphs), padded.shape[1])) * n[:, None]).astype(int)
    is_drawn = np.arange(padded.shape[1]) < n[:, None]
    return float(((padded[graphs[:, None], seeds] * is_drawn).sum(axis=1) / n).mean())


def ratio_to_single(trials: Iterable[Trial]) -> Interval | None:
    """Step time over that of the fastest single device, of feasible placements; None if there is none."""
    logs: dict[Where, list[float]] = defaultdict(list)
    for trial in trials:
        if trial.ratio_to_single:
            logs[trial.graph, trial.cluster].append(float(np.log(trial.ratio_to_single)))
    return bootstrap(list(logs.values())) if logs else None


def by_run(trials: Iterable[Trial]) -> dict[Run, dict[Where, list[Trial]]]:
    """Trials by placer and order, then by graph and cluster."""
    found: dict[Run, dict[Where, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        found[trial.placer, trial.order][trial.graph, trial.cluster].append(trial)
    return found


def log_time(trials: Sequence[Trial]) -> float | None:
    """Mean logarithm of the step times of one placer's seeds; None if one is infeasible or takes no time."""
    if any(not trial.feasible or trial.step_time_s <= 0 for trial in trials):
        return None
    return float(np.mean([np.log(trial.step_time_s) for trial in trials]))


def compared(own: Mapping[Where, Sequence[Trial]], other: Mapping[Where, Sequence[Trial]]) -> Interval | None:
    """Step time over that of another placer on the graphs that both solved; None if there is none."""
    logs = []
    for where in own.keys() & other.keys():
        centre = log_time(other[where])
        if log_time(own[where]) is not None and centre is not None:
            logs.append([float(np.log(trial.step_time_s)) - centre for trial in own[where]])
    return bootstrap(sorted(logs)) if logs else None
