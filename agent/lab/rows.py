"""Rows of results: written to CSV files, read from them, and shown as Markdown."""

from __future__ import annotations

import csv
import gzip
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from agent.evaluation.comparison.ratios import geometric_mean
from agent.lab.experiment import ExperimentError
from graphs.system.csv_files import write_csv

Row = TypeVar("Row")
RecordedRow = Mapping[str, Any]
"""The values of a row of a settled question, by column."""


def write_rows(path: Path, rows: Sequence[Any]) -> None:
    """Writes dataclasses of one kind as a CSV file, atomically.

    Args:
        path: a name ending in `.gz` is compressed.

    Raises:
        ExperimentError: there are no rows.
    """
    if not rows:
        raise ExperimentError(f"{path}: there are no rows to write; give the experiment more to compare")
    write_csv(path, [item.name for item in fields(rows[0])], map(astuple, rows))


def read_rows(path: Path, row: type[Row]) -> list[Row]:
    """Reads rows that `write_rows` wrote.

    Args:
        path: a name ending in `.gz` is decompressed.
        row: the dataclass. Columns that are no field of it are ignored.

    Raises:
        ExperimentError: the file cannot be read, or a field has no column.
    """
    kinds = get_type_hints(row)
    with _lines(path) as lines:
        try:
            return [row(**{name: _value(line[name], kind) for name, kind in kinds.items()}) for line in lines]
        except (KeyError, ValueError, TypeError) as error:
            raise ExperimentError(f"{path}: holds no rows of {row.__name__} ({error})") from None


def kept_rows(path: Path, row: type[Row], make: Callable[[], Iterable[Row]]) -> list[Row]:
    """Reads the rows of a part of an experiment; makes them first if the file is not there."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_rows(path, list(make()))
    return read_rows(path, row)


def read_table(path: Path) -> list[RecordedRow]:
    """Reads rows of any kind: numbers, truth values and texts; an empty cell is None.

    Raises:
        ExperimentError: the file cannot be read.
    """
    with _lines(path) as lines:
        return [{name: _plain_value(text) for name, text in line.items()} for line in lines]


@contextmanager
def _lines(path: Path) -> Iterator[csv.DictReader[str]]:
    try:
        with (
            gzip.open(path, "rt")
            if path.suffix == ".gz"
            else path.open(newline="", encoding="utf-8") as lines
        ):
            yield csv.DictReader(lines)
    except (OSError, EOFError, csv.Error) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from None


def _plain_value(text: str) -> Any:
    """Converts a cell to what it looks like."""
    if text in ("", "True", "False"):
        return text == "True" if text else None
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text


def _value(text: str, kind: Any) -> Any:
    """Converts a cell to the type of its field."""
    if get_origin(kind) is types.UnionType:
        return _value(text, get_args(kind)[0]) if text else None
    return text == "True" if kind is bool else kind(text)


def markdown_table(rows: Sequence[Sequence[str]]) -> str:
    """Formats a table in Markdown; the first row is its head."""
    head, *body = rows
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def pivot(
    rows: Sequence[RecordedRow],
    name: str,
    by: Sequence[str],
    columns: Mapping[str, tuple[Any, ...]],
    cell: Callable[[RecordedRow], str],
) -> list[list[str]]:
    """Arranges rows in a table: a line for each value of a column, and cells for values of other columns.

    Args:
        name: column whose values begin the lines.
        by: columns that tell the rows of a line apart.
        columns: values of these, by the head of a column of the table.
    """
    found = {(row[name], *(row[key] for key in by)): row for row in rows}
    body = [
        [value, *(cell(found[value, *column]) for column in columns.values())]
        for value in axis(row[name] for row in rows)
    ]
    return [[name, *columns], *body]


def mean_cell(ratios: Iterable[float]) -> str:
    """Formats the geometric mean of ratios; a ratio that is NaN is left out, and nothing is an empty cell."""
    return number_cell(geometric_mean(ratio for ratio in ratios if not np.isnan(ratio)))


def number_of(column: str) -> Callable[[RecordedRow], str]:
    """Makes a function that formats a number of a row with three decimals."""
    return lambda row: number_cell(row[column])


def number_cell(value: float | None, absent: str = "") -> str:
    """Formats a number with three decimals."""
    return absent if value is None else f"{value:.3f}"


def axis(values: Iterable[Any]) -> list[Any]:
    """Lists values once each, in the order of their first appearance."""
    return list(dict.fromkeys(values))


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Collects the rows of each key, in the order of their first appearance."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups
