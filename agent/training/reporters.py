"""Reporters of a training's metrics: `metrics.jsonl`, TensorBoard, a progress bar."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from agent.training.metrics import (
    ITERATION,
    PROGRESS,
    SCORE,
    SPEED,
    TRAINING,
    USES,
    as_markdown,
    step_time_name,
)
from graphs.io.json_files import write_bytes_atomic

Metrics = Mapping[str, float]


class Reporter(Protocol):
    """Takes the metrics of each update, and the closing ones."""

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Takes the numbers of one update."""

    def close(self, final: Metrics) -> None:
        """Takes the closing numbers, and releases files and screen."""


class MetricsFile:
    """One JSON object per update in `metrics.jsonl`; numbers that are not finite become null.

    Args:
        first_iteration: rows from this one on, left by a run that was killed, are dropped.
    """

    def __init__(self, path: Path, first_iteration: int) -> None:
        rows = path.read_text().splitlines() if path.exists() else []
        kept = [row for row in rows if _iteration(row) < first_iteration]
        write_bytes_atomic(path, "".join(f"{row}\n" for row in kept).encode())
        self._file = path.open("a")

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Appends one row and flushes it."""
        row = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        self._file.write(json.dumps({"timesteps": timesteps, **row}) + "\n")
        self._file.flush()

    def close(self, final: Metrics) -> None:
        """Closes the file."""
        self._file.close()


class TensorBoard:
    """Writes scalars by decision, what they mean as text, and the hyperparameters with the closing numbers.

    Args:
        first_timestep: later scalars, left by a run that was killed, are dropped from the curves.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_timestep: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._settings = {
            key: value if isinstance(value, bool | int | float | str) else ", ".join(map(str, value))
            for key, value in settings.items()
        }
        self._writer = SummaryWriter(str(folder), purge_step=first_timestep or None)
        self._writer.add_text("metrics", as_markdown())

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Writes each metric as a scalar."""
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, timesteps)
        self._writer.flush()

    def close(self, final: Metrics) -> None:
        """Writes the hyperparameters beside the closing numbers, if there are any."""
        from torch.utils.tensorboard.summary import hparams

        named = {f"{TRAINING}/final_{name}": value for name, value in final.items()}
        for summary in hparams(self._settings, named) if named else ():  # type: ignore[no-untyped-call]
            self._writer._get_file_writer().add_summary(summary)  # type: ignore[no-untyped-call]
        for name, value in named.items():
            self._writer.add_scalar(name, value)
        self._writer.close()


class ProgressBar:
    """A bar with step-time ratios, decisions a second and the time left; text without a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("step time {task.fields[train]}, validation {task.fields[validation]}"),
            TextColumn("{task.fields[speed]}/s"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("training", total=1.0, train="-", validation="-", speed="-")
        if console.is_terminal:
            self._progress.start()

    def announce(self, activity: str, share: float) -> None:
        """Shows what goes on before the first update."""
        if share == 0.0:
            self._console.print(activity, highlight=False, soft_wrap=True)
        self._progress.update(self._task, description=activity, completed=share)

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Moves the bar; prints a line after each evaluation."""
        shown: dict[str, Any] = {"speed": f"{metrics[SPEED]:,.0f}"}
        for use in ("train", "validation"):
            if (name := step_time_name(use, "single")) in metrics:
                shown[use] = f"{metrics[name]:.3f}"
        if SCORE in metrics:
            self._console.print(_line(timesteps, metrics), highlight=False, soft_wrap=True)
        self._progress.update(self._task, description="training", completed=metrics[PROGRESS], **shown)

    def close(self, final: Metrics) -> None:
        """Removes the bar, if it was shown."""
        if self._console.is_terminal:
            self._progress.stop()


def _line(timesteps: int, metrics: Metrics) -> str:
    parts = [f"{timesteps:>11,} decisions"]
    for use in USES:
        if (name := step_time_name(use, "single")) in metrics:
            parts.append(f"{use.replace('_', ' ')} {metrics[name]:.3f}")
    return "  ".join([*parts, f"{metrics[SPEED]:,.0f} decisions/s"])


def _iteration(row: str) -> float:
    """Reads the iteration of a row of `metrics.jsonl`; infinite for a row that a crash cut off."""
    try:
        return float(json.loads(row)[ITERATION])
    except (ValueError, KeyError, TypeError):
        return math.inf
