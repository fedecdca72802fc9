"""Models that fit on no single device: which placers are feasible, and how the others are reported."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from agent.evaluation.comparison.summary import summarise
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import print_tables
from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family

CLUSTER = get_cluster("4xv100")
LLAMAS = load_family("llama")
SPREADING = ("memory-fill", "m-topo", "contiguous", "heft", "m-etf", "rollout", "annealing", "local-search")


@pytest.mark.parametrize("graph", LLAMAS, ids=lambda graph: graph.name)
def test_a_llama_fits_on_all_devices_and_on_none(graph) -> None:
    problem = Problem(graph, CLUSTER)
    problem.check_feasible()
    assert graph.resident_bytes.sum() > CLUSTER.memory_bytes.max()
    rng = np.random.default_rng(0)
    assert not PLACERS["single"].place(problem, Budget(4), rng).feasible
    for name in ("memory-fill", "heft", "m-etf"):
        assert PLACERS[name].place(problem, Budget(100), rng).feasible


@pytest.mark.parametrize("name", SPREADING)
def test_a_placer_that_spreads_is_feasible(name: str) -> None:
    tightest = max(LLAMAS, key=lambda graph: graph.resident_bytes.sum())
    found = PLACERS[name].place(Problem(tightest, CLUSTER), Budget(500), np.random.default_rng(0))
    assert found.feasible
    assert (found.step_time.peak_bytes <= CLUSTER.memory_bytes).all()


def test_a_placer_that_is_out_of_memory_is_reported_so(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    study = EvaluationSpec(tuple(LLAMAS[:2]), (CLUSTER,), ("single", "memory-fill"), budget=Budget(20))
    trials = evaluate(study, tmp_path, report=lambda done, total: None).trials
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    reported = {(row["placer"], row["feasible"], bool(row["ratio_to_single"])) for row in rows}
    assert reported == {("single", "false", False), ("memory-fill", "true", True)}
    lines = summarise(trials)
    assert {line.placer: line.feasible_share for line in lines} == {"single": 0.0, "memory-fill": 1.0}
    print_tables(lines)
    cells = {words[0]: words for words in map(str.split, capsys.readouterr().out.splitlines()) if words}
    assert cells["single"][2] == "-"
    assert "0%" in cells["single"]
    assert "100%" in cells["memory-fill"]
