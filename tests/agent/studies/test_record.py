"""The record of a study outlives its process, and says what was under way."""

from __future__ import annotations

import contextlib
import csv
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from agent.learn.config import TrainConfig
from agent.learn.metrics import SCORE, UPDATES
from agent.studies.record import Running, Study, StudyError, open_study
from agent.studies.study_config import StudyConfig
from agent.studies.study_trials import StudyTrial, study_trials

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
    lines = [json.dumps({UPDATES: number, SCORE: score}) for number, score in enumerate(scores)]
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


def test_damage_is_one_line(stack: ExitStack) -> None:
    folder, (study, trials) = Path("runs/s"), opened(stack)
    scored(study, study.begin(trials[0]), 0.9)
    stack.close()
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


def test_a_search_draws_the_same_whenever_it_is_killed(stack: ExitStack) -> None:
    """Also what was not drawn before the kill, with what ended so far in mind."""
    draws: list[list[object]] = []
    for kills in ((), (0, 3)):
        stack.close()
        shutil.rmtree("runs", ignore_errors=True)
        draws.append([])
        study, trials = opened(stack, replace(SEARCH, trials=7))
        for number, trial in enumerate(trials):
            if number in kills:
                study.begin(trial)
                study, _ = opened(stack, replace(SEARCH, trials=7))
            running = study.begin(trial)
            draws[-1].append(running.trial.params)
            score = abs(running.trial.config.learning_rate - 0.01)
            study.end(running, {"status": "complete", "best_score": score})
    assert draws[0] == draws[1]
    assert len({str(params) for params in draws[0]}) == 7


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with an attempt that ended and one that was killed, and `other` of the same name."""
    folder = tmp_path_factory.mktemp("left")
    for name, config in (("left", SEARCH), ("other", replace(SEARCH, vary=("hidden=4:32",)))):
        with contextlib.chdir(folder), ExitStack() as stack:
            study, trials = opened(stack, config)
            running = study.begin(trials[0])
            scored(study, running, 0.9, 0.5)
            study.end(running, DONE)
            study.begin(trials[1])
        (folder / "runs" / "s").rename(folder / name)
    return folder


ATTEMPTS = "UPDATE trial_user_attributes SET value_json = "
DAMAGES = (
    f"{ATTEMPTS}'5'",
    f"{ATTEMPTS}'{{'",
    f"""{ATTEMPTS}replace(value_json, '"seed": 0', '"seed": "0"')""",
    f"""{ATTEMPTS}replace(value_json, '"attempt": 1', '"attempt": 9')""",
    f"{ATTEMPTS}replace(value_json, 'complete', 'begun')",
    "UPDATE trials SET state = 'BEGUN'",
    "UPDATE trial_params SET distribution_json = replace(distribution_json, '32', '3')",
    "UPDATE trial_params SET param_value = 'x'",
    "UPDATE trial_intermediate_values SET intermediate_value = 'x'",
    "UPDATE study_directions SET direction = 'MAXIMIZE'",
    "DELETE FROM trial_user_attributes",
    "DELETE FROM studies",
)


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_record_that_was_changed_is_refused(stack: ExitStack, left: Path, damage: str) -> None:
    file = shutil.copytree(left / "left", Path("runs/s")) / "optuna.db"
    with closing(sqlite3.connect(file)) as record, record:
        record.execute(damage)
    refused(stack, left, file)


@pytest.mark.parametrize("other", ["gone", "empty", "other", "same name"])
def test_a_record_of_another_study_is_refused(stack: ExitStack, left: Path, other: str) -> None:
    """So is none, where the study was begun; the table, or the folders of its trials, tell."""
    file = shutil.copytree(left / "left", Path("runs/s")) / "optuna.db"
    file.unlink()
    if other == "empty":
        file.touch()
    elif other != "gone":
        shutil.copy(left / "other" / "optuna.db", file)
    if other == "other":
        with closing(sqlite3.connect(file)) as record, record:
            record.execute("UPDATE studies SET study_name = 'another'")
    refused(stack, left, file)
    Path("runs/s/trials.csv").unlink()
    if other != "same name":
        with pytest.raises(StudyError, match="put it back, or choose another --name"):
            opened(stack)


def refused(stack: ExitStack, left: Path, file: Path) -> None:
    """Checks that opening a study is refused in one line, and writes nothing."""
    before = file.read_bytes() if file.exists() else b""
    with pytest.raises(StudyError, match=r"optuna.db: is not this study's record as it was left \(.*"):
        opened(stack)
    assert Path("runs/s/trials.csv").read_bytes() == (left / "left" / "trials.csv").read_bytes()
    assert not before or file.read_bytes() == before


def test_a_record_that_another_program_locks_is_named(
    stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.studies.record.PATIENCE_S", 0.1)
    opened(stack)
    stack.close()
    with closing(sqlite3.connect("runs/s/optuna.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StudyError, match=r"\(database is locked\); close the program that uses it"):
            opened(stack)
