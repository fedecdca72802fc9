"""The rows of the check of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from graphs.system.errors import shortened

OK, FAILED, SKIPPED = "ok", "failed", "skipped"
MOST_CHARS = 300
"""Characters of a failure that a row keeps."""


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Attributes:
        predicted_s, measured_s: of a step; None where there is nothing to compare.
        predicted_bytes, measured_bytes: peak memory of the device.
        note: what was found, or why it failed.
    """

    part: str
    name: str
    state: str = OK
    predicted_s: float | None = None
    measured_s: float | None = None
    predicted_bytes: float | None = None
    measured_bytes: float | None = None
    note: str = ""


Rows = Iterator[Row]


def tried(part: str, name: str, make: Callable[[], Row]) -> Row:
    """Makes a row, or one that says in a line why that failed."""
    try:
        return make()
    except ModuleNotFoundError as error:
        return Row(part, name, SKIPPED, note=f"{error.name} is not installed; give wheels in a folder")
    except Exception as error:
        said = " ".join(str(error).split())
        return Row(part, name, FAILED, note=f"{type(error).__name__}: {shortened(said, MOST_CHARS)}")


def is_gpu(device: str) -> bool:
    return device != "cpu"
