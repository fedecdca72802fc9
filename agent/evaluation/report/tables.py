"""Tables of the report: placers by family, graphs by placer, orders by family."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from agent.evaluation.answers import placement_path
from agent.evaluation.comparison.ratios import (
    Interval,
    Run,
    Where,
    geometric_mean,
    ratio_to_bound,
    ratio_to_single,
)
from agent.evaluation.comparison.summary import Case, Line, by_case, figures, milliseconds, number, title
from agent.evaluation.results import Trial, best_times, name_of, ratio_to_best
from graphs.system.errors import printable

if TYPE_CHECKING:
    from jinja2 import Environment


class Cell(NamedTuple):
    """A cell of a heat map: darker the more its ratio exceeds 1, and linked where `href` is not empty."""

    content: str
    ratio: float | None = None
    href: str = ""


Rows = Sequence[Sequence[str | Cell]]


@dataclass(frozen=True)
class Table:
    """A table; without headings, its note alone.

    Attributes:
        kind: CSS classes; `tall` tables scroll within a limited height.
    """

    headings: Sequence[str] = ()
    rows: Rows = ()
    title: str = ""
    note: str = ""
    kind: str = "sortable"


def render(template: str, **data: object) -> Markup:
    """Renders a template; text is escaped, and what cannot be printed is shown as an escape sequence."""
    return Markup(_environment().get_template(template).render(data))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


MOST_ROWS = 25
"""Rows that a table shows without scrolling."""
HEADINGS = (
    *("placer", "to single", "", "ms", "graphs", "95 % interval", "±"),
    *("to best", "to bound", "to refine", "feasible", "evals", "CPU s", "s"),
)


def main_tables(
    trials: Sequence[Trial], lines: Sequence[Line], uncalibrated: Mapping[str, str] | None = None
) -> Markup:
    """A sortable table of placers per family and cluster, the shortest step first."""
    groups: dict[Case, dict[Run, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        case = trial.family, trial.cluster, trial.seen, trial.granularity
        groups[case][trial.placer, trial.order].append(trial)
    tables = []
    for case, part in by_case(lines):
        over_single = [trial for trials in groups[case].values() for trial in trials if trial.single_s]
        bound = geometric_mean(trial.lower_bound_s / trial.single_s for trial in over_single)
        widest = max([1.0, *(line.ratio_to_single or 0.0 for line in part)])
        cells = [
            _cells(line, ratio_to_single(groups[case][line.placer, line.order]), bound or 0.0, widest)
            for line in part
        ]
        shown = [column for column in range(len(HEADINGS)) if any(row[column] != "-" for row in cells)]
        headings = [HEADINGS[column] for column in shown]
        rows = [[row[column] for column in shown] for row in cells]
        tables.append(Table(headings, rows, title(case, uncalibrated)))
    return render("tables.html", tables=tables)


def _cells(line: Line, interval: Interval | None, bound: float, widest: float) -> tuple[str, ...]:
    """Formats the cells of a row; the interval is left out for one graph, of which it says nothing."""
    step_time, to_single, *others = figures(line)
    span = f"{interval.low:.3f} to {interval.high:.3f}" if interval and line.graphs > 1 else "-"
    ratio = line.ratio_to_single
    bar = render("bar.svg", label=number(ratio), ratio=ratio or 0.0, bound=bound, widest=widest)
    return (name_of(line.placer, line.order), to_single, bar, step_time, str(line.graphs), span, *others)


def graph_table(trials: Sequence[Trial]) -> Markup:
    """A heat map of graphs and placers: ratios to the best placement, each a link to the placement."""
    best = best_times(trials)
    runs = list(dict.fromkeys((trial.placer, trial.order) for trial in trials))
    by_where: dict[Where, dict[Run, Trial]] = {}
    for trial in trials:
        of_runs = by_where.setdefault((trial.graph, trial.cluster), {})
        run = trial.placer, trial.order
        of_runs[run] = min(of_runs.get(run, trial), trial, key=lambda one: (one.rank, one.seed))
    headings = ["graph", "cluster", "best", "ms", "to bound", *(name_of(*run) for run in runs)]
    rows: Rows = [
        [*where, *_winner(found.values()), *(_graph_cell(found.get(run), best) for run in runs)]
        for where, found in by_where.items()
    ]
    tall = " tall" if len(rows) > MOST_ROWS else ""
    return render("tables.html", tables=[Table(headings, rows, kind=f"sortable{tall}")])


def _winner(trials: Iterable[Trial]) -> tuple[str, str, str]:
    """The best placement of a graph: its placer, its step time and the ratio to the lower bound."""
    winner = min((trial for trial in trials if trial.is_placement), key=lambda one: one.rank, default=None)
    if winner is None or not winner.feasible:
        return "out of memory", "-", "-"
    name = name_of(winner.placer, winner.order)
    return name, milliseconds(winner.step_time_s), number(ratio_to_bound(winner))


def _graph_cell(trial: Trial | None, best: Mapping[Where, float]) -> Cell:
    if trial is None:
        return Cell("")
    ratio = ratio_to_best(trial, best)
    href = placement_path(Path(), trial).as_posix() if trial.is_placement else ""
    return Cell(number(ratio) if trial.feasible else "memory", ratio, href)


def order_maps(trials: Sequence[Trial]) -> Markup:
    """Heat maps of orders and families, one per placer that takes an order; empty for a single order."""
    groups: dict[str, dict[tuple[str, str], list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        if trial.order:
            groups[trial.placer][trial.order, trial.family].append(trial.ratio_to_single)
    maps = [_order_map(placer, ratios) for placer, ratios in groups.items()]
    return render("tables.html", tables=[table for table in maps if len(table.rows) > 1])


def _order_map(placer: str, ratios: Mapping[tuple[str, str], Iterable[float | None]]) -> Table:
    means = {key: geometric_mean(values) for key, values in ratios.items()}
    orders, families = ([*dict.fromkeys(names)] for names in zip(*means, strict=True))
    least: dict[str, float] = {}
    for (_, family), mean in means.items():
        least[family] = min(mean or math.inf, least.get(family, math.inf))

    def cell(order: str, family: str) -> Cell:
        mean = means.get((order, family))
        return Cell(number(mean), mean / least[family] if mean else None)

    rows: Rows = [[order, *(cell(order, family) for family in families)] for order in orders]
    return Table(["order", *(family or "no family" for family in families)], rows, placer)
