"""The declaration of an experiment: its question, its rows, what makes them, and the tables of its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from agent.lab.pivot import ExperimentError, Pivot, Rows, read_table
from graphs.system.registry import Registry

RESULTS = Path(__file__).parent / "results"
"""Folder of the pages and their rows."""


class Run(Protocol):
    """Interface to a dataclass whose fields are the settings of a run: its flags, and their defaults."""

    def rows(self, folder: Path) -> Rows:
        """Makes rows, or goes on where the same settings were stopped in the folder."""


@dataclass(frozen=True)
class Experiment:
    """A question, and the rows that answer it.

    Attributes:
        question: one line.
        tables: tables of the page.
        rows: names of the files of rows.
        run: what makes the rows of the only file, with the settings of the page; None if other commands do.
        quick: other settings of a run that only shows that it works, in about a minute.
    """

    question: str
    tables: Sequence[Pivot]
    rows: Sequence[str]
    run: Run | None = None
    quick: Mapping[str, Any] = field(default_factory=dict)

    def show(self, folder: Path) -> str:
        """Formats the tables of the rows in a folder; a row has the stem of its file in the column `file`.

        Raises:
            ExperimentError: the folder has none of the rows, or they lack a column.
        """
        files = [folder / name for name in self.rows]
        if not any(file.exists() for file in files):
            lacking = f"{folder}: has no {' or '.join(self.rows)}"
            raise ExperimentError(f"{lacking}; run without --only, or give --out the folder of a run")
        rows = [{**row, "file": file.name.partition(".")[0]} for file in files for row in read_table(file)]
        try:
            return "\n\n".join(table.markdown(rows) for table in self.tables)
        except KeyError as error:
            raise ExperimentError(f"{folder}: the rows have no column {error}") from None


EXPERIMENTS = Registry[Experiment](
    "experiment",
    ExperimentError,
    [f"{__package__}.questions"],
)
"""Experiments by name, which is that of a page; other pages are frozen and name the commit of their code."""
