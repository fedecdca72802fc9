"""Runs the parts of an experiment, and goes on with what was stopped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.progress import track

from agent.evaluation.results import Trial
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import progress_bar
from graphs.system.errors import InputError

Item = TypeVar("Item")


class UnfinishedError(InputError):
    """A trial of an experiment that failed."""

    exit_code = 1


def followed(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Shows on standard error how many items are done."""
    return track(items, what, console=Console(stderr=True))


def evaluated(spec: EvaluationSpec, folder: Path) -> tuple[Trial, ...]:
    """Makes the trials of an evaluation that a folder does not hold yet, under a progress bar.

    Raises:
        EvaluationError: the folder holds another evaluation.
        UnfinishedError: a trial failed.
    """
    with progress_bar() as report:
        found = evaluate(spec, folder, report=report)
    if found.failures:
        raise UnfinishedError(f"{len(found.failures)} trials failed; see {folder / 'failures.csv'}")
    return tuple(found.trials)
