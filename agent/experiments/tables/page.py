"""Pages of results by name: each prints its tables from its rows."""

from __future__ import annotations

import csv
import gzip
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from graphs.system.errors import InputError
from graphs.system.registry import Registry

RESULTS = Path(__file__).parents[1] / "results"
"""Folder of the pages and their rows."""

Tables = Callable[[], Iterator[str]]
"""Yields the tables of a page as Markdown."""
Row = TypeVar("Row")


class PageError(InputError):
    """A page that does not exist, or rows that cannot be read."""


PAGES = Registry[Tables](
    "page", PageError, [f"{__package__}.{name}" for name in ("placers", "bounds", "policies", "costs")]
)
"""Functions that print tables by the name of the page."""


def page(tables: Tables) -> Tables:
    """Registers the tables of the page that has the name of the function."""
    return PAGES.register(tables.__name__, tables, tables.__module__)


def read_rows(file: str, row: type[Row]) -> list[Row]:
    """Reads rows that `write_csv` wrote from fields of a dataclass.

    Args:
        file: name in the folder of results; `.gz` is decompressed.
        row: the dataclass. Columns that are no field of it are ignored.

    Raises:
        PageError: the file cannot be read, or a field has no column.
    """
    kinds = get_type_hints(row)
    try:
        return [
            row(**{name: _value(line[name], kind) for name, kind in kinds.items()}) for line in read_csv(file)
        ]
    except (KeyError, ValueError) as error:
        raise PageError(f"{RESULTS / file}: holds no rows of {row.__name__} ({error})") from None


def read_csv(file: str) -> list[dict[str, str]]:
    """Reads the lines of a CSV file in the folder of results, each by the names of the columns.

    Raises:
        PageError: the file cannot be read.
    """
    path = RESULTS / file
    try:
        with (
            gzip.open(path, "rt")
            if path.suffix == ".gz"
            else path.open(newline="", encoding="utf-8") as lines
        ):
            return list(csv.DictReader(lines))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise PageError(f"{path}: cannot be read: {error}") from None


def mean_cell(ratios: Iterable[float]) -> str:
    """Formats the geometric mean of ratios; a ratio that is NaN is left out."""
    logs = np.log([ratio for ratio in ratios if not np.isnan(ratio)])
    return f"{np.exp(logs.mean()):.3f}" if len(logs) else ""


def _value(text: str, kind: Any) -> Any:
    """Converts a cell to the type of its field."""
    if get_origin(kind) is types.UnionType:
        return _value(text, get_args(kind)[0]) if text else None
    return text == "True" if kind is bool else kind(text)
