"""The folder of an evaluation: what it may hold, and what is refused with which message."""

import json
import math
import re
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.evaluation.config import EvaluationError
from agent.evaluation.results import TrialJournal
from agent.evaluation.run import evaluate, open_folder
from agent.evaluation.worker import Worker
from agent.placers.base import PLACERS, Budget
from envs.placements.files import read_placement
from envs.placements.placement import Placement
from graphs.system.command_line import interruptible
from graphs.system.errors import InputError
from graphs.system.json_files import JournalError
from tests.agent.evaluation_cases import make_trial, quiet, rows_of, small_spec


def test_other_settings_do_not_share_a_folder(tmp_path):
    open_folder(tmp_path, small_spec())
    open_folder(tmp_path, small_spec())
    with pytest.raises(EvaluationError, match="differs in seeds, budget"):
        open_folder(tmp_path, small_spec(seeds=3, budget=Budget(9)))


def test_an_interrupt_while_a_trial_is_written_loses_it_neither_on_disk_nor_in_memory(tmp_path, monkeypatch):
    journal = TrialJournal(tmp_path / "journal.jsonl")
    monkeypatch.setattr("os.fsync", lambda file: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt), interruptible():
        journal.add(make_trial())
    assert list(journal.trials) == list(TrialJournal(tmp_path / "journal.jsonl").trials) == [make_trial().key]


def test_journal_drops_a_line_cut_short(tmp_path):
    path = tmp_path / "journal.jsonl"
    TrialJournal(path).add(make_trial())
    path.write_bytes(path.read_bytes() + b'{"graph": "g", "fam')
    TrialJournal(path).add(make_trial(seed=1))
    assert len(path.read_text().splitlines()) == 2
    assert list(TrialJournal(path).trials) == [make_trial().key, make_trial(seed=1).key]


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory):
    """A folder with an evaluation, to be copied."""
    folder = tmp_path_factory.mktemp("evaluated") / "out"
    evaluate(small_spec(), folder, report=quiet)
    return folder


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"step_time_s": "2.0"}, "step_time_s: is a string; expected a number"),
        ({"step_time_s": math.nan}, "NaN is no JSON number"),
        ({"step_time_s": -1.0}, "step_time_s: is -1.0; expected at least 0"),
        ({"step_time_s": 0}, "step_time_s is 0; expected more, as one device takes time"),
        ({"improvements": [[1, 0.0, -1.0]]}, "improvements: is -1.0; expected at least 0"),
        ({"improvements": 7}, "improvements"),
        ({"improvements": [[1, 2.0]]}, "improvements"),
        ({"improvements": [[1, 0.0, 2.0], [2, 0.1, 2.0]]}, "improvements"),
        ({"seed": 0.5}, "seed: is 0.5; expected an integer"),
        ({"feasible": 1}, "feasible: is 1; expected true or false"),
        ({"graph": None}, "graph: is null; expected a string"),
        ({"placer": "\x1b[31m"}, "placer: '.x1b.31m' holds characters that cannot be printed"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"graph": "z"}, "is no trial of this evaluation"),
        ({"seed": 7}, "is no trial of this evaluation"),
        (b'{"graph": "g"}', "keys .* are missing"),
        (b"[]", "is an array; expected an object"),
        (b"{", "is no strict JSON"),
        (b"\xff", "is not UTF-8"),
        (b" ", "is empty"),
    ],
)
def test_a_damaged_line_of_the_journal_is_named_and_nothing_changed(tmp_path, evaluated, change, clause):
    folder = shutil.copytree(evaluated, tmp_path / "out")
    lines = (folder / "journal.jsonl").read_bytes().splitlines()
    lines[2] = change if isinstance(change, bytes) else json.dumps(json.loads(lines[2]) | change).encode()
    journal, results = b"\n".join([*lines, b""]), (folder / "results.csv").read_bytes()
    (folder / "journal.jsonl").write_bytes(journal)
    with pytest.raises(JournalError, match=rf"journal\.jsonl:3: .*{clause}.*; remove the line") as refused:
        evaluate(small_spec(), folder, report=quiet)
    assert str(refused.value).isprintable()
    assert (folder / "journal.jsonl").read_bytes() == journal
    assert (folder / "results.csv").read_bytes() == results


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (Path.unlink, "cannot be read: No such file or directory; remove"),
        (lambda path: path.write_text("{"), "is no strict JSON: .*; remove"),
        (lambda path: path.write_text(path.read_text().replace('"gpu', '"cpu')), "op '.*' is on 'cpu"),
        (
            lambda path: shutil.rmtree(path.parents[2]),
            ".*No such file or directory, and [0-9]+ more are damaged; ",
        ),
    ],
)
def test_a_stored_placement_that_is_lost_is_said(tmp_path, capsys, damage, message):
    evaluate(small_spec(), tmp_path, report=quiet)
    evaluate(small_spec(), tmp_path, report=quiet)
    assert not capsys.readouterr().err
    damage(next(tmp_path.rglob("placements/**/*.json")))
    evaluate(small_spec(), tmp_path, report=quiet)
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"placements/.*json: {message}", line)
    assert line.endswith("remove the trial's lines from journal.jsonl to make it again")


@pytest.mark.parametrize("settings", [b"", b"[]", b'{"format": "other"}'])
def test_damaged_settings_are_refused_in_one_line(tmp_path, settings):
    open_folder(tmp_path, small_spec())
    (tmp_path / "settings.json").write_bytes(settings)
    with pytest.raises(InputError, match=r"settings\.json: is ") as refused:
        open_folder(tmp_path, small_spec())
    assert str(refused.value).isprintable()
    assert (tmp_path / "settings.json").read_bytes() == settings


def test_drafts_of_killed_processes_are_removed_at_the_start(tmp_path):
    evaluate(small_spec(), tmp_path, report=quiet)
    drafts = [tmp_path / ".results.csv.1.tmp", tmp_path / "placements" / "two" / "a" / ".single.json.1.tmp"]
    for draft in drafts:
        draft.touch()
    evaluate(small_spec(), tmp_path, report=quiet)
    assert not any(draft.exists() for draft in drafts)


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


@pytest.mark.parametrize("timeout_s", [0.0, math.nan, math.inf])
def test_a_timeout_is_a_finite_number_above_0(tmp_path, timeout_s):
    with pytest.raises(EvaluationError, match="for a trial; give a finite number above 0"):
        evaluate(small_spec(), tmp_path / "out", trial_timeout_s=timeout_s, report=quiet)
    assert not (tmp_path / "out").exists()
