"""Ratios of step times, their geometric means over graphs and seeds, and intervals by the bootstrap.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993; for nested samples, Davison and Hinkley,
Bootstrap Methods and their Application, 1997, section 3.8.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

import numpy as np

from agent.evaluation.results import Trial
from graphs.system.array_types import FloatArray, IntArray

RESAMPLES = 2_000
AT_A_TIME = 100
"""Resamples that are held in memory together."""


class Interval(NamedTuple):
    """A geometric mean and its 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3f} ({self.low:.3f} to {self.high:.3f})"


def nested_interval(logs: Iterable[tuple[str, Hashable, float]]) -> Interval:
    """Resamples groups, the graphs of each group drawn, and the seeds of each graph drawn.

    The mean is that over all graphs, each of which counts as the mean of its seeds.

    Args:
        logs: group, graph and logarithm of a ratio of each seed, at least one. Where there is one group, or
            one seed of a graph, nothing is resampled there.
    """
    groups: dict[str, dict[Hashable, list[float]]] = {}
    for group, graph, log in logs:
        groups.setdefault(group, {}).setdefault(graph, []).append(float(log))
    graphs = [seeds for group in groups.values() for seeds in group.values()]
    n_seeds = np.array([len(seeds) for seeds in graphs])
    padded = np.zeros((len(graphs), n_seeds.max()))
    for index, seeds in enumerate(graphs):
        padded[index, : len(seeds)] = seeds
    n_graphs = np.array([len(group) for group in groups.values()])
    rng = np.random.default_rng(0)
    drawn = [_nested_means(padded, n_seeds, n_graphs, rng) for _ in range(RESAMPLES // AT_A_TIME)]
    return _bootstrapped(float((padded.sum(axis=1) / n_seeds).mean()), np.concatenate(drawn))


def crossed_interval(logs: FloatArray) -> Interval:
    """Resamples seeds and graphs, all pairs of which are there.

    Args:
        logs: logarithms of ratios, (n_seeds, n_graphs).
    """
    rng = np.random.default_rng(0)
    n_seeds, n_graphs = logs.shape
    seeds = rng.integers(n_seeds, size=(RESAMPLES, n_seeds))
    graphs = rng.integers(n_graphs, size=(RESAMPLES, n_graphs))
    return _bootstrapped(float(logs.mean()), logs[seeds[:, :, None], graphs[:, None, :]].mean(axis=(1, 2)))


def _nested_means(
    logs: FloatArray, n_seeds: IntArray, n_graphs: IntArray, rng: np.random.Generator
) -> FloatArray:
    """Means of `AT_A_TIME` resamples.

    Args:
        logs: by graph and seed, padded, (n_graphs, most_seeds).
        n_seeds: of each graph.
        n_graphs: of each group; the graphs of a group follow one another.
    """
    groups = rng.integers(len(n_graphs), size=(AT_A_TIME, len(n_graphs)))
    first = np.cumsum(n_graphs) - n_graphs
    graphs, is_graph = _draw(n_graphs[groups], int(n_graphs.max()), rng)
    graphs += first[groups][:, :, None]
    seeds, is_seed = _draw(n_seeds[graphs], logs.shape[1], rng)
    means = (logs[graphs[..., None], seeds] * is_seed).sum(axis=3) / n_seeds[graphs]
    return (means * is_graph).sum(axis=(1, 2)) / is_graph.sum(axis=(1, 2))


def _draw(counts: IntArray, most: int, rng: np.random.Generator) -> tuple[IntArray, np.ndarray]:
    """Draws as many of each population as it has, with replacement; pads, and says which count."""
    drawn = (rng.random((*counts.shape, most)) * counts[..., None]).astype(np.int64)
    return drawn, np.arange(most) < counts[..., None]


def _bootstrapped(mean: float, drawn: FloatArray) -> Interval:
    return Interval(*np.exp([mean, *np.quantile(drawn, [0.025, 0.975])]).tolist())


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
