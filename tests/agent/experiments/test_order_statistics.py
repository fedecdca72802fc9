"""Statistics of orders: known answers, and no difference found where there is none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.experiments.orders.answer import ARMS, changes_of
from agent.experiments.orders.report import (
    baseline_table,
    equal_time_table,
    families_of,
    quality_table,
    verdict_table,
)
from agent.experiments.orders.rows import OrderRow, Point
from agent.experiments.orders.statistics import holm, scores_of, significance
from agent.experiments.questions.policies import ORDERS as STUDIED
from graphs.orders import ORDERS


def rows(ratios: dict[str, float], n_seeds: int = 3, n_graphs: int = 8, noise: float = 0.0) -> list[OrderRow]:
    rng = np.random.default_rng(0)
    return [
        OrderRow("rollout", "f", order, seed, f"g{graph}", ratio * np.exp(noise * rng.normal()), 10, 1.0)
        for order, ratio in ratios.items()
        for seed in range(n_seeds)
        for graph in range(n_graphs)
    ]


def test_the_studied_orders_are_orders() -> None:
    assert set(STUDIED) < set(ORDERS)
    trials = changes_of("improve", ["cifar10"], ["topo", "bfs"])
    assert list(trials) == ["improve.cifar10.topo", "improve.cifar10.bfs"]
    assert trials["improve.cifar10.bfs"]["mdp"] == ARMS["improve"]["mdp"]
    assert trials["improve.cifar10.bfs"]["order"] == ("bfs",)


def test_orders_that_differ_are_told_apart() -> None:
    scores = scores_of(rows({"topo": 0.5, "bfs": 0.6, "alpha": 0.9}, noise=0.01))
    assert scores is not None
    assert scores.best == "topo"
    ratio, low, high = scores.against("bfs", "topo")
    assert low < ratio < high
    assert ratio == pytest.approx(1.2, rel=0.01)
    tests = significance(scores)
    assert tests.p_friedman < 0.01
    assert tests.as_good_as("topo", scores.orders) == ["topo"]


def test_no_difference_is_said_where_there_is_none() -> None:
    scores = scores_of(rows({"topo": 0.5, "bfs": 0.5, "alpha": 0.5}, noise=0.1))
    assert scores is not None
    _, low, high = scores.against("bfs", "topo")
    assert low < 1 < high
    assert significance(scores).as_good_as("topo", scores.orders) == ["topo", "bfs", "alpha"]


def test_only_seeds_and_graphs_that_all_orders_have_are_compared() -> None:
    found = rows({"topo": 0.5, "bfs": 0.6})
    short = [row for row in found if (row.order, row.seed) != ("bfs", 2)]
    scores = scores_of(short)
    assert scores is not None
    assert scores.seeds == (0, 1)
    assert scores.logs.shape == (2, 2, 8)
    assert scores_of([row for row in found if row.order == "topo"]) is None


def test_corrected_p_values_are_those_of_holm() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_tables_have_every_order_and_the_time_that_all_had() -> None:
    by_family = families_of(rows({"topo": 0.5, "bfs": 0.6}))
    assert "| f | 3 x 8 | **0.500** | 0.600 |" in quality_table(by_family)
    assert "| f | 1.200 (1.200 to 1.200) |" in baseline_table(by_family)
    assert "| f | 1.0e+00 | topo | 0.500 | bfs |" in verdict_table(by_family)
    points = [
        Point("rollout", "f", order, 0, cpu_s, ratio)
        for order, curve in {"topo": [(1, 0.8), (2, 0.7)], "bfs": [(1.5, 0.9), (3, 0.6)]}.items()
        for cpu_s, ratio in curve
    ]
    assert equal_time_table(points).splitlines()[-1] == "| f | 2 | 0.700 | 0.900 |"


def test_the_tables_of_a_study_that_is_not_done_leave_cells_empty() -> None:
    half = [replace(row, family="half") for row in rows({"topo": 0.5, "bfs": 0.6})]
    by_family = families_of([*rows({"topo": 0.5, "bfs": 0.6, "alpha": 0.9}), *half])
    assert "| half | 3 x 8 | **0.500** | 0.600 |  |" in quality_table(by_family)
    assert "| mean of 1 |  | 0.500 | 0.600 | 0.900 |" in quality_table(by_family)
    assert "| half | 1.200 (1.200 to 1.200) |  |" in baseline_table(by_family)
