"""The record of a study outlives its process, and says what was under way."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from agent.studies.record import Running, Study, StudyError, open_study
from agent.studies.study_config import StudyConfig
from agent.studies.study_trials import StudyTrial, study_trials
from agent.training.config import TrainConfig
from agent.training.metrics import ITERATION, SCORE

BASE = TrainConfig(name="s", families=("ptb",), context="search")
SEARCH = StudyConfig(vary=("learning_rate=1e-4:1e-1:log", "hidden=4:32", "order=topo,topo+bfs"), trials=9)
GRID = StudyConfig(vary=("hidden=4,8",))
DONE, FAILED = {"status": "complete", "best_score": 0.5}, {"status": "failed", "error": "no luck"}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "s"


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test has opened; closing it early is as good as a kill."""
    with ExitStack() as stack:
        yield stack


def opened(
    stack: ExitStack, config: StudyConfig = SEARCH, context: str = "search"
) -> tuple[Study, list[StudyTrial]]:
    stack.close()
    base = replace(BASE, context=context)
    trials, space = study_trials(base, config)
    return stack.enter_context(open_study(base, config, space)), trials


def rows(folder: Path) -> list[tuple[str, str, str, str]]:
    with (folder / "trials.csv").open() as file:
        return [
            (row["attempt"], row["trial"], row["status"], row["retry_of"]) for row in csv.DictReader(file)
        ]


def scored(study: Study, running: Running, *scores: float) -> bool:
    """Writes the scores of a training; returns whether the search stops it."""
    running.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({ITERATION: number, SCORE: score}) for number, score in enumerate(scores, start=1)]
    (running.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return study.falls_behind(running)


def test_an_attempt_that_did_not_end_is_stale(stack: ExitStack, here: Path) -> None:
    study, (first, second) = opened(stack, GRID, "grid")
    study.end(study.begin(first), DONE)
    study.begin(second)
    assert rows(here) == [("1", "000-seed-0", "complete", "")]
    again, _ = opened(stack, GRID, "grid")
    assert rows(here) == [("1", "000-seed-0", "complete", ""), ("2", "001-seed-0", "stale", "")]
    again.end(again.begin(second), FAILED)
    assert rows(here)[2:] == [("3", "001-seed-0", "failed", "2")]
    assert again.attempts[2].error == "no luck"
    assert json.loads(again.attempts[2].config) == {"hidden": 8}


@pytest.mark.parametrize("moment", ["enqueue_trial", "ask", "set_user_attr", "tell"])
def test_a_kill_between_two_writes_loses_and_doubles_nothing(
    stack: ExitStack, here: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The process dies after Optuna was told something, before it was told the next."""
    import optuna

    study, (first, second) = opened(stack, GRID, "grid")
    study.end(study.begin(first), DONE)
    with monkeypatch.context() as patch:
        owner = optuna.Trial if moment == "set_user_attr" else optuna.Study
        write = getattr(owner, moment)

        def killed(*words: object, **options: object) -> None:
            write(*words, **options)
            raise KeyboardInterrupt

        patch.setattr(owner, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            study.end(study.begin(second), DONE)
    again, _ = opened(stack, GRID, "grid")
    known = {"enqueue_trial": None, "ask": None, "set_user_attr": "stale", "tell": "complete"}[moment]
    assert [row[2] for row in rows(here)] == ["complete", *([known] if known else [])]
    if known != "complete":
        again.end(again.begin(second), DONE)
        assert [row[0] for row in rows(here)] == [str(number) for number in range(1, len(rows(here)) + 1)]


def test_a_stopped_search_goes_on_with_what_it_drew(stack: ExitStack) -> None:
    study, (first, second, third, *_) = opened(stack)
    drawn = [study.begin(first).trial, study.begin(second).trial]
    assert all(1e-4 <= trial.config.learning_rate <= 1e-1 for trial in drawn)
    assert all(4 <= trial.config.hidden <= 32 for trial in drawn)
    assert all(trial.config.order in (("topo",), ("topo", "bfs")) for trial in drawn)
    assert (drawn[0].config.context, drawn[0].mode) == ("local", "sampled")
    again, _ = opened(stack)
    resumed = [again.begin(first), again.begin(second)]
    assert [running.trial for running in resumed] == drawn
    assert [running.attempt.retry_of for running in resumed] == [1, 2]
    drawn.append(again.begin(third).trial)
    assert len({trial.config.learning_rate for trial in drawn}) == 3


@pytest.mark.parametrize(("prune", "expected"), [("median", True), ("never", False)])
def test_a_study_trial_that_is_worse_than_the_median_is_stopped(
    stack: ExitStack, prune: str, expected: bool
) -> None:
    """Also after a restart."""
    study, trials = opened(stack, replace(SEARCH, prune=prune))
    for trial in trials[:6]:
        running = study.begin(trial)
        assert not scored(study, running, 0.9, 0.5)
        study.end(running, DONE)
    again, _ = opened(stack, replace(SEARCH, prune=prune))
    late = again.begin(trials[6])
    assert not scored(again, late)
    assert not scored(again, late, 0.8)
    assert scored(again, late, 0.8, 0.8) == expected
    assert not scored(again, late, 0.8, 0.8)  # nothing new
    again.end(late, {"status": "pruned"})


def test_other_settings_and_damage_are_one_line(stack: ExitStack, here: Path) -> None:
    study, trials = opened(stack)
    study.begin(trials[0])
    stack.close()
    with pytest.raises(StudyError, match="started with another --vary"):
        opened(stack, replace(SEARCH, vary=("hidden=4:32",)))
    with sqlite3.connect(here / "optuna.db") as record:
        record.execute(
            "UPDATE trial_params SET distribution_json = replace(distribution_json, 'topo+', 'bfs+')"
        )
        record.execute("UPDATE trial_params SET param_value = 1 WHERE param_name = 'order'")
    record.close()
    again, _ = opened(stack)
    with pytest.raises(StudyError, match=r"optuna.db: trial 000: .*bfs\+bfs"):
        again.begin(trials[0])
    stack.close()
    (here / "optuna.db").write_bytes(b"damaged" * 999)
    with pytest.raises(StudyError, match=r"optuna.db: .* \(file is not a database\); choose another --name"):
        opened(stack)
    (here / "study.json").write_text('{"format": "placewalk.study/1"}')
    with pytest.raises(StudyError, match=r"study.json: was not written by this version"):
        opened(stack)
    (here / "study.json").unlink()
    with pytest.raises(StudyError, match="is no study"):
        opened(stack)


def test_the_record_holds_no_pickle(stack: ExitStack, here: Path) -> None:
    study, trials = opened(stack)
    scored(study, running := study.begin(trials[0]), 0.9)
    study.end(running, DONE)
    stack.close()
    record = sqlite3.connect(here / "optuna.db")
    tables = [name for (name,) in record.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    cells = [cell for table in tables for row in record.execute(f"SELECT * FROM {table}") for cell in row]
    record.close()
    assert "attempt" in cells
    assert not [cell for cell in cells if isinstance(cell, bytes)]
