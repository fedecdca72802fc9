"""Reporters of a training's metrics: `metrics.jsonl`, TensorBoard, a progress bar."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agent.training.metrics import (
    ITERATION,
    PHASE,
    PHASES,
    PROGRESS,
    SCORE,
    SPEED,
    as_markdown,
    overview,
    step_time_name,
    tags_of,
)
from envs.placement.render import Picture
from graphs.system.errors import InputError
from graphs.system.json_files import is_irregular, write_bytes_atomic
from graphs.system.progress import EventFile

Metrics = Mapping[str, float]
FINAL_RATIO = "best_score"
"""The closing number that hyperparameters are compared by: the step-time ratio of the policy kept."""
MEND = "mend it, or start a new training under another name"


class MetricsError(InputError):
    """A `metrics.jsonl` that is damaged; the message says where."""


class Reporter(Protocol):
    """Takes the metrics of each update, and the closing ones."""

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Takes the numbers of one update."""

    def close(self, final: Metrics) -> None:
        """Takes the closing numbers, and releases files and screen."""


class MetricsFile:
    """One JSON object per update in `metrics.jsonl`; values that are not finite become null.

    Args:
        path: of the file; what it holds is read and checked at once, and changed at the first report.

    Attributes:
        last_iteration: of the rows that are there without a gap from 1; 0 where there are none.

    Raises:
        MetricsError: the file cannot be read, or a row other than a last one that was cut off is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, _read_rows(path)
        self._file: TextIO | None = None
        iterations = {iteration for iteration, _ in self._rows}
        self.last_iteration = next(n for n in count() if n + 1 not in iterations)

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Appends one row and flushes it; the first replaces rows from its iteration on, of a killed run."""
        file = self._file or self._open(int(metrics[ITERATION]))
        row = {key: value if math.isfinite(value) else None for key, value in metrics.items()}
        file.write(json.dumps({"timesteps": timesteps, **row}) + "\n")
        file.flush()

    def close(self, final: Metrics) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _open(self, first_iteration: int) -> TextIO:
        kept = [row for iteration, row in self._rows if iteration < first_iteration]
        write_bytes_atomic(self._path, "".join(f"{row}\n" for row in kept).encode())
        self._rows = []
        self._file = self._path.open("a", encoding="utf-8")
        return self._file


class TensorBoard:
    """Writes scalars, what they mean, pictures, an overview, hyperparameters and closing numbers.

    Args:
        folder: place of the event file, which is made at the first report; scalars that a killed run left, of
            the same or later decisions, are dropped from the curves.
        settings: hyperparameters to list, those by which trainings are told apart.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._settings = {
            key: ", ".join(map(str, value)) if isinstance(value, list) else value if value is not None else ""
            for key, value in settings.items()
        }
        self._records: EventFile | None = None

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Writes each metric as a scalar."""
        from torch.utils.tensorboard.summary import scalar

        records = self._records or self._open(timesteps, metrics)
        for name, tag in tags_of(metrics).items():
            records.write(timesteps, summary=scalar(tag, metrics[name]))  # type: ignore[no-untyped-call]
        records.flush()

    def show(self, timesteps: int, tag: str, picture: Picture) -> None:
        """Writes a picture, uint8 (height, width, 3)."""
        from torch.utils.tensorboard.summary import image

        assert self._records is not None, "pictures come after numbers"
        self._records.write(timesteps, summary=image(tag, picture, dataformats="HWC"))  # type: ignore[no-untyped-call]
        self._records.flush()

    def close(self, final: Metrics) -> None:
        """Writes the hyperparameters beside the closing numbers, if there are any."""
        from torch.utils.tensorboard.summary import hparams, scalar

        if self._records is None:
            return
        with closing(self._records) as records:
            ratio_first = sorted(final, key=lambda name: name != FINAL_RATIO)
            named = {f"result/{name}": final[name] for name in ratio_first}
            for summary in hparams(self._settings, named) if named else ():  # type: ignore[no-untyped-call]
                records.write(0, summary=summary)
            for name, value in named.items():
                records.write(0, summary=scalar(name, value))  # type: ignore[no-untyped-call]

    def _open(self, first_timestep: int, metrics: Metrics) -> EventFile:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from torch.utils.tensorboard.summary import custom_scalars, text

        records = self._records = EventFile(self._folder)
        records.write(first_timestep, session_log=SessionLog(status=SessionLog.START))
        records.write(0, summary=text("metrics", as_markdown()))  # type: ignore[no-untyped-call]
        if not first_timestep:
            layout = overview(imitates=metrics.get(PHASE) != len(PHASES))
            records.write(0, summary=custom_scalars(layout))  # type: ignore[no-untyped-call]
        return records


COLUMNS = {"score": SCORE} | {use: step_time_name(use, "single") for use in ("validation", "held_out")}
ROW = "{:>12} {:>8} {:>11} {:>9} {:>12}"
HEAD = "step times over the fastest single device's; score: graphs not held out\n" + ROW.format(
    "decisions", *(name.replace("_", " ") for name in COLUMNS), "decisions/s"
)


class ProgressBar:
    """A bar with step-time ratios, decisions a second and the time left, and a table of the evaluations.

    It and its lines fit 80 columns.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[numbers]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("training", total=1.0, numbers="")
        self._score = ""
        if console.is_terminal:
            self._progress.start()

    def announce(self, activity: str, share: float) -> None:
        """Shows the activity before the first update."""
        if share == 0.0:
            self._print(activity)
        self._progress.update(self._task, description=activity, completed=share)

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Moves the bar; prints a row after each evaluation."""
        speed = f"{metrics[SPEED]:,.0f}"
        if SCORE in metrics:
            if not self._score:
                self._print(HEAD)
            self._score = f"score {metrics[SCORE]:.3f}  "
            shown = [f"{metrics[name]:.3f}" if name in metrics else "-" for name in COLUMNS.values()]
            self._print(ROW.format(f"{timesteps:,}", *shown, speed if metrics[SPEED] else "-"))
        numbers, done = f"{self._score}{speed} decisions/s", metrics[PROGRESS]
        self._progress.update(self._task, description="training", completed=done, numbers=numbers)

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self, final: Metrics) -> None:
        """Removes the bar, if it was shown."""
        if self._console.is_terminal:
            self._progress.stop()


def _read_rows(path: Path) -> list[tuple[int, str]]:
    """Iteration and text of each row of `metrics.jsonl`, but for a last one without its end."""
    if is_irregular(path):
        raise MetricsError(f"{path}: is no regular file; {MEND}")
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = line.decode()
            value = json.loads(row)
        except (RecursionError, ValueError):
            if number == len(lines):
                break
            raise MetricsError(f"{path}:{number}: is no JSON; {MEND}") from None
        iteration = value.get(ITERATION) if isinstance(value, dict) else None
        if type(iteration) is not int:
            raise MetricsError(f"{path}:{number}: has no whole number as '{ITERATION}'; {MEND}")
        rows.append((iteration, row))
    return rows
