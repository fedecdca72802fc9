"""Tables of the report: placers by family, graphs by placer, and what learned placers lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agent.evaluation.comparison.cells import Case, by_case, figures, milliseconds, number, title
from agent.evaluation.comparison.intervals import Interval
from agent.evaluation.comparison.ratios import Run, geometric_mean, ratio_to_bound, ratio_to_single
from agent.evaluation.comparison.summary import Line
from agent.evaluation.report.chosen import LEAST_LOSS, Loss
from agent.evaluation.report.markup import heat_cell, name_of, placement_link, row, table, text
from agent.evaluation.results import Trial, best_times, ratio_to_best

BAR_WIDTH, BAR_HEIGHT = 110, 14
MOST_LOSSES = 25
"""Losses that are listed."""
HEADINGS = (
    *("placer", "to single", "", "ms", "graphs", "95 % interval", "±"),
    *("to best", "to bound", "to refine", "feasible", "evals", "CPU s", "s"),
)


def main_tables(trials: Sequence[Trial], lines: Sequence[Line]) -> str:
    """A sortable table of placers per family and cluster, the shortest step first."""
    groups: dict[tuple[Case, Run], list[Trial]] = {}
    for trial in trials:
        groups.setdefault((_case(trial), (trial.placer, trial.order)), []).append(trial)
    parts = []
    for case, part in by_case(lines):
        of_case = {run: each for (other, run), each in groups.items() if other == case}
        bound = geometric_mean(
            trial.lower_bound_s / trial.single_s
            for each in of_case.values()
            for trial in each
            if trial.single_s
        )
        widest = max([1.0, *(line.ratio_to_single or 0.0 for line in part)])
        cells = [
            _cells(line, ratio_to_single(of_case[line.placer, line.order]), bound or 0.0, widest)
            for line in part
        ]
        known = [at for at in range(len(HEADINGS)) if any(each[at] != "-" for each in cells)]
        headings = [HEADINGS[at] for at in known]
        rows = [row([each[at] for at in known]) for each in cells]
        parts.append(f"<h3>{text(title(case))}</h3>{table(headings, rows)}")
    return "".join(parts)


def _case(trial: Trial) -> Case:
    return trial.family, trial.cluster, trial.seen, trial.granularity


def _cells(line: Line, interval: Interval | None, bound: float, widest: float) -> tuple[str, ...]:
    """Formats the cells of a row; the interval is left out for one graph, of which it says nothing."""
    step_time, to_single, *others = figures(line)
    span = f"{interval.low:.3f} to {interval.high:.3f}" if interval and line.graphs > 1 else "-"
    bar = _bar(line.ratio_to_single, bound, widest)
    placer = text(name_of(line.placer, line.order))
    return (placer, to_single, bar, step_time, str(line.graphs), span, *others)


def _bar(ratio: float | None, bound: float, widest: float) -> str:
    """A bar up to the ratio, with a line at the lower bound and a dashed one at a single device."""
    length, bound_at, one_at = (BAR_WIDTH * value / widest for value in (ratio or 0.0, bound, 1.0))
    return (
        f'<svg width="{BAR_WIDTH + 2}" height="{BAR_HEIGHT}" role="img" aria-label="{number(ratio)}">'
        f'<rect class="bar" width="{length:.1f}" height="{BAR_HEIGHT}"/>'
        f'<line class="bound" x1="{bound_at:.1f}" x2="{bound_at:.1f}" y2="{BAR_HEIGHT}"/>'
        f'<line class="one" x1="{one_at:.1f}" x2="{one_at:.1f}" y2="{BAR_HEIGHT}"/></svg>'
    )


def graph_table(trials: Sequence[Trial]) -> str:
    """A heat map of graphs and placers: ratios to the best placement, each a link to the placement."""
    best = best_times(trials)
    runs = list(dict.fromkeys((trial.placer, trial.order) for trial in trials))
    by_where: dict[tuple[str, str], dict[Run, Trial]] = {}
    for trial in trials:
        of_runs = by_where.setdefault((trial.graph, trial.cluster), {})
        run = trial.placer, trial.order
        of_runs[run] = min(of_runs.get(run, trial), trial, key=lambda each: (each.rank, each.seed))
    headings = ["graph", "cluster", "best", "ms", "to bound", *(text(name_of(*run)) for run in runs)]
    rows = (_graph_row(where, found, runs, best) for where, found in by_where.items())
    return table(headings, rows, tall=len(by_where) > MOST_LOSSES)


def _graph_row(
    where: tuple[str, str],
    found: Mapping[Run, Trial],
    runs: Sequence[Run],
    best: Mapping[tuple[str, str], float],
) -> str:
    cells = [text(name) for name in where]
    placements = [trial for trial in found.values() if trial.is_placement]
    winner = min(placements, key=lambda trial: trial.rank, default=None)
    if winner is None or not winner.feasible:
        cells += ["out of memory", "-", "-"]
    else:
        name = text(name_of(winner.placer, winner.order))
        cells += [name, milliseconds(winner.step_time_s), number(ratio_to_bound(winner))]
    for run in runs:
        trial = found.get(run)
        if trial is None:
            cells.append(heat_cell(None, ""))
            continue
        ratio = ratio_to_best(trial, best)
        shown = number(ratio) if trial.feasible else "memory"
        cells.append(heat_cell(ratio, placement_link(trial, shown) if trial.is_placement else shown))
    return row(cells)


def loss_table(losses: Sequence[Loss]) -> str:
    """A table of the graphs on which learned placers lost, the greatest loss first."""
    if not losses:
        return f"<p>Nowhere: no best learned placer was slower by more than {LEAST_LOSS:.1%}.</p>"
    headings = ("graph", "cluster", "best learned", "faster", "slower by")
    rows = [
        row(
            (
                text(where[0]),
                text(where[1]),
                text(name_of(*learned)),
                text(name_of(*other)),
                f"{ratio - 1:.1%}",
            )
        )
        for where, learned, other, ratio in (
            (loss.where, loss.learned, loss.other, loss.ratio) for loss in losses[:MOST_LOSSES]
        )
    ]
    more = f" The {MOST_LOSSES} greatest are listed." if len(losses) > MOST_LOSSES else ""
    count = "1 graph" if len(losses) == 1 else f"{len(losses)} graphs"
    said = f"<p>On {count} (means over seeds) by more than {LEAST_LOSS:.1%}.{more}</p>"
    return f"{said}{table(headings, rows, 'sortable words')}"


def order_maps(trials: Sequence[Trial]) -> str:
    """Heat maps of orders and families, one per placer that takes an order; empty for a single order."""
    found: dict[str, dict[str, dict[str, list[Trial]]]] = {}
    for trial in trials:
        if trial.order:
            by_order = found.setdefault(trial.placer, {}).setdefault(trial.order, {})
            by_order.setdefault(trial.family, []).append(trial)
    return "".join(
        f"<h3>{text(placer)}</h3>{_order_map(by_order)}"
        for placer, by_order in found.items()
        if len(by_order) > 1
    )


def _order_map(by_order: Mapping[str, Mapping[str, Sequence[Trial]]]) -> str:
    families = list(dict.fromkeys(family for by_family in by_order.values() for family in by_family))
    means = {
        (order, family): geometric_mean(trial.ratio_to_single for trial in by_family.get(family, ()))
        for order, by_family in by_order.items()
        for family in families
    }
    least = {
        family: min((mean for (_, of), mean in means.items() if of == family and mean), default=None)
        for family in families
    }
    rows = []
    for order in by_order:
        cells = [text(order)]
        for family in families:
            mean, best = means[order, family], least[family]
            cells.append(heat_cell(mean / best if mean and best else None, number(mean)))
        rows.append(row(cells))
    return table(["order", *(text(family or "no family") for family in families)], rows)
