"""The folder of a study and its record: an Optuna study in SQLite, which has a trial for each attempt.

Only the process that locks the folder writes the record: study trials may run on other machines, and SQLite
is not safe on file systems that these share. It learns at once when the process of a study trial dies.
Optuna's heartbeat, upon which its `RetryHeartbeatStaleTrialCallback` acts, takes seconds, and covers
`Study.optimize` alone.
"""

from __future__ import annotations

import csv
import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import TrialState
from sqlalchemy.exc import SQLAlchemyError

from agent.contexts.run_folder import STUDY, provenance
from agent.learn.config import TrainConfig
from agent.studies.study_config import StudyConfig
from agent.studies.study_trials import Space, StudyTrial
from agent.studies.trial_process import COMPLETE, FAILED, PRUNED, STALE, scores_of
from graphs.system.csv_files import write_rows
from graphs.system.errors import InputError
from graphs.system.folders import FolderError, created, locked, run_folder
from graphs.system.json_files import read_json, write_json_atomic

FORMAT, RECORD, TABLE, RUNNING = "placewalk.study/2", "optuna.db", "trials.csv", "running"
MEND = "put it back, or choose another --name"
ATTEMPT = "attempt"
"""Attribute of a trial of Optuna's that holds the row of `trials.csv`."""
ITS_OWN = ("name", "context", "seed")
"""Settings of a study trial that are no difference from the base."""
FREE = ("jobs", "attempts", "trials", "seeds")
"""Settings that may change when a study is resumed."""
PRUNERS: Mapping[str, Callable[[], optuna.pruners.BasePruner]] = {
    "median": optuna.pruners.MedianPruner,
    "asha": optuna.pruners.SuccessiveHalvingPruner,
    "never": optuna.pruners.NopPruner,
}
PATIENCE_S = 60.0
"""Longest wait for another program, such as optuna-dashboard, that uses the record."""


class StudyError(InputError):
    """A study that differs, is in use or is damaged; the message says what to do."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a study trial: a row of `trials.csv`.

    Attributes:
        status: `running`, `complete`, `pruned` by the search, `failed`, or `stale`: stopped or killed.
        retry_of: attempt that this one resumes or repeats; None for a study trial's first.
        config: settings that differ from the base of the study, as JSON.
        resumed_from_step: update of the checkpoint that it resumed from; 0 for none.
        steps, decisions, wall_s: updates, decisions and seconds, those before interruptions included.
        final_score, best_score: greedy step time over the fastest single device, geometric mean over the
            graphs for training and validation: of the last update, and of the policy that is kept.
        held_out: the same of the policy that is kept, on the graphs that chose nothing.
        error: reason of the failure, in one line.
    """

    study: str
    attempt: int
    trial: str
    context: str
    component: str
    mode: str
    seed: int
    status: str
    retry_of: int | None = None
    init_from: str = ""
    config: str = "{}"
    config_hash: str = ""
    git_commit: str = ""
    resumed_from_step: int = 0
    graphs_hash: str = ""
    steps: int = 0
    decisions: int = 0
    wall_s: float = 0.0
    parameters: int | None = None
    final_score: float | None = None
    best_score: float | None = None
    held_out: float | None = None
    checkpoint: str = ""
    error: str = ""


@dataclass
class Running:
    """An attempt under way, the folder of the run, its trial of Optuna's, and how many scores that has."""

    trial: StudyTrial
    folder: Path
    attempt: Attempt
    asked: optuna.Trial
    n_scores: int = 0
    is_pruned: bool = False


