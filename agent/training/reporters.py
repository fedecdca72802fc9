"""Reporters of a training's metrics: `metrics.jsonl`, TensorBoard, a progress bar."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Protocol, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from agent.training.metrics import (
    ITERATION,
    OVER_SEARCH,
    PHASE,
    PHASES,
    PROGRESS,
    SCORE,
    SPEED,
    USES,
    as_markdown,
    step_time_name,
    tag_of,
)
from graphs.system.errors import InputError
from graphs.system.json_files import write_bytes_atomic
from graphs.system.progress import EventFile

Metrics = Mapping[str, float]
CURVES, SEARCH = "curves", "search"
"""Folder of the first chart's parts, and the part that is the search's level, beside those named by phase."""
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
        last_iteration: of the rows that are there; 0 where there are none.

    Raises:
        MetricsError: the file cannot be read, or a row other than a last one that was cut off is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, _read_rows(path)
        self._file: TextIO | None = None
        self.last_iteration = max((iteration for iteration, _ in self._rows), default=0)

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
    """Writes scalars by decision, what they mean as text, and the hyperparameters with the closing numbers.

    The first chart is written again in parts, as TensorBoard gives each folder a colour: one folder for each
    phase, and one for the search's level, 1.

    Args:
        folder: where event files are made at the first report; scalars that a killed run left, of the same
            or later decisions, are dropped from the curves.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        self._folder = folder
        self._settings = {
            key: ", ".join(map(str, value)) if isinstance(value, list) else value if value is not None else ""
            for key, value in settings.items()
        }
        self._records: EventFile | None = None
        self._parts: dict[str, EventFile] = {}

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Writes each metric as a scalar."""
        from torch.utils.tensorboard.summary import scalar

        records = self._records or self._open(timesteps)
        for name, value in metrics.items():
            if tag := tag_of(name):
                records.write(timesteps, summary=scalar(tag, value))  # type: ignore[no-untyped-call]
        records.flush()
        if (ratio := metrics.get(step_time_name("held_out", "annealing"))) is not None:
            phase = PHASES[int(metrics[PHASE]) - 1]
            for part, value in ((phase, ratio), (SEARCH, 1.0)):
                events = self._parts.get(part) or self._open_part(part, timesteps)
                events.write(timesteps, summary=scalar(OVER_SEARCH, value))  # type: ignore[no-untyped-call]
                events.flush()

    def close(self, final: Metrics) -> None:
        """Writes the hyperparameters beside the closing numbers, if there are any."""
        from torch.utils.tensorboard.summary import hparams, scalar

        if self._records is None:
            return
        with ExitStack() as files:
            records = files.enter_context(closing(self._records))
            for part in self._parts.values():
                files.enter_context(closing(part))
            ratio_first = sorted(final, key=lambda name: name != FINAL_RATIO)
            tags = {name: f"result/{name.replace('best_timesteps', 'best_at')}" for name in ratio_first}
            named = {tag: final[name] for name, tag in tags.items()}
            for summary in hparams(self._settings, named) if named else ():  # type: ignore[no-untyped-call]
                records.write(0, summary=summary)
            for name, value in named.items():
                records.write(0, summary=scalar(name, value))  # type: ignore[no-untyped-call]

    def _open(self, first_timestep: int) -> EventFile:
        from torch.utils.tensorboard.summary import text

        records = self._records = _opened(self._folder, first_timestep)
        records.write(0, summary=text("metrics", as_markdown()))  # type: ignore[no-untyped-call]
        for part in (*PHASES, SEARCH):
            if (self._folder / CURVES / part).is_dir():
                self._open_part(part, first_timestep)
        return records

    def _open_part(self, part: str, first_timestep: int) -> EventFile:
        folder = self._folder / CURVES / part
        folder.mkdir(parents=True, exist_ok=True)
        records = self._parts[part] = _opened(folder, first_timestep)
        return records


def _opened(folder: Path, first_timestep: int) -> EventFile:
    """Makes an event file that replaces what earlier ones of the folder hold from a decision on."""
    from tensorboard.compat.proto.event_pb2 import SessionLog

    records = EventFile(folder)
    records.write(first_timestep, session_log=SessionLog(status=SessionLog.START))
    return records


class ProgressBar:
    """A bar with step-time ratios, decisions a second and the time left; text without a terminal.

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
        self._ratios: dict[str, str] = {}
        if console.is_terminal:
            self._progress.start()

    def announce(self, activity: str, share: float) -> None:
        """Shows the activity before the first update."""
        if share == 0.0:
            self._console.print(activity, markup=False, highlight=False, soft_wrap=True)
        self._progress.update(self._task, description=activity, completed=share)

    def report(self, timesteps: int, metrics: Metrics) -> None:
        """Moves the bar; prints a line after each evaluation."""
        ratios, speed = _ratios(metrics), f"{metrics[SPEED]:,.0f}/s"
        if SCORE in metrics:
            shown = [
                f"score {metrics[SCORE]:.3f}",
                *(ratios[use] for use in ("validation", "held_out") if use in ratios),
            ]
            line = "  ".join([f"{timesteps:>11,} decisions", *shown, speed])
            self._console.print(line, highlight=False, soft_wrap=True)
        self._ratios |= ratios
        shown = [self._ratios[use] for use in ("train", "validation") if use in self._ratios]
        numbers, done = "  ".join([*shown, speed]), metrics[PROGRESS]
        self._progress.update(self._task, description="training", completed=done, numbers=numbers)

    def close(self, final: Metrics) -> None:
        """Removes the bar, if it was shown."""
        if self._console.is_terminal:
            self._progress.stop()


def _ratios(metrics: Metrics) -> dict[str, str]:
    """Shows the step times over a single device's, by what the graphs are used for."""
    names = {use: step_time_name(use, "single") for use in USES}
    return {
        use: f"{use.replace('_', ' ')} {metrics[name]:.3f}" for use, name in names.items() if name in metrics
    }


def _read_rows(path: Path) -> list[tuple[int, str]]:
    """Iteration and text of each row of `metrics.jsonl`, but for a last one without its end."""
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    rows = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            row = line.decode()
            value = json.loads(row)
        except ValueError:
            if number == len(lines):
                break
            raise MetricsError(f"{path}:{number}: is no JSON; {MEND}") from None
        iteration = value.get(ITERATION) if isinstance(value, dict) else None
        if type(iteration) is not int:
            raise MetricsError(f"{path}:{number}: has no whole number as '{ITERATION}'; {MEND}")
        rows.append((iteration, row))
    return rows
