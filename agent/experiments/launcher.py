"""Trains and evaluates what an experiment compares, and goes on with what was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import track

from agent.evaluation.results import Trial
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import progress_bar
from agent.studies.record import StudyTrial
from agent.studies.study_folder import trial_folder
from agent.studies.study_runner import run_trials
from agent.training.config import TrainConfig
from agent.training.run_folder import config_from_file, run_folder
from graphs.system.errors import InputError

Item = TypeVar("Item")


class UnfinishedError(InputError):
    """A training or trial of an experiment that failed or was stopped."""

    exit_code = 1


def followed(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Shows on standard error how many items are done."""
    return track(items, what, console=Console(stderr=True))


def evaluated(spec: EvaluationSpec, folder: Path, jobs: int = 1) -> tuple[Trial, ...]:
    """Makes the trials of an evaluation that a folder does not hold yet, under a progress bar.

    Raises:
        EvaluationError: the folder holds another evaluation.
        UnfinishedError: a trial failed.
    """
    with progress_bar() as (report, show_time_left):
        found = evaluate(spec, folder, jobs=jobs, report=report, show_time_left=show_time_left)
    if found.failures:
        raise UnfinishedError(f"{len(found.failures)} trials failed; see {folder / 'failures.csv'}")
    return tuple(found.trials)


def trained(study: str, trial: str, seed: int) -> Path:
    """Returns the run's folder of a trial of an experiment."""
    return trial_folder(run_folder(study), trial_name(trial, seed))


def trial_name(trial: str, seed: int) -> str:
    """Names a trial on a seed."""
    return f"{trial}-seed-{seed}"


def train_all(
    study: str, config: Path, minutes: float, changes: Mapping[str, Mapping[str, Any]], seeds: int, jobs: int
) -> Path:
    """Trains what is not trained yet, so many at a time and on one core each; returns the study's folder.

    Args:
        study: name of its folder in `runs`.
        config: file of the settings that all trials share.
        minutes: of each training; 0 for no limit.
        changes: settings of each trial that are others, by its name.
        seeds: number of seeds on which every trial is trained.

    Raises:
        UnfinishedError: a training failed, or all were stopped.
        InputError: settings that cannot be trained with, or other ones than a trial was begun with.
    """
    base = replace(config_from_file(config), minutes=float(minutes), threads=1)
    trials = [
        StudyTrial(
            trial_name(name, seed),
            replace(base, **changed, seed=seed, name=trial_name(name, seed)),
            name,
            "replaced" if changed else "base",
        )
        for seed in range(seeds)
        for name, changed in changes.items()
    ]
    if not run_trials(TrainConfig(name=study, context="grid"), trials, jobs, Console(stderr=True)):
        raise UnfinishedError(f"{run_folder(study)}: not all trainings ended well")
    return run_folder(study)
