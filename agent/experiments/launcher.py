"""Starts the trainings and evaluations of experiments, and goes on with those that were stopped."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import TypeVar

from agent.training.run_folder import is_finished, read_config, run_folder
from graphs.command_line import interruptible, run_command
from graphs.errors import InputError

Run = TypeVar("Run")


def train_run(name: str, config: Path, minutes: float, flags: Sequence[str]) -> None:
    """Train a policy on one core with a configuration and some flags, or go on where it was stopped.

    Raises:
        CalledProcessError: the training failed, diverged or was stopped.
        InputError: a run of this name was begun with other minutes, or its files are damaged.
    """
    folder = run_folder(name)
    begun = folder.exists()
    if begun:
        before = read_config(name).minutes
        if before != minutes:
            raise InputError(f"{folder} was begun with --minutes {before:g}; use that, or remove the folder")
        if is_finished(folder):
            return
    new = ["--config", str(config), "--threads", "1", "--minutes", str(minutes), *flags]
    given = ["--resume"] if begun else new
    subprocess.run([sys.executable, "-m", "agent.commands.train", *given, "--name", name], check=True)


def side_by_side(train: Callable[[Run], None], runs: Iterable[Run], count: int) -> None:
    """Train runs, so many at a time; once one has failed or was stopped, no other is begun.

    Raises:
        Exception: what a run raised, when those under way have ended; of several, the first in `runs`.
    """
    is_stopped = Event()

    def train_unless_stopped(run: Run) -> None:
        if is_stopped.is_set():
            return
        try:
            train(run)
        except BaseException:
            is_stopped.set()
            raise

    with ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(train_unless_stopped, run) for run in runs]
        try:
            for future in futures:
                future.result()
        finally:
            is_stopped.set()


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
        except KeyboardInterrupt:
            print("stopped; the same command goes on", file=sys.stderr)
            return 1
        return 0

    return run_command(command, run)
