"""Trials that failed: why, and the files that say so."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.evaluation.results import Key, name_of
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError, printable, shown

TABLE, LOG = "failures.csv", "failures.log"
"""Names of the files in the folder of an evaluation."""
COLUMNS = ("graph", "cluster", "placer", "order", "seed", "tries", "reason")


@dataclass(frozen=True)
class Failure:
    """A trial that could not be made.

    Attributes:
        key: identity of the trial within the evaluation.
        tries: number of times that it was tried.
        reason: one printable line.
        details: traceback of an unexpected exception; else empty.
    """

    key: Key
    tries: int
    reason: str
    details: str = ""


def failure_of(key: Key, error: Exception) -> Failure:
    """Describes the exception that ended a trial; it is not tried again, as it would end in the same way."""
    text = shown(" ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":"))
    details = "" if isinstance(error, InputError) else "".join(traceback.format_exception(error))
    return Failure(key, 1, text, details)


def write_failures(folder: Path, failures: Iterable[Failure]) -> None:
    """Writes `failures.csv` atomically, or removes it where no trial failed."""
    rows = [(*failure.key, failure.tries, failure.reason) for failure in failures]
    if rows:
        write_csv(folder / TABLE, COLUMNS, rows)
    else:
        (folder / TABLE).unlink(missing_ok=True)


def log_details(folder: Path, failure: Failure) -> None:
    """Appends the traceback of a failure to `failures.log`, if it has one."""
    if failure.details:
        graph, cluster, placer, order, seed = failure.key
        heading = f"{name_of(placer, order)}, seed {seed}, on graph {graph} and cluster {cluster}"
        lines = [heading, *failure.details.splitlines(), ""]
        with (folder / LOG).open("a", encoding="utf-8") as file:
            file.writelines(f"{printable(line)}\n" for line in lines)


def failed_line(n_failed: int) -> str:
    """Says how many trials failed, and where the reasons are."""
    return f"{n_failed} {'trial' if n_failed == 1 else 'trials'} failed; see {TABLE}"
