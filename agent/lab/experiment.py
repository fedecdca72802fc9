"""The declaration of an experiment: its question, its rows, and the functions that make and show them.

A declaration loads nothing heavy: it names functions as `MODULE:FUNCTION` inside of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from graphs.system.errors import InputError
from graphs.system.registry import Registry

RESULTS = Path(__file__).parent / "results"
"""Folder of the pages and their rows."""

Maker = Callable[..., Iterable[Sequence[Any]]]
"""Makes the rows of each file from a folder to work in and the settings; rows are dataclasses."""
Tables = Callable[..., Iterator[str]]
"""Yields the tables of a page as Markdown, from the files of rows."""


class ExperimentError(InputError):
    """An experiment that does not exist or cannot be run like this; the message says what would be right."""


@dataclass(frozen=True)
class Experiment:
    """A question, and the rows that answer it.

    Attributes:
        question: one line.
        rows: files of rows beside the page, in the order in which `run` makes them.
        tables: function that yields the tables from the paths of these files.
        run: function that makes the rows from a folder and the settings; empty if other commands make them.
        settings: flags of `run` and their defaults, which are those of the page.
        quick: settings of a run that only shows that it works, in about a minute.
        fixed: further arguments of both, which no flag changes.
    """

    question: str
    rows: tuple[str, ...]
    tables: str
    run: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def make_rows(self, folder: Path, settings: Mapping[str, Any]) -> Iterable[Sequence[Any]]:
        """Makes the rows of each file, or goes on where the same settings were stopped."""
        return cast("Maker", loaded(self.run))(folder, **settings, **self.fixed)

    def show(self, folder: Path) -> Iterator[str]:
        """Yields the tables of the rows that a folder holds."""
        return cast("Tables", loaded(self.tables))(*(folder / name for name in self.rows), **self.fixed)


QUESTIONS = (
    "benchmark",
    "budgets",
    "equal_time",
    "pipelines",
    "pipeline_searches",
    "recorded",
    "others",
)
EXPERIMENTS = Registry[Experiment](
    "experiment", ExperimentError, [f"{__package__}.questions.{name}" for name in QUESTIONS]
)
"""Experiments by name; a page of results has the name of its experiment."""


def loaded(name: str) -> Callable[..., Any]:
    """Imports the function that `MODULE:FUNCTION` names inside of this package."""
    module, function = name.split(":")
    return cast("Callable[..., Any]", getattr(import_module(f"{__package__}.{module}"), function))
