"""The record of a study outlives its process, and says what was under way."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from agent.studies.record import Running, Study, StudyError, open_study
from agent.studies.study_config import StudyConfig
from agent.studies.study_trials import StudyTrial, study_trials
from agent.training.config import TrainConfig
from agent.training.metrics import ITERATION, SCORE

SEARCH = StudyConfig(vary=("learning_rate=1e-4:1e-1:log", "hidden=4:32", "order=topo,topo+bfs"), trials=9)
GRID = StudyConfig(vary=("hidden=4,8",))
DONE = {"status": "complete", "best_score": 0.5}


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    """Holds the study `runs/s` open."""
    monkeypatch.chdir(tmp_path)
    with ExitStack() as stack:
        yield stack


def opened(stack: ExitStack, config: StudyConfig = SEARCH) -> tuple[Study, list[StudyTrial]]:
    """Opens the study anew; what was under way is left as by a kill."""
    stack.close()
    base = TrainConfig(name="s", families=("ptb",), context="grid" if config is GRID else "search")
    trials, space = study_trials(base, config)
    return stack.enter_context(open_study(base, config, space)), trials


def statuses() -> list[str]:
    """Status of each attempt, whose numbers are checked."""
    with Path("runs/s/trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["attempt"] for row in rows] == [str(number) for number in range(1, len(rows) + 1)]
    return [row["status"] for row in rows]


def scored(study: Study, running: Running, *scores: float) -> bool:
    """Writes the scores of a training; returns whether the search stops it."""
    running.folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({ITERATION: number, SCORE: score}) for number, score in enumerate(scores)]
    (running.folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return study.falls_behind(running)


@pytest.mark.parametrize("moment", ["enqueue_trial", "ask", "set_user_attr", "tell"])
def test_a_kill_between_two_writes_loses_and_doubles_nothing(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    study, (first, second) = opened(stack, GRID)
    study.end(study.begin(first), DONE)
    owner = optuna.Trial if moment == "set_user_attr" else optuna.Study
    write = getattr(owner, moment)

    def killed(*words: object, **options: object) -> None:
        write(*words, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            study.end(study.begin(second), DONE)
    again, _ = opened(stack, GRID)
    before = {"set_user_attr": ["complete", "stale"], "tell": ["complete", "complete"]}
    assert statuses() == before.get(moment, ["complete"])
    if moment != "tell":
        ended = again.end(again.begin(second), {"status": "failed", "error": "no luck"})
        assert statuses() == [*before.get(moment, ["complete"]), "failed"]
        assert ended.retry_of == (2 if moment == "set_user_attr" else None)
        assert (ended.trial, ended.error, json.loads(ended.config)) == (second.name, "no luck", {"hidden": 8})


def test_a_stopped_search_goes_on_with_what_it_drew(stack: ExitStack) -> None:
    study, trials = opened(stack)
    drawn = [study.begin(trial).trial for trial in trials[:2]]
    assert all(1e-4 <= trial.config.learning_rate <= 1e-1 for trial in drawn)
    assert all(4 <= trial.config.hidden <= 32 for trial in drawn)
    assert all(trial.config.order in (("topo",), ("topo", "bfs")) for trial in drawn)
    assert (drawn[0].config.context, drawn[0].mode) == ("local", "sampled")
    again, _ = opened(stack)
    resumed = [again.begin(trial) for trial in trials[:3]]
    assert [running.trial for running in resumed[:2]] == drawn
    assert [running.attempt.retry_of for running in resumed] == [1, 2, None]
    assert len({running.trial.config.learning_rate for running in resumed}) == 3


@pytest.mark.parametrize(("prune", "expected"), [("median", True), ("asha", True), ("never", False)])
def test_a_study_trial_that_falls_behind_is_stopped(stack: ExitStack, prune: str, expected: bool) -> None:
    """Also by what others reached before a restart."""
    study, trials = opened(stack, replace(SEARCH, prune=prune))
    for trial in trials[:6]:
        running = study.begin(trial)
        scored(study, running, 0.9, 0.5)
        study.end(running, DONE)
    again, _ = opened(stack, replace(SEARCH, prune=prune))
    late = again.begin(trials[6])
    assert not scored(again, late)
    assert scored(again, late, 0.95, 0.9) == expected
    assert not scored(again, late, 0.95, 0.9)  # nothing new
    again.end(late, {"status": "pruned"})
    assert statuses() == ["complete"] * 6 + ["pruned"]


def test_other_settings_and_damage_are_one_line(stack: ExitStack) -> None:
    folder, (study, trials) = Path("runs/s"), opened(stack)
    scored(study, study.begin(trials[0]), 0.9)
    stack.close()
    with pytest.raises(StudyError, match="started with another --vary"):
        opened(stack, replace(SEARCH, vary=("hidden=4:32",)))
    with closing(sqlite3.connect(folder / "optuna.db")) as record, record:
        tables = [name for (name,) in record.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        cells = [cell for table in tables for row in record.execute(f"SELECT * FROM {table}") for cell in row]
        assert "attempt" in cells
        assert not [cell for cell in cells if isinstance(cell, bytes)]  # such as pickles
        record.execute("UPDATE trial_params SET distribution_json = replace(distribution_json, 'topo', 'x')")
    with pytest.raises(StudyError, match=r"optuna.db: trial 000: .*; choose another --name"):
        opened(stack)[0].begin(trials[0])
    stack.close()
    (folder / "optuna.db").write_bytes(b"damaged" * 999)
    with pytest.raises(StudyError, match=r"optuna.db: .* \(file is not a database\); choose another --name"):
        opened(stack)
    (folder / "study.json").write_text('{"format": "placewalk.study/1"}')
    with pytest.raises(StudyError, match=r"study.json: was not written by this version"):
        opened(stack)
    (folder / "study.json").unlink()
    with pytest.raises(StudyError, match="is no study"):
        opened(stack)
