"""The differences between the step times of coarse graphs and of their ops, over the benchmark set.

Each graph is coarsened, the coarse graph is placed, and the placement is timed twice: on the coarse graph
and, expanded, op by op.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

import numpy as np

from agent.evaluation.comparison.ratios import geometric_mean
from agent.experiments.launcher import followed
from agent.experiments.rows import axis, markdown_table, number_cell, read_rows
from agent.placers.base import PLACERS, Budget
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.coarse_problem import coarse_problem
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.dataset import load_family
from graphs.families import FAMILIES
from graphs.op_graph import OpGraph

PLACED_BY = {"random": 1, "heft": 16, "m-etf": 16}
"""Placers of the coarse graphs, and their evaluations."""


@dataclass(frozen=True)
class Difference:
    """One graph, placed by one placer in groups.

    Attributes:
        coarse: step time of the coarse graph over that of its ops, for the same placement.
        found: step time of the ops over that of what the placer finds op by op.
    """

    coarse: float
    found: float


@dataclass(frozen=True)
class CoarseningRow:
    """The graphs of a family, placed by one placer in at most so many groups.

    Attributes:
        coarse_over_fine: geometric mean of `Difference.coarse`; None without graphs.
        worst: the `Difference.coarse` furthest from 1.
        found_over_op_by_op: geometric mean of `Difference.found`; None without graphs and for `random`.
    """

    groups: int
    family: str
    graphs: int
    placer: str
    coarse_over_fine: float | None
    worst: float | None
    found_over_op_by_op: float | None


def difference(problem: Problem, placer: str, n_groups: int) -> Difference:
    """Place a problem in groups and op by op, and time both."""
    coarse = coarse_problem(problem, n_groups)
    budget, seed = Budget(PLACED_BY[placer]), [crc32(problem.graph.name.encode())]
    groups = PLACERS[placer].place(coarse, budget, np.random.default_rng(seed)).placement.device_of
    ops = PLACERS[placer].place(problem, budget, np.random.default_rng(seed)).placement.device_of
    expanded_s = step_time_s(problem, coarse.coarsening.expand(groups))
    return Difference(step_time_s(coarse, groups) / expanded_s, expanded_s / step_time_s(problem, ops))


def family_rows(
    name: str, graphs: Sequence[OpGraph], cluster: Cluster, n_groups: int
) -> Iterator[CoarseningRow]:
    """Place the graphs of a family, a row per placer."""
    for placer in PLACED_BY:
        all_of = [difference(Problem(graph, cluster), placer, n_groups) for graph in graphs]
        yield CoarseningRow(
            groups=n_groups,
            family=name,
            graphs=len(graphs),
            placer=placer,
            coarse_over_fine=geometric_mean(each.coarse for each in all_of),
            worst=max((each.coarse for each in all_of), key=lambda ratio: abs(math.log(ratio)), default=None),
            found_over_op_by_op=(
                None if placer == "random" else geometric_mean(each.found for each in all_of)
            ),
        )


def coarsening_rows(
    folder: Path, families: Sequence[str], groups: Sequence[int], cluster: str
) -> Iterator[list[CoarseningRow]]:
    """Places the graphs of all families in each number of groups.

    Args:
        families: of graphs; none for all. Graphs of no more placement units than groups are left out.

    Raises:
        InputError: an unknown family or cluster.
    """
    devices, names = get_cluster(cluster), [FAMILIES.check(name) for name in families or FAMILIES]
    found: list[CoarseningRow] = []
    for name, n_groups in followed([(name, n) for n in groups for name in names], "coarsening"):
        large = [graph for graph in load_family(name) if len(graph.units) > n_groups]
        found += family_rows(name, large, devices, n_groups)
    yield found


def coarsening_tables(file: Path) -> Iterator[str]:
    """Yields what placing groups of ops costs, and how wrong the step time of the coarse graph is."""
    rows = read_rows(file, CoarseningRow)
    by_case = {(row.family, row.placer, row.groups): row for row in rows}
    groups = axis(row.groups for row in rows)
    families = axis(row.family for row in rows if row.graphs)
    for name, placers in {
        "found_over_op_by_op": ("heft", "m-etf"),
        "coarse_over_fine": ("heft", "m-etf", "random"),
    }.items():
        columns = [(placer, n) for placer in placers for n in groups]
        cells = {
            family: [number_cell(getattr(by_case[family, *column], name)) for column in columns]
            for family in families
        }
        head = ["family", *(f"{placer}, {n}" for placer, n in columns)]
        yield markdown_table([head, *([family, *own] for family, own in cells.items())])
