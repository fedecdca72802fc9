"""The tables of the study of traversal orders, family by family; an arm is a kind of training.

- `rollout`: all features. In program order the simulated prefix and the rollouts are exact, elsewhere they
  are guesses, so orders differ in what their features say too.
- `prefix`: every order gets the same partial simulation of the ops decided so far, and no rollouts, so what
  is left is the order.
- `improve`: placements are improved on `placeto-k80:3` by reinforcement alone, as Wang et al. 2022
  (arXiv 2201.09676) did, on the three families of theirs.
- `placeto`: as `improve`, with the message passing of Placeto as the encoder.
- `attention`: placements are constructed, as GDP does, with an encoder of attention and reinforcement alone;
  the features are those of `prefix`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from scipy import stats

from agent.evaluation.comparison.intervals import crossed_interval
from agent.lab.rows import RecordedRow, axis, grouped, markdown_table, read_table
from graphs.system.array_types import FloatArray

BASELINE = "topo"
ALPHA = 0.05
LEARNERS = {
    "rollout": "construction, all features",
    "prefix": "construction, equal features",
    "improve": "improvement, reinforcement alone",
    "placeto": "improvement in Placeto's style",
    "attention": "construction in GDP's style",
}
"""Names of the learners of the arms."""


def order_tables(rows_in: Path, curves_in: Path, arm: str) -> Iterator[str]:
    """Yields step times of an arm, what is shown, ratios with intervals, and equal processor time."""
    rows = [row for row in read_table(rows_in) if row["arm"] == arm]
    by_family = {family: scores_of(own) for family, own in grouped(rows, lambda row: row["family"]).items()}
    yield quality_table(by_family)
    yield verdict_table(by_family)
    yield baseline_table(by_family)
    yield equal_time_table([point for point in read_table(curves_in) if point["arm"] == arm])


def learner_tables(rows_in: Path) -> Iterator[str]:
    """Yields the best order of each learner, and what the best order of another learner costs it."""
    by_learner: dict[str, dict[str, OrderScores]] = {}
    for (arm, family), rows in grouped(read_table(rows_in), lambda row: (row["arm"], row["family"])).items():
        by_learner.setdefault(LEARNERS[arm], {})[family] = scores_of(rows)
    best = [["family", *by_learner]]
    for family in axis(family for scores in by_learner.values() for family in scores):
        found = [scores.get(family) for scores in by_learner.values()]
        best.append([family, *(f"{each.best} {each.means[each.best]:.3f}" if each else "" for each in found)])
    yield markdown_table(best)
    costs = [["used by, order of", *by_learner]]
    for user, own in by_learner.items():
        pairs = ([(other[each], own[each]) for each in own if each in other] for other in by_learner.values())
        others = zip(by_learner, pairs, strict=True)
        costs.append([user, *("" if learner == user else cost_of(found) for learner, found in others)])
    yield markdown_table(costs)


def cost_of(pairs: Sequence[tuple[OrderScores, OrderScores]]) -> str:
    """Formats what the best orders of a learner cost another, by family, and how alike their ranks are.

    Args:
        pairs: of a family each, the learner that chose the order first.

    Returns:
        The step in the other's best order over that in the own, the geometric mean and the greatest, and
        Kendall's rank correlation of the orders, the mean.
    """
    costs = [user.means[source.best] / user.means[user.best] for source, user in pairs]
    alike = np.mean([agreement(*pair) for pair in pairs])
    return f"{np.exp(np.mean(np.log(costs))):.3f}, at most {max(costs):.3f}; {alike:.2f}"


def agreement(one: OrderScores, other: OrderScores) -> float:
    """Returns Kendall's rank correlation of the orders of two learners."""
    ranks = ([scores.means[order] for order in one.orders] for scores in (one, other))
    return float(stats.kendalltau(*ranks).statistic)


@dataclass(frozen=True)
class OrderScores:
    """Logarithms of the step times of one family over one device, on graphs that chose nothing.

    Attributes:
        orders: names.
        logs: float (n_orders, n_seeds, n_graphs).
    """

    orders: tuple[str, ...]
    logs: FloatArray

    @cached_property
    def means(self) -> dict[str, float]:
        """Geometric mean of each order."""
        return dict(zip(self.orders, np.exp(self.logs.mean(axis=(1, 2))).tolist(), strict=True))

    @property
    def best(self) -> str:
        """The order with the least geometric mean."""
        return min(self.means, key=self.means.__getitem__)


