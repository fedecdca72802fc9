"""An evaluation on the terminal: progress while it runs, a table per family and cluster after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn
from rich.table import Table

from agent.evaluation.html_report import by_case, number, title
from agent.evaluation.summary import Line

LEGEND = (
    "Geometric means of step time over the fastest single device's (± over seeds), over the best found here, "
    "and over the lower bound; evaluations and seconds per trial."
)
COLUMNS = ("graphs", "/single", "±", "/best", "/bound", "fits", "evals", "s")


@contextmanager
def progress_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error and what moves it: a function of (trials made, trials in all)."""
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("trials", total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def print_tables(lines: Sequence[Line]) -> None:
    """Print the summary as ratios of step times, the shortest step first."""
    console = Console()
    for case, part in by_case(lines):
        table = Table(title=escape(title(case)), box=SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        table.add_column("placer", no_wrap=True)
        for column in COLUMNS:
            table.add_column(column, justify="right", no_wrap=True)
        for line in part:
            table.add_row(*map(escape, _cells(line)))
        console.print(table, "")
    console.print(LEGEND, highlight=False)


def _cells(line: Line) -> tuple[str, ...]:
    ratios = (line.ratio_to_single, line.seed_spread, line.ratio_to_best, line.ratio_to_bound)
    return (
        f"{line.placer} {line.order}".strip(),
        str(line.graphs),
        *map(number, ratios),
        f"{line.feasible_share:.0%}",
        f"{line.evaluations:,.0f}",
        f"{line.wall_s:.2g}",
    )
