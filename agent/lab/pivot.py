"""Rows of results in CSV files, the tables of a page from its rows (one pivot), and statistics of cells."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent.evaluation.comparison.ratios import geometric_mean, nested_interval
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError

Row = Mapping[str, Any]
Rows = Sequence[Row]
Key = str | Callable[[Row], Any]
"""A column of the rows, or a function of a row."""
Statistic = Callable[[Rows], str]
"""Formats the rows of a cell."""
PROBLEM = ("graph", "cluster", "granularity")
"""Columns that name the problem of a trial."""
LATE = 1.1
"""Times the budget of seconds beyond which a placer does not keep it."""


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
            return [{name: _parsed(text) for name, text in line.items()} for line in csv.DictReader(file)]
    except (OSError, EOFError, csv.Error) as error:
        raise ExperimentError(f"{path}: cannot be read: {error}") from None


def _parsed(text: str) -> Any:
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


@dataclass(frozen=True)
class Across:
    """Cells side by side: one for each value of a key, in the order in which the rows have them.

    Attributes:
        key: key whose values are the heads.
        cell: statistic of the rows of a value.
    """

    key: Key
    cell: Statistic


@dataclass(frozen=True)
class Pivot:
    """A table of rows: a line for each value of an index, and statistics of the rows of a line beside it.

    Attributes:
        index: keys whose values begin a line, by their heads.
        cells: heads and statistics, or cells across.
        where: function that says whether a row counts; by default all do.
        total: name of a last line of all rows; empty for none.
    """

    index: Mapping[str, Key]
    cells: Sequence[tuple[str, Statistic] | Across]
    where: Callable[[Row], bool] = lambda row: True
    total: str = ""

    def markdown(self, rows: Rows) -> str:
        """Formats the table.

        Raises:
            KeyError: the rows lack a column.
        """
        rows = [row for row in rows if self.where(row)]
        cells = [cell for declared in self.cells for cell in _expanded(declared, rows)]
        groups = grouped(rows, lambda row: tuple(_value(row, key) for key in self.index.values()))
        if self.total:
            groups[self.total, *[""] * (len(self.index) - 1)] = rows
        table = [[*self.index, *(head for head, _ in cells)], ["---"] * (len(self.index) + len(cells))]
        for names, group in groups.items():
            table.append([*map(str, names), *(statistic(group) for _, statistic in cells)])
        return "\n".join(f"| {' | '.join(line)} |" for line in table)


def _value(row: Row, key: Key) -> Any:
    return row[key] if isinstance(key, str) else key(row)


def _expanded(cells: tuple[str, Statistic] | Across, rows: Rows) -> list[tuple[str, Statistic]]:
    if not isinstance(cells, Across):
        return [cells]
    across = cells

    def of_head(head: Any) -> Statistic:
        return lambda rows: across.cell([row for row in rows if _value(row, across.key) == head])

    return [(str(head), of_head(head)) for head in axis(_value(row, across.key) for row in rows)]


def only(statistic: Statistic, **values: Any) -> Statistic:
    """Makes a statistic of the rows that have values in columns."""
    return lambda rows: statistic([row for row in rows if all(row[key] == values[key] for key in values)])


def count(rows: Rows) -> str:
    """Counts rows."""
    return str(len(rows))


def mean(column: str, over: str = "") -> Statistic:
    """Makes a statistic that formats the geometric mean of a column, or of its ratio to another one.

    What is not finite is left out, and nothing is an empty cell.
    """

    def cell(rows: Rows) -> str:
        ratios = (row[column] / row[over] if over else row[column] for row in rows)
        ratio = geometric_mean(ratio for ratio in ratios if math.isfinite(ratio))
        return "" if ratio is None else f"{ratio:.3f}"

    return cell


def error(predicted: str, measured: str, quantile: float) -> Statistic:
    """Makes a statistic that formats a quantile of |predicted / measured - 1| of rows that have both."""

    def cell(rows: Rows) -> str:
        errors = [abs(row[predicted] / row[measured] - 1) for row in rows if row[predicted] and row[measured]]
        return f"{np.quantile(errors, quantile):.1%}" if errors else ""

    return cell


def over(ours: str, *others: str) -> Statistic:
    """Makes a statistic that formats the step of a placer over that of the best single one of others.

    The best has the least geometric mean of those that keep the budget everywhere; it is named if there are
    several. Steps are compared where both are feasible, with a 95 % interval over families, problems and
    seeds; how often the placer found no feasible placement is said. Rows are trials, as `TrialRow` has them.
    """

    def is_late(row: Row) -> bool:
        return row["seconds"] is not None and row["cpu_s"] > LATE * row["seconds"]

    def cell(rows: Rows) -> str:
        of_placer = grouped(rows, lambda row: row["placer"])
        logs = {name: _logs(trials) for name, trials in of_placer.items()}
        present = [name for name in others if name in logs and not any(map(is_late, of_placer[name]))]
        if ours not in logs or not present:
            return ""
        best = min(present, key=lambda name: np.mean([*logs[name].values()]))
        pairs = {case: (log, logs[best].get(case, np.inf)) for case, log in logs[ours].items()}
        both = [
            (family, problem, a - b) for (family, problem, _), (a, b) in pairs.items() if max(a, b) < np.inf
        ]
        n_infeasible = sum(log == np.inf for log in logs[ours].values())
        named = f" {best}" if len(others) > 1 else ""
        note = f", {n_infeasible} infeasible" if n_infeasible else ""
        return f"{nested_interval(both) if both else '-'}{named}{note}"

    return cell


def _logs(rows: Rows) -> dict[tuple[str, Any, int], float]:
    """Returns the logarithm of the step by family, problem and seed."""
    return {
        (row["family"], tuple(row[key] for key in PROBLEM), row["seed"]): float(np.log(row["step_s"]))
        for row in rows
    }