class Study:
    """A study whose folder is locked.

    Attributes:
        attempts: all attempts, the first one first; those that a killed process left are `stale`.
        n_before: number of attempts when the study was opened.
    """

    def __init__(
        self, base: TrainConfig, config: StudyConfig, space: Space, record: optuna.Study, git_commit: str
    ) -> None:
        self.base, self.config, self.folder = base, config, run_folder(base.name)
        self._space, self._record, self._git_commit = space, record, git_commit
        self.attempts: list[Attempt] = []
        self._params: dict[str, Mapping[str, Any]] = {}
        self._read()
        self._write_table()
        self.n_before = len(self.attempts)

    def begin(self, trial: StudyTrial) -> Running:
        """Begins an attempt at a study trial; draws its values, unless they are known.

        The draw depends on the seed, the study trial, and those that have ended.

        Raises:
            StudyError: the study trial was started with other settings, or from outside the space.
        """
        params = trial.params if trial.params is not None else self._params.get(trial.name)
        if params is not None:
            self._record.enqueue_trial(dict(params))
        seed = int(np.random.SeedSequence([self.base.seed, len(self._params)]).generate_state(1)[0])
        self._record.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)
        try:
            asked = self._record.ask(dict(self._space))
        except ValueError as error:
            raise StudyError(
                f"{self.folder / RECORD}: trial {trial.name}: {error}; choose another --name"
            ) from None
        trial = trial if trial.params is not None else trial.drawn(asked.params)
        running = Running(trial, self.folder / "trials" / trial.name, self._first_row(trial), asked)
        asked.set_user_attr(ATTEMPT, asdict(running.attempt))
        self.attempts.append(running.attempt)
        self._params[trial.name] = asked.params
        return running

    def _first_row(self, trial: StudyTrial) -> Attempt:
        before = [attempt for attempt in self.attempts if attempt.trial == trial.name]
        if before and before[-1].config_hash != trial.config_hash:
            raise StudyError(f"{self.folder}: {trial.name} had other settings; choose another --name")
        base, settings = self.base.to_json(), trial.config.to_json().items()
        changes = {key: value for key, value in settings if base[key] != value and key not in ITS_OWN}
        return Attempt(
            study=self.base.name,
            attempt=len(self.attempts) + 1,
            trial=trial.name,
            context=self.base.context,
            component=trial.component,
            mode=trial.mode,
            seed=trial.config.seed,
            status=RUNNING,
            retry_of=before[-1].attempt if before else None,
            init_from=trial.config.init,
            config=json.dumps(changes),
            config_hash=trial.config_hash,
            git_commit=self._git_commit,
        )

    def falls_behind(self, running: Running) -> bool:
        """Gives Optuna the new scores of an attempt; returns whether it stops the study trial."""
        scores = scores_of(running.folder)[running.n_scores :]
        for update, score in scores:
            running.asked.report(score, update)
        running.n_scores += len(scores)
        return bool(scores) and running.asked.should_prune()

    def end(self, running: Running, result: Mapping[str, Any]) -> Attempt:
        """Notes how an attempt ended, by columns of its row."""
        self.falls_behind(running)
        ended = replace(running.attempt, **result)
        running.asked.set_user_attr(ATTEMPT, asdict(ended))
        self._tell(running.asked.number, ended)
        self.attempts[ended.attempt - 1] = ended
        self._write_table()
        return ended

    def _read(self) -> None:
        """Reads all attempts, and ends those that a killed process left."""
        if self._record.direction != StudyDirection.MINIMIZE:
            raise ValueError("its scores are to be maximized")
        running: dict[int, Attempt | None] = {}
        for trial in self._record.get_trials(deepcopy=False):
            scores = [*(trial.values or ()), *trial.intermediate_values.values()]
            has_score = trial.values or trial.state != TrialState.COMPLETE
            if not (has_score and all(isinstance(score, float) for score in scores)):
                raise ValueError(f"scores of trial {trial.number} are {scores}")
            attempt = None
            if ATTEMPT in trial.user_attrs:  # else the process was killed before the attempt began
                attempt = _attempt(trial.user_attrs[ATTEMPT], len(self.attempts) + 1)
                attempt = replace(attempt, status=STALE) if attempt.status == RUNNING else attempt
                self.attempts.append(attempt)
                self._params[attempt.trial] = trial.params
            if not trial.state.is_finished():
                running[trial.number] = attempt
        self._check_table()
        while self._record.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            self._record.ask()
        for number, attempt in running.items():
            self._tell(number, attempt)

    def _check_table(self) -> None:
        """Checks that the record has all attempts of `trials.csv`, which is then written anew."""
        if not (table := self.folder / TABLE).exists():
            return
        recorded = {(str(row.attempt), row.trial, row.config_hash) for row in self.attempts}
        with table.open(newline="", encoding="utf-8", errors="replace") as file:
            for row in csv.DictReader(file):
                if (row.get("attempt"), row.get("trial"), row.get("config_hash")) not in recorded:
                    raise ValueError(f"attempt {row.get('attempt')} of {TABLE} is not in it")

    def _tell(self, number: int, attempt: Attempt | None) -> None:
        status = attempt.status if attempt is not None else FAILED
        if attempt is not None and status == COMPLETE and attempt.best_score is not None:
            self._record.tell(number, attempt.best_score)
        else:
            self._record.tell(number, state=TrialState.PRUNED if status == PRUNED else TrialState.FAIL)

    def _write_table(self) -> None:
        ended = [attempt for attempt in self.attempts if attempt.status != RUNNING]
        write_rows(self.folder / TABLE, Attempt, ended)


