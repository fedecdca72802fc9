"""Worlds with other costs, what strategies measure in them, and the tables of their regrets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.experiments.adaptation import answer
from agent.experiments.adaptation.answer import RegretRow, regret_rows, regret_tables
from agent.experiments.adaptation.strategies import STRATEGIES, Case
from agent.experiments.adaptation.worlds import CONTENTION, MOST, MOST_OF_OP, Meter, draw_world
from agent.experiments.rows import write_rows
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(load_family("gpt")[0], get_cluster("4xv100:2"))


@pytest.mark.parametrize("contention", CONTENTION)
def test_a_world_is_off_by_no_more_than_it_says(problem: Problem, contention: str) -> None:
    world = draw_world(problem, contention, np.random.default_rng(0))
    takes_time = problem.op_seconds > 0
    off = world.op_seconds[takes_time] / problem.op_seconds[takes_time]
    most = MOST**2 * MOST_OF_OP
    assert 1 / most < off.min() < 0.9 < 1.1 < off.max() < most
    assert (world.cluster.sharing != problem.cluster.sharing) == (contention == CONTENTION[1])
    assert (world.cluster.devices[0].overlap_slowdown > 1) == (contention == CONTENTION[2])


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_measures_the_best_start_first_and_then_others(problem: Problem, name: str) -> None:
    unit = np.arange(len(problem.graph.units))
    starts = [(unit < cut).astype(np.int64)[problem.graph.unit_of] for cut in (50, 60, 70, 80)]
    meter = Meter(problem, np.random.default_rng(0))
    STRATEGIES[name](Case(problem, starts, meter, 4, np.random.default_rng(0)))
    assert len(meter.true_s) == 4
    np.testing.assert_array_equal(meter.devices_of[0], starts[0])
    assert len({each.tobytes() for each in meter.devices_of}) > 1
    assert meter.answer_s(1) == meter.true_s[0]
    assert meter.answer_s(4) in meter.true_s


def test_what_is_out_of_memory_is_no_answer(problem: Problem) -> None:
    limits = problem.cluster.memory_bytes.copy()
    limits[0] = 1.0
    meter = Meter(problem.with_memory(limits), np.random.default_rng(0))
    nowhere, fits = (
        np.zeros(problem.graph.n_ops, dtype=np.int64),
        np.ones(problem.graph.n_ops, dtype=np.int64),
    )
    assert np.isnan(meter(nowhere))
    assert meter(fits) == pytest.approx(meter.answer_s(2), rel=0.2)


def test_tables_have_mean_regrets_and_worlds_lost(tmp_path: Path) -> None:
    adapt = RegretRow("a", "f", "c", 0, CONTENTION[0], "adapt", 10, 1.21)
    best = replace(adapt, strategy="best of K", ratio=1.1)
    other = {"graph": "b", "ratio": 1.0}
    write_rows(tmp_path / "rows.csv", [adapt, best, replace(adapt, **other), replace(best, **other)])
    by_count, by_kind = (table.splitlines() for table in regret_tables(tmp_path / "rows.csv"))
    assert by_count[2] == "| adapt | 10.0% (0.0% to 21.0%) |"
    assert by_count[-2] == "| adapt over best of K | 1.049 (1.000 to 1.100) |"
    assert by_count[-1] == "| share of worlds lost by 1% | 50.0% |"
    assert by_kind[0] == "| strategy | as simulated | seed 0 |"
    assert by_kind[2] == "| adapt | 10.0% (0.0% to 21.0%) | 10.0% (0.0% to 21.0%) |"


def test_rows_of_a_graph_and_cluster_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def first_only(case: Case) -> None:
        made.append(case.problem.graph.name)
        case.meter(case.starts[0])

    monkeypatch.setattr(answer, "FAMILIES", ("gpt",))
    monkeypatch.setattr(answer, "STRATEGIES", {"first": first_only})
    monkeypatch.setattr(answer, "COUNTS", (1, 2))
    settings = {"clusters": ("4xv100:2",), "known": 1, "seeds": 3, "evaluations": 100}
    (rows,) = regret_rows(tmp_path, **settings)
    assert len(rows) == 4
    assert {row.contention for row in rows} == set(CONTENTION)
    assert len(made) == 3
    (again,) = regret_rows(tmp_path, **settings)
    assert again == rows
    assert len(made) == 3
