"""The progress of an experiment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

from rich.console import Console
from rich.progress import track

Item = TypeVar("Item")


def followed(items: Sequence[Item], what: str) -> Iterable[Item]:
    """Shows on standard error how many items are done."""
    return track(items, what, console=Console(stderr=True))
