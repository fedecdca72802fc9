"""Rows of results: mappings from columns to values, in CSV files."""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError

Row = Mapping[str, Any]
Rows = Sequence[Row]


class ExperimentError(InputError):
    """An experiment that does not exist or cannot be run like this; the message says what would be right."""


def write_rows(path: Path, rows: Rows) -> None:
    """Writes rows of the same columns as a CSV file, atomically; a name ending in `.gz` is compressed.

    Raises:
        ExperimentError: there are no rows.
    """
    if not rows:
        raise ExperimentError(f"{path}: there are no rows to write; give the experiment more to compare")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_csv(path, [*rows[0]], [[*row.values()] for row in rows])


def read_table(path: Path) -> list[Row]:
    """Reads a CSV file: numbers, truth values and texts; an empty cell is None.

    Args:
        path: a name ending in `.gz` is decompressed.

    Raises:
        ExperimentError: the file cannot be read.
    """
    try:
        with (
            gzip.open(path, "rt") if path.suffix == ".gz" else path.open(newline="", encoding="utf-8")
        ) as file:
            return [{name: _value(text) for name, text in line.items()} for line in csv.DictReader(file)]
    except (OSError, EOFError, csv.Error) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from None


def _value(text: str) -> Any:
    """Converts a cell to what it looks like."""
    if text in ("", "True", "False"):
        return text == "True" if text else None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def axis(values: Iterable[Any]) -> list[Any]:
    """Lists values once each, in the order of their first appearance."""
    return list(dict.fromkeys(values))


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Collects the rows of each key, in the order of their first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
