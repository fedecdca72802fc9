"""The record of a study outlives its process, and says what was under way."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from agent.studies.record import COMPLETE, RUNNING, STALE, Attempt, Record, StudyTrial
from agent.studies.trial_process import TrialOutcome
from agent.training.config import TrainConfig
from graphs.system.journal import JournalError

FIRST = Attempt("s", 1, "a-seed-0", "grid", "hidden=8", "grid", 0, RUNNING)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_an_attempt_that_did_not_end_is_stale(tmp_path: Path) -> None:
    record = Record(tmp_path)
    record.add(FIRST)
    record.add(replace(FIRST, status=COMPLETE, steps=3, best_score=0.5))
    record.add(replace(FIRST, attempt=2, trial="b-seed-0"))
    assert [row["trial"] for row in rows(tmp_path)] == ["a-seed-0"]
    again = Record(tmp_path)
    assert [(row["attempt"], row["status"]) for row in rows(tmp_path)] == [("1", COMPLETE), ("2", STALE)]
    assert again.outcome("a-seed-0") == replace(FIRST, status=COMPLETE, steps=3, best_score=0.5)
    assert again.outcome("b-seed-0") is None
    assert len(again.of_trial("b-seed-0")) == 1


def test_an_attempt_ends_with_the_result_of_its_process(tmp_path: Path) -> None:
    outcome = TrialOutcome(finished=True, no_space=28, steps=3, best_score=0.5, error="no space")
    ended = FIRST.ended(outcome, STALE)
    assert ended == replace(FIRST, status=STALE, steps=3, best_score=0.5, error="no space")
    Record(tmp_path).add(ended)
    assert list(rows(tmp_path)[0])[:3] == ["study", "attempt", "trial"]


def test_a_line_cut_short_is_dropped_and_any_other_damage_is_refused(tmp_path: Path) -> None:
    Record(tmp_path).add(replace(FIRST, status=COMPLETE))
    journal = tmp_path / "attempts.jsonl"
    whole = journal.read_bytes()
    journal.write_bytes(whole + whole[:40])
    assert len(Record(tmp_path).attempts) == 1
    assert journal.read_bytes() == whole
    for damage in (b"{}\n", b"what\n", whole.replace(COMPLETE.encode(), b"finished")):
        journal.write_bytes(whole + damage)
        with pytest.raises(JournalError, match=r"attempts.jsonl:2: .*remove the line"):
            Record(tmp_path)


def test_what_decides_nothing_changes_no_hash() -> None:
    config = TrainConfig(families=("ptb",))
    assert (
        StudyTrial("a", config).config_hash
        == StudyTrial("b", replace(config, name="b", minutes=3.0)).config_hash
    )
    assert StudyTrial("a", config).config_hash != StudyTrial("a", replace(config, hidden=32)).config_hash
