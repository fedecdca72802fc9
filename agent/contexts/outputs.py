"""Outputs of a training beside SB3's: `metrics.jsonl`, TensorBoard on full disks too, a progress bar."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from stable_baselines3.common.logger import HParam, Image, KVWriter

from agent.learn.callbacks import UpdateCallback
from agent.learn.metrics import HELD_OUT, LAYOUT, SCORE, SPEED, UPDATES, VALIDATION, as_markdown
from graphs.system.errors import InputError
from graphs.system.json_files import is_irregular, write_bytes_atomic
from graphs.system.progress import EventFile

MEND = "mend it, or start a new training under another name"


class MetricsError(InputError):
    """A `metrics.jsonl` that is damaged; the message says where."""


class MetricsFile(KVWriter):
    """Writes one JSON object per row; numbers that are not finite become null.

    Args:
        path: of the file; what it holds is read and checked at once, and changed at the first row.

    Attributes:
        last_update: of the rows that are there without a gap from 1; 0 where there are none.

    Raises:
        MetricsError: the file cannot be read, or a row other than a last one that was cut off is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._rows = path, _read_rows(path)
        self._file: TextIO | None = None
        updates = {number for number, _ in self._rows}
        self.last_update = next(n for n in count() if n + 1 not in updates)

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Appends a row and flushes it; the first replaces those of its update and later, of a killed run."""
        file = self._file or self._open(int(key_values[UPDATES]))
        row: dict[str, float | None] = {"timesteps": step}
        for name, value in key_values.items():
            if isinstance(value, (int, float, np.number)):
                number = value.item() if isinstance(value, np.number) else value
                row[name] = number if math.isfinite(number) else None
        file.write(json.dumps(row) + "\n")
        file.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            self._file.close()

    def _open(self, first_update: int) -> TextIO:
        earlier = [row for number, row in self._rows if number < first_update]
        write_bytes_atomic(self._path, "".join(f"{row}\n" for row in earlier).encode())
        self._rows = []
        self._file = self._path.open("a", encoding="utf-8")
        return self._file


class EventWriter(KVWriter):
    """Writes scalars, pictures and hyperparameters for TensorBoard, with an overview and what metrics mean.

    Unlike SB3's, it drops from the curves what a killed run left of the same or later decisions, and fails at
    once where a disk is full.

    Args:
        folder: place of the event file, which is made at the first row.
        settings: further hyperparameters to list.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any] | None = None) -> None:
        self._folder = folder
        self._settings = {key: _plain(value) for key, value in (settings or {}).items()}
        self._events: EventFile | None = None

    def write(
        self, key_values: dict[str, Any], key_excluded: dict[str, tuple[str, ...]], step: int = 0
    ) -> None:
        """Writes one row."""
        from torch.utils.tensorboard.summary import hparams, image, scalar

        events = self._events or self._open(step)
        for name, value in key_values.items():
            if "tensorboard" in key_excluded[name]:
                continue
            if isinstance(value, HParam):
                summaries = hparams({**value.hparam_dict, **self._settings}, value.metric_dict)  # type: ignore[no-untyped-call]
            elif isinstance(value, Image):
                summaries = [image(name, value.image, dataformats=value.dataformats)]  # type: ignore[no-untyped-call]
            else:
                summaries = [scalar(name, value)]  # type: ignore[no-untyped-call]
            for summary in summaries:
                events.write(step, summary=summary)
        events.flush()

    def close(self) -> None:
        """Closes the file."""
        if self._events is not None:
            self._events.close()

    def _open(self, first_step: int) -> EventFile:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from torch.utils.tensorboard.summary import custom_scalars, text

        events = self._events = EventFile(self._folder)
        events.write(first_step, session_log=SessionLog(status=SessionLog.START))
        events.write(0, summary=text("metrics", as_markdown()))  # type: ignore[no-untyped-call]
        if not first_step:
            events.write(0, summary=custom_scalars(LAYOUT))  # type: ignore[no-untyped-call]
        return events


def _plain(value: Any) -> Any:
    """Returns a setting as a value that TensorBoard lists."""
    return ", ".join(map(str, value)) if isinstance(value, list) else value if value is not None else ""


COLUMNS = {"score": SCORE, "validation": VALIDATION, "held out": HELD_OUT}
ROW = "{:>12} {:>8} {:>11} {:>9} {:>12}"
HEAD = "step times over the fastest single device's; score: graphs not held out\n" + ROW.format(
    "decisions", *COLUMNS, "decisions/s"
)


class ProgressBar(UpdateCallback):
    """Shows a bar with the score, decisions a second and the time left, and a table of the comparisons.

    It and its lines fit 80 columns. It comes after the callback that compares.
    """

    def __init__(self, console: Console) -> None:
        super().__init__()
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
        """Shows an activity other than training, and the share of it that is done."""
        if share == 0.0:
            self._print(activity)
        self._progress.update(self._task, description=activity, completed=share)

    def _on_update(self) -> None:
        numbers = self.logger.name_to_value
        speed = f"{numbers[SPEED]:,.0f}" if SPEED in numbers else "-"
        if SCORE in numbers:
            if not self._score:
                self._print(HEAD)
            self._score = f"score {numbers[SCORE]:.3f}  "
            shown = [f"{numbers[name]:.3f}" if name in numbers else "-" for name in COLUMNS.values()]
            self._print(ROW.format(f"{self.num_timesteps:,}", *shown, speed))
        self._progress.update(
            self._task,
            description="training",
            completed=1 - self.model._current_progress_remaining,
            numbers=f"{self._score}{speed} decisions/s",
        )

    def _print(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Removes the bar, if it was shown."""
        if self._console.is_terminal:
            self._progress.stop()


def _read_rows(path: Path) -> list[tuple[int, str]]:
    """Update and text of each row of `metrics.jsonl`, but for a last one without its end."""
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
        updates = value.get(UPDATES) if isinstance(value, dict) else None
        if type(updates) is not int:
            raise MetricsError(f"{path}:{number}: has no whole number as '{UPDATES}'; {MEND}")
        rows.append((updates, row))
    return rows
