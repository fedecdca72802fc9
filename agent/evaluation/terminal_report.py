"""An evaluation on the terminal: a table per family and cluster."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.evaluation.comparison.summary import (
    DATA_PARALLEL_NOTE,
    SIMULATED,
    SINGLE_NOTE,
    Line,
    by_case,
    figures,
    title,
)
from agent.evaluation.results import failed_line, name_of
from agent.placing.request import DATA_PARALLEL

HEADINGS = (
    *("placer", "graphs", "ms", "/single", "±", "/best", "/bound", "/refine"),
    *("feasible", "evals", "cpu_s", "s"),
)
EXPENDABLE = ("graphs", "evals", "cpu_s", "/bound", "±", "/best", "feasible", "/refine", "s")
"""Columns that a narrow terminal leaves out, the first one first."""
PROSE = 80
"""Characters of a line of words where the output is no terminal."""
LEGEND = {
    "ms": "milliseconds a step; like ratios, geometric means over graphs and seeds of feasible placements; "
    "* where others lack memory",
    "/single": f"over that of a single device: {SINGLE_NOTE}",
    "±": "standard deviation of /single over seeds",
    "/best": "over the best placement found here",
    "/bound": "over the lower bound",
    "/refine": "over what refine had found in the same processor time, - where it did not run so long",
    "evals": "simulated placements a trial",
    "cpu_s": "processor seconds a trial",
    "s": "seconds that a trial took",
}
"""Explanations of the columns that are shown."""
TOGETHER = ("ms",), ("/single", "±"), ("/best", "/bound", "/refine"), ("evals", "cpu_s", "s")
"""Columns that one line explains."""


def print_lines(lines: Sequence[str]) -> None:
    """Print lines, wrapped at the width of the terminal, or at 80 characters."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PROSE
    print("\n".join(part for line in lines for part in _wrapped(line, width)))


def print_tables(
    lines: Sequence[Line], n_failed: int = 0, uncalibrated: Mapping[str, str] | None = None
) -> None:
    """Print the summary, as wide as the terminal, or in full where the output is no terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(table_lines(lines, width, n_failed, uncalibrated)))


def table_lines(
    lines: Sequence[Line], width: int | None, n_failed: int = 0, uncalibrated: Mapping[str, str] | None = None
) -> list[str]:
    """The summary as text: a table per family and cluster, the shortest step first, and a legend.

    Args:
        width: characters a line may have; None = 80, of tables any number. Names and numbers are never cut.
        uncalibrated: notes of clusters that are not calibrated, or only in part.
    """
    text: list[str] = []
    prose = width or PROSE
    left_out: dict[str, None] = {}
    shown = set[str]()
    for case, part in by_case(lines):
        table = text_table(
            HEADINGS,
            [(name_of(line.placer, line.order), str(line.graphs), *figures(line)) for line in part],
            width=width,
            expendable=EXPENDABLE,
        )
        text += [*_wrapped(title(case, uncalibrated), prose), *table.lines, ""]
        left_out |= dict.fromkeys(table.left_out)
        shown.update(table.shown)
    explained = ([f"{name}: {LEGEND[name]}" for name in names if name in shown] for names in TOGETHER)
    legend = [SIMULATED, *("; ".join(parts) for parts in explained if parts)]
    legend += [DATA_PARALLEL_NOTE] if any(line.placer == DATA_PARALLEL for line in lines) else []
    if left_out:
        legend.append(f"Left out, as the terminal is narrow: {', '.join(left_out)}; see summary.csv.")
    legend += [failed_line(n_failed)] if n_failed else []
    return text + [part for line in legend for part in _wrapped(line, prose)]


def _wrapped(text: str, width: int) -> list[str]:
    wrap = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False).wrap
    return [part for line in text.splitlines() for part in wrap(line)]


GAP = "  "
INDENT = "  "
NOTHING = "-"
"""Stands where there is no number."""


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Attributes:
        lines: the head, a rule and the rows.
        shown: headings of the columns.
        left_out: headings of the columns that did not fit.
    """

    lines: tuple[str, ...]
    shown: tuple[str, ...]
    left_out: tuple[str, ...]


def text_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    expendable: Sequence[str] = (),
) -> TextTable:
    """Align a table: names on the left, numbers on the right of their columns.

    An expendable column without a number is not shown. A table that is too wide loses columns. If it is still
    too wide without all that are expendable, each name gets a line of its own above its numbers.

    Args:
        headings: of the columns; the first column holds names.
        rows: a cell per heading.
        width: characters a line may have; None = any number.
        expendable: headings of the columns that may be left out, the first one first.
    """
    empty = [name for name in expendable if all(row[headings.index(name)] == NOTHING for row in rows)]
    shown = [name for name in headings if name not in empty]
    left_out: list[str] = []
    waiting = [name for name in expendable if name not in empty]
    while width is not None and waiting and _width(headings, rows, shown) > width:
        left_out.append(waiting.pop(0))
        shown.remove(left_out[-1])
    cells = [[row[headings.index(name)] for name in shown] for row in rows]
    fits = width is None or _width(headings, rows, shown) <= width
    lines = (_side_by_side if fits else _stacked)([shown, *cells])
    return TextTable(tuple(lines), tuple(shown), tuple(left_out))


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str]) -> int:
    columns = [headings.index(name) for name in names]
    return sum(max(len(row[column]) for row in (headings, *rows)) for column in columns) + len(GAP) * (
        len(names) - 1
    )


def _side_by_side(rows: Sequence[Sequence[str]]) -> list[str]:
    first = max(len(row[0]) for row in rows)
    numbers = _numbers(rows)
    lines = [f"{row[0]:{first}}{GAP}{line}" for row, line in zip(rows, numbers, strict=True)]
    return _with_rule(lines, 1)


def _stacked(rows: Sequence[Sequence[str]]) -> list[str]:
    numbers = _numbers(rows)
    lines = [text for row, line in zip(rows, numbers, strict=True) for text in (row[0], f"{INDENT}{line}")]
    return _with_rule(lines, 2)


def _numbers(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*(row[1:] for row in rows), strict=True)]
    return [GAP.join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True)) for row in rows]


def _with_rule(lines: Sequence[str], n_head: int) -> list[str]:
    stripped = [line.rstrip() for line in lines]
    return [*stripped[:n_head], "-" * max(map(len, stripped[n_head:])), *stripped[n_head:]]
