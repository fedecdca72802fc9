"""Tables of a page from its rows: one pivot, and the statistics of its cells."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.evaluation.comparison.intervals import nested_interval
from agent.evaluation.comparison.ratios import geometric_mean
from agent.lab.rows import Row, Rows, axis, grouped

Key = str | Callable[[Row], Any]
"""A column of the rows, or a function of a row."""
Statistic = Callable[[Rows], str]
"""Formats the rows of a cell."""
PROBLEM = ("graph", "cluster", "granularity")
"""Columns that name the problem of a trial."""


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
    return [(str(head), _of_head(cells, head)) for head in axis(_value(row, cells.key) for row in rows)]


def _of_head(across: Across, head: Any) -> Statistic:
    return lambda rows: across.cell([row for row in rows if _value(row, across.key) == head])


def only(statistic: Statistic, **values: Any) -> Statistic:
    """Makes a statistic of the rows that have values in columns."""
    return lambda rows: statistic([row for row in rows if all(row[key] == values[key] for key in values)])


def count(rows: Rows) -> str:
    """Counts rows."""
    return str(len(rows))


def value(column: str, form: str = "") -> Statistic:
    """Makes a statistic that formats the value of the only row; no row is an empty cell."""
    return lambda rows: format(rows[0][column], form) if rows else ""


def mean(column: str, over: str = "") -> Statistic:
    """Makes a statistic that formats the geometric mean of a column, or of its ratio to another one.

    What is not finite is left out, and nothing is an empty cell.
    """

    def cell(rows: Rows) -> str:
        ratios = (row[column] / row[over] if over else row[column] for row in rows)
        ratio = geometric_mean(ratio for ratio in ratios if math.isfinite(ratio))
        return "" if ratio is None else f"{ratio:.3f}"

    return cell


def quantile(share: float, column: str, over: str = "", form: str = ".3f") -> Statistic:
    """Makes a statistic that formats a quantile of a column, or of its ratio to another one."""
    return lambda rows: format(
        np.quantile([row[column] / (row[over] if over else 1) for row in rows], share), form
    )


def average(column: str, form: str = ".3f") -> Statistic:
    """Makes a statistic that formats the arithmetic mean of a column."""
    return lambda rows: format(np.mean([row[column] for row in rows]), form)


def errors(name: str, predicted: str, measured: str = "measured_s") -> list[tuple[str, Statistic]]:
    """Makes two cells: the median and the 90th percentile of |predicted / measured - 1|; NaN is a dash.

    Args:
        name: begin of the head of the median.
    """

    def cell(share: float) -> Statistic:
        def of(rows: Rows) -> str:
            error = np.quantile(np.abs([row[predicted] / row[measured] - 1 for row in rows]), share)
            return "-" if np.isnan(error) else f"{error:.1%}"

        return of

    return [(name, cell(0.5)), ("90th percentile", cell(0.9))]


def over(own: str, *others: str) -> Statistic:
    """Makes a statistic that formats the step of a placer over that of the best single one of others.

    The best has the least geometric mean; it is named if there are several. Steps are compared where both are
    feasible, with a 95 % interval over families, problems and seeds; how often the placer found no feasible
    placement is said. Rows are trials, as `TrialRow` has them.
    """

    def cell(rows: Rows) -> str:
        logs = {name: _logs(trials) for name, trials in grouped(rows, lambda row: row["placer"]).items()}
        present = [name for name in others if name in logs]
        if own not in logs or not present:
            return ""
        best = min(present, key=lambda name: np.mean([*logs[name].values()]))
        pairs = {case: (log, logs[best].get(case, np.inf)) for case, log in logs[own].items()}
        both = [
            (family, problem, a - b) for (family, problem, _), (a, b) in pairs.items() if max(a, b) < np.inf
        ]
        n_infeasible = sum(log == np.inf for log in logs[own].values())
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
