"""Compares traversal orders: paired over graphs and trainings, with intervals and tests."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from agent.evaluation.comparison.intervals import Interval, crossed_interval
from agent.experiments.orders.rows import OrderRow
from graphs.system.array_types import FloatArray

ALPHA = 0.05


@dataclass(frozen=True)
class OrderScores:
    """Logarithms of the step times of one family, on the graphs and seeds that every order has.

    Attributes:
        orders, seeds, graphs: the axes.
        logs: float (n_orders, n_seeds, n_graphs).
    """

    orders: tuple[str, ...]
    seeds: tuple[int, ...]
    graphs: tuple[str, ...]
    logs: FloatArray

    @property
    def means(self) -> dict[str, float]:
        """Geometric mean of each order."""
        return dict(zip(self.orders, np.exp(self.logs.mean(axis=(1, 2))).tolist(), strict=True))

    @property
    def best(self) -> str:
        """The order with the least geometric mean."""
        return min(self.means, key=self.means.__getitem__)

    def against(self, order: str, other: str) -> Interval:
        """Step time in one order over that in another: geometric mean, and its 95 % interval.

        Trainings and graphs are resampled, the same of both orders.
        """
        return crossed_interval(self._of(order) - self._of(other))

    def _of(self, order: str) -> FloatArray:
        logs: FloatArray = self.logs[self.orders.index(order)]
        return logs

    @property
    def by_graph(self) -> FloatArray:
        """Means over the seeds, (n_graphs, n_orders): the blocks of the tests."""
        blocks: FloatArray = self.logs.mean(axis=1).T
        return blocks

    def interquartile_mean(self, order: str) -> float:
        """Mean of the middle half of the step times over one device (Agarwal et al. 2021)."""
        return float(stats.trim_mean(np.exp(self._of(order)).ravel(), 0.25))


def scores_of(rows: Iterable[OrderRow]) -> OrderScores | None:
    """Arranges the rows of one family; None where no seed and graph has all of two orders or more."""
    found: dict[str, dict[tuple[int, str], float]] = defaultdict(dict)
    for row in rows:
        found[row.order][row.seed, row.graph] = row.ratio_to_single
    if len(found) < 2:
        return None
    shared = set.intersection(*(set(each) for each in found.values()))
    seeds = tuple(sorted({seed for seed, _ in shared}))
    graphs = tuple(sorted({graph for _, graph in shared}))
    if not shared or len(shared) != len(seeds) * len(graphs):
        return None
    orders = tuple(found)
    ratios = [[[found[order][seed, graph] for graph in graphs] for seed in seeds] for order in orders]
    return OrderScores(orders, seeds, graphs, np.log(ratios))


@dataclass(frozen=True)
class Significance:
    """Tests whether orders differ at all (Friedman), and which pairs do (Wilcoxon, corrected by Holm).

    Attributes:
        p_friedman: of no difference between any; 1 where it cannot be tested.
        p_pairs: corrected, by pair of orders.
    """

    p_friedman: float
    p_pairs: Mapping[tuple[str, str], float]

    def as_good_as(self, order: str, orders: Sequence[str]) -> list[str]:
        """Orders that no difference to an order is shown for."""
        return [
            other
            for other in orders
            if other == order
            or self.p_friedman >= ALPHA
            or self.p_pairs.get((order, other), self.p_pairs.get((other, order), 1.0)) >= ALPHA
        ]


def significance(scores: OrderScores) -> Significance:
    """Tests the orders, graph by graph; step times are means over seeds.

    The steps of a graph on two clusters are two blocks, which are not independent: p values are a guide.
    """
    blocks, pairs = scores.by_graph, list(itertools.combinations(range(len(scores.orders)), 2))
    if len(blocks) < 3 or len(scores.orders) < 3:
        return Significance(1.0, {})
    p_friedman = float(stats.friedmanchisquare(*blocks.T).pvalue)
    p_values = [_wilcoxon(blocks[:, a] - blocks[:, b]) for a, b in pairs]
    names = [(scores.orders[a], scores.orders[b]) for a, b in pairs]
    return Significance(p_friedman, dict(zip(names, holm(p_values), strict=True)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p values for their number (Holm 1979)."""
    n, corrected, least = len(p_values), [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(n), key=lambda index: p_values[index])):
        least = max(least, min((n - rank) * p_values[at], 1.0))
        corrected[at] = least
    return corrected


def _wilcoxon(differences: FloatArray) -> float:
    if not np.any(differences):
        return 1.0
    return float(stats.wilcoxon(differences).pvalue)
