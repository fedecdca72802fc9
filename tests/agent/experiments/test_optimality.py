"""Placers against known optima, and guides of the solver: rows, tables, predictions."""

from __future__ import annotations

from dataclasses import astuple, fields, replace
from pathlib import Path

import numpy as np
import pytest

from agent.evaluation.policies import open_policy
from agent.experiments import guide
from agent.experiments.guide import Solved, read_solved, solved_rows
from agent.experiments.optimality import (
    PLACERS,
    SETTINGS,
    Row,
    Setting,
    closed_table,
    few_units,
    is_trivial,
    rows_of,
    table,
)
from agent.placers.exact.enumeration import MAX_PLACEMENTS
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.errors import InputError
from graphs.io.csv_files import write_csv
from tests.agent.evaluation_cases import make_trial

SETTING = Setting("4xv100:2", 16)


def test_settings_can_be_tried_but_for_one_of_each_cluster() -> None:
    tried = [get_cluster(each.cluster).n_devices ** each.n_units <= MAX_PLACEMENTS for each in SETTINGS]
    assert tried.count(False) == len(tried) // 4
    assert len({each.folder for each in SETTINGS}) == len(SETTINGS)


def test_graphs_that_were_not_closed_are_left_out() -> None:
    proofs = [
        make_trial(graph="closed", placer="exact", step_time_s=2.0, lower_bound_s=2.0),
        make_trial(graph="open", placer="exact", step_time_s=2.0, lower_bound_s=1.9),
        make_trial(graph="nothing fits", placer="exact", step_time_s=2.0, lower_bound_s=2.0, feasible=False),
    ]
    trials = [
        make_trial(graph=graph, placer="heft", step_time_s=2.5, lower_bound_s=1.5, single_s=3.0)
        for graph in ("closed", "open", "nothing fits")
    ]
    (row,) = rows_of(SETTING, proofs, trials, 300)
    assert (row.graph, row.placer, row.budget) == ("closed", "heft", 300)
    assert (row.found, row.bound, row.single) == (1.25, 0.75, 1.5)


def test_a_table_counts_optima_where_one_device_is_not_enough() -> None:
    row = Row("a", "f", "c", 16, 1.0, 1.5, 0.9, 300, "heft", 1.0, 5, 0.1)
    rows = [row, replace(row, graph="b", found=1.21), replace(row, graph="c", single=1.0, found=2.0)]
    assert [is_trivial(each) for each in rows] == [False, False, True]
    assert "| 300 | heft | 2 | 50% | 1.1000 | 1.210 | 0.100 |" in table(rows)
    assert "| c | 16 | 4 | 3 | 1 | 0.900 | 0.900 |" in closed_table(rows, 4)


def test_a_prediction_is_made_by_other_families() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(60, 3))
    logs = -0.1 + 0.02 * features[:, 0]
    family = tuple("abc"[at % 3] for at in range(60))
    own = np.array([each == "a" for each in family])
    solved = Solved(family, features, np.where(own, 5.0, logs))
    for at in range(6):
        expected = pytest.approx(logs[at], abs=0.01)
        assert solved.predict("a", features[at]) == expected
        assert solved.predict("b", features[at]) > 1.0


def test_rows_that_were_solved_guide_the_solver(tmp_path: Path) -> None:
    graph = few_units(load_family("cifar10")[0], 8)
    problem = Problem(graph, get_cluster("4xv100:2"))
    row = Row(graph.name, "vit", "4xv100:2", 8, problem.scale_s, 1.0, 0.8, 300, "refine", 1.01, 300, 0.1)
    write_csv(tmp_path / "rows.csv", [item.name for item in fields(Row)], [astuple(row), astuple(row)])
    solved = read_solved(tmp_path / "rows.csv", lambda name, n_units, cluster: problem)
    np.testing.assert_allclose(solved.logs, [-np.log(1.01)] * 2)
    found = list(solved_rows(problem, solved, open_policy("pretrained", []), 20.0, 8))
    assert len(found) == 5
    assert all(each.closed for each in found)
    assert guide.table(found).count("1 of 1") == 5


def test_a_file_of_other_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InputError, match=r"rows\.csv: holds no rows"):
        read_solved(tmp_path / "rows.csv", lambda name, n_units, cluster: None)


def test_the_placers_compared_have_every_search() -> None:
    assert {"annealing", "refine", "policy-beam", "policy-refine"} < set(PLACERS)
