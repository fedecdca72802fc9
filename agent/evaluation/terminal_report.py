"""An evaluation on the terminal: a table per family and cluster."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Collection, Sequence

from agent.evaluation.comparison.cells import by_case, figures, title
from agent.evaluation.comparison.summary import DATA_PARALLEL_NOTE, SIMULATED, SINGLE_NOTE, Line
from agent.evaluation.failures import failed_line
from agent.evaluation.results import name_of
from agent.evaluation.text_table import text_table
from agent.placing.request import DATA_PARALLEL

HEADINGS = (
    *("placer", "graphs", "ms", "/single", "±", "/best", "/bound", "/refine"),
    *("feasible", "evals", "cpu_s", "s"),
)
EXPENDABLE = ("graphs", "evals", "s", "/bound", "±", "/best", "cpu_s", "feasible", "/refine")
"""Columns that a narrow terminal leaves out, the first one first."""
LEGEND = {
    "ms": "milliseconds a step; like ratios, geometric means over graphs and seeds of feasible placements",
    "/single": f"over that of a single device: {SINGLE_NOTE}",
    "±": "standard deviation of /single over seeds",
    "/best": "over the best placement found here",
    "/bound": "over the lower bound",
    "/refine": "over what refine had found in the same processor time, - where it did not run so long",
    "feasible": "share of feasible placements",
    "evals": "simulated placements, mean per trial",
    "cpu_s": "processor seconds, mean per trial",
    "s": "seconds, mean per trial",
}
"""Explanations of the columns that are shown."""


def print_lines(lines: Sequence[str]) -> None:
    """Print lines, wrapped where the output is a terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(part for line in lines for part in _wrapped(line, width)))


def print_tables(lines: Sequence[Line], n_failed: int = 0, uncalibrated: Collection[str] = ()) -> None:
    """Print the summary, as wide as the terminal, or in full where the output is no terminal."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    print("\n".join(table_lines(lines, width, n_failed, uncalibrated)))


def table_lines(
    lines: Sequence[Line], width: int | None, n_failed: int = 0, uncalibrated: Collection[str] = ()
) -> list[str]:
    """The summary as text: a table per family and cluster, the shortest step first, and a legend.

    Args:
        width: characters a line may have; None = any number. Names and numbers are never cut.
        uncalibrated: names of clusters whose op times come from datasheets.
    """
    text: list[str] = []
    left_out: dict[str, None] = {}
    shown = set[str]()
    for case, part in by_case(lines):
        table = text_table(HEADINGS, [_cells(line) for line in part], width=width, expendable=EXPENDABLE)
        text += [*_wrapped(title(case, uncalibrated), width), *table.lines, ""]
        left_out |= dict.fromkeys(table.left_out)
        shown.update(table.shown)
    legend = [SIMULATED, *(f"{name}: {meaning}" for name, meaning in LEGEND.items() if name in shown)]
    legend += [DATA_PARALLEL_NOTE] if any(line.placer == DATA_PARALLEL for line in lines) else []
    text += [part for line in legend for part in _wrapped(line, width)]
    if left_out:
        text += _wrapped(
            f"Left out, as the terminal is narrow: {', '.join(left_out)}; see summary.csv.", width
        )
    if n_failed:
        text += _wrapped(failed_line(n_failed), width)
    return text


def _wrapped(text: str, width: int | None) -> list[str]:
    lines = text.splitlines()
    if width is None:
        return lines
    return [
        part
        for line in lines
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)
    ]


def _cells(line: Line) -> tuple[str, ...]:
    return (
        name_of(line.placer, line.order),
        str(line.graphs),
        *figures(line),
    )
