"""Searches that begin with the placement of groups: rows and the table."""

from __future__ import annotations

from dataclasses import replace

from agent.experiments.coarse_start import Row, rows_of, table
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family

ROW = Row("a", "f", 500, "c", 24, 8.0, 1.1, True, 1.21, 1.0)


def test_a_search_is_never_worse_than_its_start_or_its_groups() -> None:
    problem = Problem(load_family("cifar10")[0], get_cluster("4xv100:2"))
    (row,) = rows_of(problem, [8], 1.5)
    assert row.found <= min(row.start, row.grouped) * (1 + 1e-9)
    assert row.is_closed
    assert (row.groups, row.ops) == (8, int(problem.graph.is_compute.sum()))


def test_the_table_counts_what_was_won_by_more_than_a_little() -> None:
    rows = [ROW, replace(ROW, found=0.98), replace(ROW, found=1.05, grouped=1.0), replace(ROW, found=1.0005)]
    (line,) = table(rows).splitlines()[2:]
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    assert cells[:4] == ["c", "24", "4", "4"]
    assert cells[5:7] == ["1.000", "1"]
    assert cells[-1] == "1 : 1"
