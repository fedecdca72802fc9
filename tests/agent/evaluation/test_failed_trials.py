"""Trials that fail: they are named, reported and tried again, and spoil no other trial."""

import math
from dataclasses import replace

import numpy as np
import pytest

from agent.evaluation.comparison.summary import summarise
from agent.evaluation.config import EvaluationError
from agent.evaluation.report.page import write_report
from agent.evaluation.results import COLUMNS
from agent.evaluation.run import evaluate
from agent.evaluation.terminal_report import print_tables
from agent.evaluation.worker import Worker
from agent.placers.base import PLACERS, Budget
from envs.placements.files import read_placement
from envs.placements.placement import Placement
from tests.agent.evaluation_cases import make_trial, quiet, rows_of, small_spec


def make_fail(monkeypatch, name, error):
    """Lets a placer fail from now on."""

    def strategy(search, rng):
        raise error

    # The look-up loads the registry, which makes a new `_entries`.
    entry = replace(PLACERS[name], strategy=strategy)
    monkeypatch.setitem(PLACERS._entries, name, entry)


def test_a_trial_that_fails_is_named_and_tried_again(tmp_path, monkeypatch):
    with monkeypatch.context() as broken:
        make_fail(broken, "random", RuntimeError("=1+1\nmore"))
        result = evaluate(small_spec(), tmp_path, report=quiet)
    assert [trial.placer for trial in result.trials] == ["single", "single"]
    assert [failure.key for failure in result.failures] == [
        (graph, "two", "random", "", seed) for graph in ("a", "b") for seed in (0, 1)
    ]
    assert (tmp_path / "failures.csv").read_text().splitlines()[:2] == [
        "graph,cluster,placer,order,seed,tries,reason",
        "a,two,random,,0,1,RuntimeError: =1+1 more",
    ]
    assert (tmp_path / "failures.log").read_text().count("Traceback") == 4
    again = evaluate(small_spec(), tmp_path, report=quiet)
    assert not again.failures
    assert not (tmp_path / "failures.csv").exists()
    assert len(rows_of(tmp_path)) == 6


def test_an_evaluation_of_failures_only_is_reported(tmp_path, monkeypatch, capsys):
    make_fail(monkeypatch, "single", EvaluationError("no"))
    result = evaluate(small_spec(placers=("single",)), tmp_path, report=quiet)
    assert [failure.reason for failure in result.failures] == 2 * ["EvaluationError: no"]
    assert not (tmp_path / "failures.log").exists()
    lines = summarise(result.trials)
    write_report(tmp_path / "report.html", result.trials, "command", n_failed=2)
    print_tables(lines, 2)
    assert "2 trials failed; see failures.csv" in capsys.readouterr().out.splitlines()
    assert "<p>2 trials failed; see failures.csv</p>" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "results.csv").read_text().splitlines() == [",".join(COLUMNS)]


def test_a_problem_that_cannot_be_made_is_not_mixed_up_with_the_one_before(monkeypatch):
    spec = small_spec(placers=("single",))
    worker = Worker(spec)
    first, second = spec.tasks()
    worker.run(first)
    with monkeypatch.context() as broken:
        broken.setattr("agent.evaluation.worker.bound_s", lambda objective: 1 / 0)
        assert "ZeroDivisionError" in worker.outcome(second).reason
    assert worker.run(second)[0].graph == "b"
    assert worker.run(first)[0].step_time_s == Worker(spec).run(first)[0].step_time_s


def test_the_lowest_of_equal_seeds_keeps_its_placement(tmp_path):
    spec = small_spec(graphs=small_spec().graphs[:1], placers=("random",), budget=Budget(1))

    def equal_trials(spec, tasks, **settings):
        for task in reversed(tasks):
            trial, placed = Worker(spec).run(task)
            placement = Placement(np.full_like(placed.placement.device_of, task.seed))
            yield task, (replace(trial, step_time_s=1.0), placed._replace(placement=placement))

    found = evaluate(spec, tmp_path, make_trials=equal_trials, report=quiet)
    (answer,) = found.answers.best(found.trials)
    assert answer.trial.seed == 0
    for placement in (answer.placement, read_placement(answer.path, spec.graphs[0], spec.clusters[0])):
        assert (placement.device_of == 0).all()


@pytest.mark.parametrize("timeout_s", [0.0, -1.0, math.nan, math.inf])
def test_a_timeout_is_a_finite_number_above_0(tmp_path, timeout_s):
    with pytest.raises(EvaluationError, match="for a trial; give a finite number above 0"):
        evaluate(small_spec(), tmp_path / "out", trial_timeout_s=timeout_s, report=quiet)
    assert not (tmp_path / "out").exists()


def test_the_spread_over_seeds_leaves_out_graphs_with_a_failed_seed():
    trials = [make_trial(graph="g", seed=0), make_trial(graph="g", seed=1), make_trial(graph="h", seed=1)]
    slow = replace(trials[2], step_time_s=100.0)
    assert summarise([*trials[:2], slow])[0].seed_spread == 0.0
