"""Writes tables as CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from graphs.system.errors import printable
from graphs.system.json_files import write_bytes_atomic

FORMULA = ("=", "+", "-", "@")
"""Beginnings of cells that spreadsheets take for formulas."""


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table atomically; None is an empty cell, floats are exact.

    Text is made printable, and gets an apostrophe in front where a spreadsheet would take it for a formula.
    """

    def inert(cell: object) -> object:
        if not isinstance(cell, str):
            return cell
        return printable(f"'{cell}" if cell.startswith(FORMULA) else cell)

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(inert, row) for row in rows)
    write_bytes_atomic(path, text.getvalue().encode())


def write_rows(path: Path, kind: type[Any], rows: Iterable[Any]) -> None:
    """Writes objects of a dataclass as `write_csv` does, a column for each field."""
    write_csv(path, [column.name for column in fields(kind)], map(astuple, rows))