@contextmanager
def open_study(base: TrainConfig, config: StudyConfig, space: Space) -> Iterator[Study]:
    """Creates or reopens the folder of a study, and locks it.

    Raises:
        StudyError: the folder is of another study or run, in use, or damaged.
        OSError: it cannot be written.
    """
    folder, origin = run_folder(base.name), provenance()
    fixed = {key: value for key, value in config.to_json().items() if key not in FREE}
    settings = {**base.to_json(), **fixed}

    def begin(draft: Path) -> None:
        write_json_atomic(draft / STUDY, {"format": FORMAT, **settings, **origin})
        (draft / "trials").mkdir()

    if folder.exists():
        _check_is_same(folder, settings)
    is_begun = (folder / TABLE).exists() or any((folder / "trials").glob("*"))
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        with (
            locked(folder) if folder.exists() else created(folder, begin),
            _opened(folder / RECORD) as storage,
        ):
            with _refusing_damage(folder / RECORD):
                if not is_begun:
                    optuna.create_study(storage=storage, study_name=base.name, load_if_exists=True)
                record = optuna.load_study(storage=storage, study_name=base.name)
                record.pruner = PRUNERS[config.prune if base.context == "search" else "never"]()
                study = Study(base, config, space, record, str(origin["git_commit"] or ""))
            yield study
    except FolderError:
        raise StudyError(
            f"study '{base.name}' is being run by another process; wait for it or stop it"
        ) from None


def _check_is_same(folder: Path, settings: Mapping[str, Any]) -> None:
    if not (folder / STUDY).is_file():
        raise StudyError(f"{folder} is no study; choose another --name")
    theirs = read_json(folder / STUDY)
    if not isinstance(theirs, dict) or theirs.get("format") != FORMAT:
        raise StudyError(f"{folder / STUDY}: was not written by this version; choose another --name")
    for key, value in settings.items():
        if theirs.get(key) != value:
            raise StudyError(
                f"study '{folder.name}' was started with another --{key.replace('_', '-')} "
                f"({theirs.get(key)!r}, not {value!r}); give the same value, or choose another --name"
            )


def _attempt(values: Any, number: int) -> Attempt:
    """Reads an attempt as the record holds it."""
    attempt = Attempt(**values)
    for item in fields(Attempt):
        value, kinds = getattr(attempt, item.name), str(item.type).replace("float", "float | int")
        if ("None" if value is None else type(value).__name__) not in kinds.split(" | "):
            raise TypeError(f"{item.name} of attempt {number} is {value!r}")
    if attempt.attempt != number or attempt.status not in (RUNNING, COMPLETE, PRUNED, FAILED, STALE):
        raise ValueError(f"attempt {number} is numbered {attempt.attempt}, with status {attempt.status!r}")
    return attempt


@contextmanager
def _refusing_damage(path: Path) -> Iterator[None]:
    """Turns what a changed record leads to, such as an unknown state, into one line."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise StudyError(f"{path}: is not this study's record as it was left ({reason}); {MEND}") from None


@contextmanager
def _opened(path: Path) -> Iterator[optuna.storages.RDBStorage]:
    """Opens a record; an error of SQLite's becomes one line."""
    try:
        options = {"connect_args": {"timeout": PATIENCE_S}}
        storage = optuna.storages.RDBStorage(f"sqlite:///{path}", engine_kwargs=options)
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        cause = error if isinstance(error, SQLAlchemyError) else error.__cause__
        reason = getattr(cause, "orig", cause)
        if getattr(reason, "sqlite_errorname", "") == "SQLITE_FULL":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from None
        then = "choose another --name"
        if getattr(reason, "sqlite_errorname", "") == "SQLITE_BUSY":
            then = "close the program that uses it, and run the same command again"
        raise StudyError(f"{path}: cannot be read or written ({reason}); {then}") from None
