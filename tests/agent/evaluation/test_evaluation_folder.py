"""The folder of an evaluation: what it may hold, and what is refused with which message."""

import json
import math
import re
import shutil
import signal
from pathlib import Path

import pytest

from agent.evaluation.config import EvaluationError
from agent.evaluation.results import TrialJournal
from agent.evaluation.run import evaluate, open_folder
from agent.placers.base import Budget
from graphs.system.command_line import interruptible
from graphs.system.errors import InputError
from graphs.system.json_files import JournalError
from tests.agent.evaluation_cases import make_trial, quiet, small_spec


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


def test_journal_drops_a_line_cut_short_and_refuses_foreign_ones(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = TrialJournal(path)
    journal.add(make_trial())
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"graph": "g", "fam')
    journal = TrialJournal(path)
    journal.add(make_trial(seed=1))
    assert len(path.read_text().splitlines()) == 2
    journal = TrialJournal(path)
    assert list(journal.trials) == [make_trial().key, make_trial(seed=1).key]
    path.write_text('{"graph": "g"}\n')
    with pytest.raises(JournalError, match=r"journal.jsonl:1: keys .* are missing; remove the line"):
        TrialJournal(path)


@pytest.mark.parametrize(
    ("change", "clause"),
    [
        ({"step_time_s": "2.0"}, "step_time_s: is a string; expected a number"),
        ({"step_time_s": math.nan}, "NaN is no JSON number"),
        ({"step_time_s": -1.0}, "step_time_s: is -1.0; expected at least 0"),
        ({"step_time_s": 0}, "step_time_s is 0; expected more, as one device takes time"),
        ({"wall_s": -1}, "wall_s: is -1.0; expected at least 0"),
        ({"improvements": [[1, 0.0, -1.0]]}, "improvements: is -1.0; expected at least 0"),
        ({"seed": 0.5}, "seed: is 0.5; expected an integer"),
        ({"seed": True}, "seed: is True; expected an integer"),
        ({"feasible": 1}, "feasible: is 1; expected true or false"),
        ({"graph": None}, "graph: is null; expected a string"),
        ({"placer": "\x1b[31m"}, "placer: '.x1b.31m' holds characters that cannot be printed"),
        ({"colour": "red"}, "unknown key 'colour'"),
        ({"graph": "z"}, "is no trial of this evaluation"),
        ({"placer": "heft"}, "is no trial of this evaluation"),
        ({"seed": 7}, "is no trial of this evaluation"),
    ],
)
def test_a_damaged_line_of_the_journal_is_named(tmp_path, change, clause):
    evaluate(small_spec(), tmp_path, report=quiet)
    path = tmp_path / "journal.jsonl"
    lines = path.read_text().splitlines()
    lines[2] = json.dumps(json.loads(lines[2]) | change)
    refused_as(tmp_path, "\n".join([*lines, ""]).encode(), clause)


@pytest.mark.parametrize(
    ("line", "clause"),
    [
        (b"[]", "is an array; expected an object"),
        (b"{", "is no strict JSON"),
        (b"\xff", "is not UTF-8"),
        (b" ", "is empty"),
    ],
)
def test_a_line_of_the_journal_that_is_no_trial_is_named(tmp_path, line, clause):
    evaluate(small_spec(), tmp_path, report=quiet)
    lines = (tmp_path / "journal.jsonl").read_bytes().splitlines()
    lines[2] = line
    refused_as(tmp_path, b"\n".join([*lines, b""]), clause)


def refused_as(folder, journal, clause):
    """Checks that a damaged journal is refused in one line, and nothing is changed."""
    (folder / "journal.jsonl").write_bytes(journal)
    results = (folder / "results.csv").read_bytes()
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


@pytest.mark.parametrize("settings", [b"", b"{", b"[]", b"\xff", b'{"format": "other"}'])
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
