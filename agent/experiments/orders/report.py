"""The tables of a study of orders, by family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from agent.experiments.orders.rows import OrderRow, Point
from agent.experiments.orders.statistics import OrderScores, scores_of, significance
from agent.experiments.rows import axis, grouped, markdown_table, read_rows

BASELINE = "topo"


def order_tables(rows_in: Path, curves_in: Path, arm: str) -> Iterator[str]:
    """Yields step times of an arm, what is shown, ratios with intervals, and equal processor time."""
    by_family = families_of(row for row in read_rows(rows_in, OrderRow) if row.arm == arm)
    yield quality_table(by_family)
    yield verdict_table(by_family)
    yield baseline_table(by_family)
    yield equal_time_table([point for point in read_rows(curves_in, Point) if point.arm == arm])


def families_of(rows: Iterable[OrderRow]) -> dict[str, OrderScores]:
    """Scores of each family that has all orders on the same seeds and graphs."""
    scored = {family: scores_of(own) for family, own in grouped(rows, lambda row: row.family).items()}
    return {family: scores for family, scores in scored.items() if scores is not None}


def quality_table(by_family: Mapping[str, OrderScores]) -> str:
    """A row per family: trainings, geometric mean of each order, the best in bold; the mean of full rows."""
    orders = _orders(by_family)

    def cell(scores: OrderScores, order: str) -> str:
        mean = scores.means.get(order)
        bold = "**" if order == scores.best else ""
        return "" if mean is None else f"{bold}{mean:.3f}{bold}"

    lines = [["family", "trainings x graphs", *orders]]
    for family, scores in by_family.items():
        cells = (cell(scores, order) for order in orders)
        lines.append([family, f"{len(scores.seeds)} x {len(scores.graphs)}", *cells])
    full = [scores.means for scores in by_family.values() if len(scores.orders) == len(orders)]
    means = [np.exp(np.mean([np.log(each[order]) for each in full])) for order in orders if full]
    return markdown_table([*lines, [f"mean of {len(full)}", "", *(f"{mean:.3f}" for mean in means)]])


def baseline_table(by_family: Mapping[str, OrderScores]) -> str:
    """A row per family: each order over the baseline's, with its interval."""
    orders = [order for order in _orders(by_family) if order != BASELINE]
    lines = [["family", *orders]]
    for family, scores in by_family.items():
        if BASELINE in scores.orders:
            against = {order: str(scores.against(order, BASELINE)) for order in scores.orders}
            lines.append([family, *(against.get(order, "") for order in orders)])
    return markdown_table(lines)


def equal_time_table(points: Sequence[Point]) -> str:
    """A row per family: each order at the processor time that its quickest order took in all."""
    curves = grouped(points, lambda point: (point.family, point.order, point.seed))
    orders = axis(order for _, order, _ in curves)
    lines = [["family", "CPU s", *orders]]
    for family in axis(family for family, _, _ in curves):
        own = {(order, seed): curve for (of, order, seed), curve in curves.items() if of == family}
        limit_s = min(curve[-1].cpu_s for curve in own.values())
        lines.append([family, f"{limit_s:.0f}", *(_cell(own, order, limit_s) for order in orders)])
    return markdown_table(lines)


def _cell(curves: Mapping[tuple[str, int], Sequence[Point]], order: str, limit_s: float) -> str:
    """Geometric mean over trainings of the last evaluation before a time."""
    found = [
        [point.ratio_to_single for point in curve if point.cpu_s <= limit_s]
        for (of, _), curve in curves.items()
        if of == order
    ]
    last = [ratios[-1] for ratios in found if ratios]
    return f"{np.exp(np.mean(np.log(last))):.3f}" if last and len(last) == len(found) else ""


def verdict_table(by_family: Mapping[str, OrderScores]) -> str:
    """A row per family: whether orders differ, the best, and those that are not shown to differ from it."""
    lines = [["family", "Friedman p", "best", "interquartile mean", "no difference shown to"]]
    for family, scores in by_family.items():
        tests = significance(scores)
        others = [each for each in tests.as_good_as(scores.best, scores.orders) if each != scores.best]
        middle = f"{scores.interquartile_mean(scores.best):.3f}"
        lines.append([family, f"{tests.p_friedman:.1e}", scores.best, middle, ", ".join(others) or "none"])
    return markdown_table(lines)


def _orders(by_family: Mapping[str, OrderScores]) -> list[str]:
    return axis(order for scores in by_family.values() for order in scores.orders)
