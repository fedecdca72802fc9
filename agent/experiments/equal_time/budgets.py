"""`auto` against every other search after each budget of seconds, by size of graph, cluster and granularity.

Budgets are processor seconds: the clock that searches read is that of the process.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from agent.evaluation.comparison.intervals import Interval, nested_interval
from agent.experiments.equal_time.sealed import ALL, sealed_graphs
from agent.experiments.rows import axis, grouped, kept_rows, markdown_table, read_rows
from agent.placers.base import Budget, Placer
from agent.placing.policies import make_placer, open_policy
from agent.policy.network import PlacementNetwork
from agent.policy.placers import learned_placer
from agent.policy.policy import Policy
from agent.policy.shape import NetworkShape
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.granularity import with_granularity
from graphs.system.progress import followed

AUTO, CONTROL = "auto", "auto-random-weights"
"""The placer, and the same one with a policy that learned nothing."""
LARGE_OPS = 3_000
"""Ops from which on a graph counts as large."""
LONG_S, LONGEST_S = 0.3, 1.0
"""Large graphs are placed within the first budget and longer ones, others within the second and less."""


@dataclass(frozen=True)
class BudgetRow:
    """A placer on a graph with a budget.

    Attributes:
        seconds: the budget.
        step_s: simulated step time; infinite where no placement is feasible.
        cpu_s: processor seconds that it took.
    """

    graph: str
    family: str
    n_ops: int
    cluster: str
    granularity: str
    seconds: float
    placer: str
    seed: int
    step_s: float
    cpu_s: float

    @property
    def cell(self) -> tuple[str, str, float]:
        """Cluster, size with the granularity, and budget."""
        size = f"{LARGE_OPS:,} ops and more" if self.n_ops >= LARGE_OPS else f"below {LARGE_OPS:,} ops"
        return self.cluster, size if self.granularity == "op" else f"{size}, {self.granularity}", self.seconds


def budget_rows(
    folder: Path,
    unlearned: Sequence[str],
    learned: Sequence[str],
    clusters: Sequence[str],
    seconds: Sequence[float],
    granularities: Sequence[str],
    families: Sequence[str],
    seeds: int,
    first_seed: int,
) -> Iterator[list[BudgetRow]]:
    """Places one draw of each family with each placer, granularity and budget.

    Args:
        folder: keeps the rows of each budget.
        unlearned, learned: placers besides `auto`.
        families: of the sealed set; none for all.
        first_seed: as `sealed_graphs` takes it.
    """
    policy = open_policy("pretrained", [])
    graphs = sealed_graphs(families or ALL, first_seed=first_seed, how_seen=policy.stored.card.how_seen)
    placers = [make_placer(name, policy, "topo") for name in (AUTO, *unlearned, *learned)]
    placers.append(control(policy.stored.card.shape))
    found: list[BudgetRow] = []
    for granularity, budget in itertools.product(granularities, seconds):
        chosen = [
            with_granularity(graph, granularity)
            for graph in graphs
            if (budget >= LONG_S if graph.n_ops >= LARGE_OPS else budget <= LONGEST_S)
        ]
        problems = [Problem(graph, get_cluster(cluster)) for cluster in clusters for graph in chosen]
        make = partial(_rows, problems, placers, granularity, budget, seeds)
        with patch("time.perf_counter", time.process_time):
            found += kept_rows(folder / f"{granularity}-{budget:g}-s.csv", BudgetRow, make)
    yield found


def control(shape: NetworkShape) -> Placer:
    """Makes `auto` with random weights in a network of a shape."""
    torch.manual_seed(0)
    policy = Policy(PlacementNetwork(shape)).compiled()
    return replace(learned_placer(AUTO, policy, "topo"), name=CONTROL)


def _rows(
    problems: Sequence[Problem], placers: Sequence[Placer], granularity: str, seconds: float, seeds: int
) -> Iterator[BudgetRow]:
    for placer in placers:
        placer.place(problems[0], Budget(None, seconds), np.random.default_rng(0))  # compiles
    for problem in followed([each for each in problems if each.is_feasible], f"{seconds:g} s"):
        for placer, seed in itertools.product(placers, range(seeds)):
            found = placer.place(problem, Budget(None, seconds), np.random.default_rng(seed))
            yield BudgetRow(
                problem.graph.name,
                problem.graph.family,
                problem.graph.n_ops,
                problem.cluster.name,
                granularity,
                seconds,
                placer.name,
                seed,
                found.step_time.total_s if found.feasible else np.inf,
                found.cpu_s,
            )


def budget_tables(
    file: Path, clusters: Sequence[str], unlearned: Sequence[str], learned: Sequence[str]
) -> Iterator[str]:
    """Yields `auto` over the best placer of each cell, without and with learning, its control, and overruns.

    Args:
        file: of the rows.
        clusters: not read; the rows name theirs.
        unlearned, learned: placers besides `auto`.
    """
    rows = read_rows(file, BudgetRow)
    yield _table(rows, unlearned)
    yield _table(rows, [*unlearned, *learned])
    yield _table(rows, [CONTROL])
    own = grouped((row for row in rows if row.placer == AUTO), lambda row: row.seconds)
    late = [
        [f"{budget:g} s", f"{max(row.cpu_s - budget for row in own[budget]) * 1e3:.0f} ms"] for budget in own
    ]
    yield markdown_table([["budget", "most that `auto` took beyond it"], *late])


def _table(rows: Sequence[BudgetRow], placers: Sequence[str]) -> str:
    """Formats `auto` over the placer of the least geometric mean in each cell, named if there are several."""
    cells = {}
    for cell, members in grouped(rows, lambda row: row.cell).items():
        logs = {placer: _logs(members, placer) for placer in (AUTO, *placers)}
        best = min(placers, key=lambda placer: np.mean([*logs[placer].values()]))
        n_infeasible = sum(value == np.inf for value in logs[AUTO].values())
        note = f", {n_infeasible} infeasible" if n_infeasible else ""
        name = f" {best}" if len(placers) > 1 else ""
        cells[cell] = f"{_over(members, logs[AUTO], logs[best])}{name}{note}"
    budgets, kinds = axis(row.seconds for row in rows), axis(row.cell[:2] for row in rows)
    body = [[*kind, *(cells.get((*kind, budget), "") for budget in budgets)] for kind in kinds]
    return markdown_table([["cluster", "graphs", *(f"{budget:g} s" for budget in budgets)], *body])


def _logs(rows: Sequence[BudgetRow], placer: str) -> dict[tuple[str, int], float]:
    """Returns the logarithm of a placer's step time by graph and seed."""
    return {(row.graph, row.seed): float(np.log(row.step_s)) for row in rows if row.placer == placer}


def _over(
    rows: Sequence[BudgetRow], own: dict[tuple[str, int], float], other: dict[tuple[str, int], float]
) -> Interval:
    """Compares step times where both are feasible; resamples families, graphs and seeds."""
    both = [
        (row.family, row.graph, own[row.graph, row.seed] - other[row.graph, row.seed])
        for row in rows
        if row.placer == AUTO and max(own[row.graph, row.seed], other[row.graph, row.seed]) < np.inf
    ]
    return nested_interval(both)
