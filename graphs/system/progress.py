"""Progress on standard error, and in event files, which TensorBoard reads.

Events are written at once and by this process: `SummaryWriter` writes in a thread, and where that fails, as
on a full disk, prints a traceback.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    track,
)

Item = TypeVar("Item")


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Shows bars; gives the function of (what is done, done, in all) that moves them."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        tasks: dict[str, TaskID] = {}

        def report(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = progress.add_task(what)
            progress.update(tasks[what], completed=done, total=total)

        yield report


def followed(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Shows how many items are done."""
    return track(items, what, console=Console(stderr=True))


class EventFile:
    """A new event file in a folder, which is made.

    Raises:
        OSError: on construction, if it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter

        # TensorBoard reads the event files of a folder in the order of their names.
        name = f"events.out.tfevents.{time.time():.6f}.{socket.gethostname()}.{os.getpid()}"
        folder.mkdir(parents=True, exist_ok=True)
        self._records = RecordWriter((folder / name).open("xb"))
        self.write(0, file_version="brain.Event:2")

    def write(self, step: int, **content: Any) -> None:
        """Write one event; `content` is a field of the event and its value."""
        from tensorboard.compat.proto.event_pb2 import Event

        self._records.write(Event(wall_time=time.time(), step=step, **content).SerializeToString())

    def flush(self) -> None:
        """Write out what is buffered."""
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()