def scores_of(rows: Sequence[RecordedRow]) -> OrderScores:
    """Arranges the rows of one family, on the seeds and graphs that every order has."""
    found = {(row["order"], row["seed"], row["graph"]): row["ratio_to_single"] for row in rows}
    orders = axis(row["order"] for row in rows)
    seeds, graphs = (sorted({row[name] for row in rows}) for name in ("seed", "graph"))
    seeds = [seed for seed in seeds if all((order, seed, graphs[0]) in found for order in orders)]
    ratios = [[[found[order, seed, graph] for graph in graphs] for seed in seeds] for order in orders]
    return OrderScores(tuple(orders), np.log(ratios))


def quality_table(by_family: Mapping[str, OrderScores]) -> str:
    """A row per family: trainings, geometric mean of each order, the best in bold; a row of their mean."""
    orders = next(iter(by_family.values())).orders
    table = [["family", "trainings x graphs", *orders]]
    for family, scores in by_family.items():
        _, n_seeds, n_graphs = scores.logs.shape
        bold = {scores.best: "**"}
        cells = (f"{bold.get(order, '')}{scores.means[order]:.3f}{bold.get(order, '')}" for order in orders)
        table.append([family, f"{n_seeds} x {n_graphs}", *cells])
    logs = np.log([[scores.means[order] for order in orders] for scores in by_family.values()])
    means = [f"{mean:.3f}" for mean in np.exp(logs.mean(axis=0))]
    return markdown_table([*table, [f"mean of {len(by_family)}", "", *means]])


def baseline_table(by_family: Mapping[str, OrderScores]) -> str:
    """A row per family: each order over the baseline's, with its interval from trainings and graphs."""
    orders = [order for order in next(iter(by_family.values())).orders if order != BASELINE]
    table = [["family", *orders]]
    for family, scores in by_family.items():
        logs = dict(zip(scores.orders, scores.logs, strict=True))
        table.append([family, *(str(crossed_interval(logs[order] - logs[BASELINE])) for order in orders)])
    return markdown_table(table)


def verdict_table(by_family: Mapping[str, OrderScores]) -> str:
    """A row per family: whether orders differ, the best, and those that are not shown to differ from it.

    The steps of a graph on two clusters are two blocks, which are not independent: p values are a guide.
    """
    table = [["family", "Friedman p", "best", "interquartile mean", "no difference shown to"]]
    for family, scores in by_family.items():
        best = scores.orders.index(scores.best)
        middle = stats.trim_mean(np.exp(scores.logs[best]).ravel(), 0.25)
        blocks = scores.logs.mean(axis=1)
        p_friedman = stats.friedmanchisquare(*blocks).pvalue
        pairs = list(itertools.combinations(range(len(blocks)), 2))
        p_values = holm([float(stats.wilcoxon(blocks[a] - blocks[b]).pvalue) for a, b in pairs])
        level = [
            scores.orders[a if b == best else b]
            for (a, b), p_value in zip(pairs, p_values, strict=True)
            if best in (a, b) and (p_value >= ALPHA or p_friedman >= ALPHA)
        ]
        table.append([family, f"{p_friedman:.1e}", scores.best, f"{middle:.3f}", ", ".join(level) or "none"])
    return markdown_table(table)


def holm(p_values: Sequence[float]) -> list[float]:
    """Corrects p values for their number (Holm 1979)."""
    n, corrected, least = len(p_values), [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(n), key=lambda index: p_values[index])):
        least = max(least, min((n - rank) * p_values[at], 1.0))
        corrected[at] = least
    return corrected


def equal_time_table(points: Sequence[RecordedRow]) -> str:
    """A row per family: each order at the processor time that its quickest order took in all."""
    orders = axis(point["order"] for point in points)
    table = [["family", "CPU s", *orders]]
    for family, own in grouped(points, lambda point: point["family"]).items():
        curves = grouped(own, lambda point: (point["order"], point["seed"]))
        limit_s = min(curve[-1]["cpu_s"] for curve in curves.values())
        cells = [
            _cell([curve for (of, _), curve in curves.items() if of == order], limit_s) for order in orders
        ]
        table.append([family, f"{limit_s:.0f}", *cells])
    return markdown_table(table)


def _cell(curves: Sequence[Sequence[RecordedRow]], limit_s: float) -> str:
    """Geometric mean over trainings of the last evaluation before a time; empty if one has none."""
    found = [[point["ratio_to_single"] for point in curve if point["cpu_s"] <= limit_s] for curve in curves]
    return f"{np.exp(np.mean(np.log([ratios[-1] for ratios in found]))):.3f}" if all(found) else ""
