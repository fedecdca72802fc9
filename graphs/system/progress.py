"""Progress on standard error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

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
