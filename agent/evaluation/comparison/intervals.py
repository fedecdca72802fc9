"""Confidence intervals of geometric means of step-time ratios, by the bootstrap.

Source: Efron and Tibshirani, An Introduction to the Bootstrap, 1993; for nested samples, Davison and Hinkley,
Bootstrap Methods and their Application, 1997, section 3.8.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple

import numpy as np

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
    return _interval(float((padded.sum(axis=1) / n_seeds).mean()), np.concatenate(drawn))


def crossed_interval(logs: FloatArray) -> Interval:
    """Resamples seeds and graphs, all pairs of which are there.

    Args:
        logs: logarithms of ratios, (n_seeds, n_graphs).
    """
    rng = np.random.default_rng(0)
    n_seeds, n_graphs = logs.shape
    seeds = rng.integers(n_seeds, size=(RESAMPLES, n_seeds))
    graphs = rng.integers(n_graphs, size=(RESAMPLES, n_graphs))
    return _interval(float(logs.mean()), logs[seeds[:, :, None], graphs[:, None, :]].mean(axis=(1, 2)))


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
    drawn: FloatArray = (means * is_graph).sum(axis=(1, 2)) / is_graph.sum(axis=(1, 2))
    return drawn


def _draw(counts: IntArray, most: int, rng: np.random.Generator) -> tuple[IntArray, np.ndarray]:
    """Draws as many of each population as it has, with replacement; pads, and says which count."""
    drawn = (rng.random((*counts.shape, most)) * counts[..., None]).astype(np.int64)
    return drawn, np.arange(most) < counts[..., None]


def _interval(mean: float, drawn: FloatArray) -> Interval:
    return Interval(*np.exp([mean, *np.quantile(drawn, [0.025, 0.975])]).tolist())
