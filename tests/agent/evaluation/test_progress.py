"""What an evaluation says while it runs: partial tables, and the improvements of searches."""

import json
from itertools import pairwise

import numpy as np
import pytest

from agent.evaluation import run
from agent.evaluation.results import TrialJournal
from agent.evaluation.run import Refresher, evaluate
from agent.placers.base import PLACERS, Budget
from agent.placers.improvements import MOST, Improvement, Improvements
from envs.problem import Problem
from graphs.system.json_files import JournalError
from tests.agent.evaluation_cases import make_trial, quiet, rows_of, small_spec
from tests.agent.placement_cases import make_cluster, training_graph


def test_a_refresh_takes_a_small_share_of_the_time():
    now, calls = [0.0], []

    def write():
        calls.append(now[0])
        now[0] += 0.5

    refresher = Refresher(write, every_s=10.0, share=0.01, first_s=3.0, clock=lambda: now[0])
    for second in range(1000):
        now[0] = max(now[0], float(second))
        refresher.poll()
    assert calls[0] == 3.0
    assert all(after - before >= 50.0 for before, after in pairwise(calls))
    assert 15 <= len(calls) <= 20


def test_tables_and_report_are_refreshed_during_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "TABLES_EVERY_S", 0.0)
    monkeypatch.setattr(run, "REPORT_EVERY_S", 0.0)
    seen, partial = [], []

    def look(done, total):
        if done > 1:
            assert (tmp_path / "summary.csv").exists()
            seen.append(len(rows_of(tmp_path)))

    monkeypatch.setattr(run, "Refresher", lambda write, **kwargs: Refresher(write, every_s=0.0, share=1e9))
    evaluate(
        small_spec(), tmp_path, report=look, write_partial=lambda found: partial.append(len(found.trials))
    )
    n = len(small_spec().tasks())
    assert seen == list(range(1, n))  # what was there before the last trial was counted
    assert partial == list(range(1, n + 1))


def test_improvements_get_faster_and_are_bounded():
    record = Improvements()
    for step in range(1000):
        record.add(step, step * 0.1, 1000.0 - step)
        record.add(step, step * 0.1, 1e6)
    kept = record.all()
    assert len(kept) <= MOST
    assert kept[0] == Improvement(0, 0.0, 1000.0)
    assert kept[-1] == Improvement(999, 999 * 0.1, 1.0)
    times = [item.step_time_s for item in kept]
    assert times == sorted(times, reverse=True)
    record.add(1000, 1.0, 0.5)
    assert record.all()[-1] == Improvement(1000, 1.0, 0.5)
    assert max(item.seconds for item in record.all()) == 1.0, "a kernel's seconds were counted at first"


@pytest.mark.parametrize("name", ["annealing", "refine", "random", "heft"])
def test_the_last_improvement_of_a_search_is_what_it_found(name):
    problem = Problem(training_graph(4, 2), make_cluster(2))
    found = PLACERS[name].place(problem, Budget(400), np.random.default_rng(0))
    last = found.improvements[-1]
    assert last.step_time_s == pytest.approx(found.step_time.total_s)
    assert 1 <= found.improvements[0].evaluations <= last.evaluations <= found.evaluations
    assert last.seconds <= found.wall_s


def trials_in(path):
    return TrialJournal(path).trials.values()


def test_improvements_survive_the_journal(tmp_path):
    trial = make_trial(improvements=(Improvement(1, 0.1, 3.0), Improvement(9, 0.2, 2.0)))
    path = tmp_path / "journal.jsonl"
    journal = TrialJournal(path)
    journal.add(trial)
    (read,) = trials_in(path)
    assert read.improvements == trial.improvements
    record = json.loads(path.read_text())
    del record["improvements"]
    path.write_text(json.dumps(record) + "\n")
    (old,) = trials_in(path)
    assert old.improvements == ()


@pytest.mark.parametrize(
    "wrong", [7, [[1, 2.0]], [[1, 0.0, 2.0], [2, 0.1, 2.0]], [[1.5, 0.0, 1.0]], [["1", 0, 1]]]
)
def test_damaged_improvements_are_refused(tmp_path, wrong):
    path = tmp_path / "journal.jsonl"
    journal = TrialJournal(path)
    journal.add(make_trial())
    record = json.loads(path.read_text()) | {"improvements": wrong}
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(JournalError, match="improvements"):
        TrialJournal(path)


def test_an_evaluation_records_improvements(tmp_path):
    trials = evaluate(small_spec(placers=("annealing",)), tmp_path, report=quiet).trials
    assert all(trial.improvements[-1].step_time_s == pytest.approx(trial.step_time_s) for trial in trials)
