"""Trains and evaluates what an experiment compares, and goes on with what was stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from agent.studies.record import StudyTrial
from agent.studies.study_folder import trial_folder
from agent.studies.study_runner import run_trials
from agent.training.config import TrainConfig
from agent.training.run_folder import config_from_file, run_folder
from graphs.system.command_line import interruptible, run_command


class TrainingError(RuntimeError):
    """A training of an experiment that failed or was stopped; the lines before say which and why."""


def trained(study: str, trial: str, seed: int) -> Path:
    """The run's folder of a trial of an experiment."""
    return trial_folder(run_folder(study), trial_name(trial, seed))


def trial_name(trial: str, seed: int) -> str:
    """Name of a trial on a seed."""
    return f"{trial}-seed-{seed}"


def trials_of(
    config: Path, minutes: float, changes: dict[str, dict[str, Any]], seeds: Sequence[int]
) -> list[StudyTrial]:
    """Makes the trials of an experiment, on one core each.

    Args:
        config: file of the settings that they share.
        changes: settings of each trial that are others, by its name.
        seeds: on each of which every trial is trained.
    """
    base = replace(config_from_file(config), minutes=float(minutes), threads=1)
    return [
        StudyTrial(
            trial_name(name, seed),
            replace(base, **changed, seed=seed, name=trial_name(name, seed)),
            name,
            "replaced" if changed else "base",
        )
        for seed in seeds
        for name, changed in changes.items()
    ]


def train_all(study: str, context: str, trials: Sequence[StudyTrial], jobs: int) -> None:
    """Trains what is not trained yet, so many at a time.

    Raises:
        TrainingError: a training failed, or all were stopped.
        InputError: settings that cannot be trained with, or other ones than a trial was begun with.
    """
    base = TrainConfig(name=study, context=context)
    if not run_trials(base, trials, jobs, Console(stderr=True)):
        raise TrainingError(f"{run_folder(study)}: not all trainings ended well")


def evaluate_run(flags: Sequence[str]) -> None:
    """Evaluate with some flags, or go on where that was stopped; the table stays in the files.

    Raises:
        CalledProcessError: the evaluation failed or was stopped.
    """
    subprocess.run(
        [sys.executable, "-m", "agent.commands.evaluate", *flags], check=True, stdout=subprocess.DEVNULL
    )


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; the first row is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def exit_code(command: str, work: Callable[[], None]) -> int:
    """Do the work of a command; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""

    def run() -> int:
        try:
            with interruptible():
                work()
        except subprocess.CalledProcessError as error:
            print(f"{command}: {' '.join(error.cmd[1:4])} ... ended with {error.returncode}", file=sys.stderr)
            return 1
        except TrainingError as error:
            print(f"{command}: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            print("stopped; run the same command again to resume", file=sys.stderr)
            return 1
        return 0

    return run_command(command, run)
