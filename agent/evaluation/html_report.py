"""The report of an evaluation: one self-contained HTML file with its tables, bars and caveats."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from agent.evaluation.cells import Case, by_case, figures, milliseconds, number, title
from agent.evaluation.failures import failed_line
from agent.evaluation.results import Trial, best_times
from agent.evaluation.summary import DATA_PARALLEL_NOTE, SIMULATED, Line, geometric_mean
from graphs.errors import printable
from graphs.io.json_files import write_bytes_atomic

BAR_WIDTH, BAR_HEIGHT = 200, 14
VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 0 auto; padding: 1rem; color: #222 }
.wide { overflow-x: auto; margin: 1rem 0 }
table { border-collapse: collapse }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #ddd; white-space: nowrap }
tr > :nth-child(-n + 2), .graphs tr > :nth-child(-n + 4) { text-align: left }
code { background: #f3f3f3; padding: .1rem .3rem; overflow-wrap: anywhere }
svg { vertical-align: middle }
.bar { fill: #4477aa } .bound { stroke: #cc3311; stroke-width: 2 }
.one { stroke: #222; stroke-dasharray: 2 2 }
"""
CAVEATS = (
    f"{SIMULATED} Compare placers by them, and do not read them as a promise.",
    "Step times and ratios are geometric means over graphs and seeds, of feasible placements; "
    "“feasible” is their share. Lower is better.",
    "“To single” is relative to the fastest single device, its memory taken as unlimited.",
    "A bar is as long as “to single”; its red line is the lower bound, the dashed line a single device.",
    "“To best” is relative to the best placement that any placer of this run found for the same graph.",
    "“To bound” is relative to a lower bound that ignores transfers and memory; none is below 1.",
    DATA_PARALLEL_NOTE,
    "± is the sample standard deviation over seeds.",
    "An evaluation is one simulated complete placement. An episode of a policy is one evaluation, although "
    "it looks ahead with partial simulations: compare wall time as well.",
)
HEADINGS = (
    "placer",
    "order",
    "graphs",
    "ms",
    "to single",
    "",
    "±",
    "to best",
    "to bound",
    "feasible",
    "evaluations",
    "s",
)


def write_report(
    path: Path, trials: Sequence[Trial], lines: Sequence[Line], command: str, n_failed: int = 0
) -> None:
    """Write the report atomically.

    Args:
        trials: in the order of the evaluation.
        lines: their summary.
        command: what made them, as typed.
        n_failed: number of trials that failed.
    """
    failed = f"<p>{failed_line(n_failed)}</p>" if n_failed else ""
    sections = "".join(_section(case, part, trials) for case, part in by_case(lines))
    page = (
        f'<!doctype html><html lang="en"><meta charset="utf-8">{VIEWPORT}<title>Placewalk evaluation</title>'
        f"<style>{STYLE}</style><h1>Placewalk evaluation</h1><p><code>{escape(printable(command))}</code></p>"
        f"{failed}{sections}"
        f"<h2>How to read this</h2><ul>{''.join(f'<li>{caveat}</li>' for caveat in CAVEATS)}</ul>"
        f"<h2>Graphs</h2>{_graph_table(trials)}</html>\n"
    )
    write_bytes_atomic(path, page.encode())


def _section(case: Case, lines: Sequence[Line], trials: Sequence[Trial]) -> str:
    bound = geometric_mean(
        trial.lower_bound_s / trial.single_s
        for trial in trials
        if (trial.family, trial.cluster, trial.seen, trial.granularity) == case
    )
    widest = max([1.0, *(line.ratio_to_single or 0.0 for line in lines)])
    rows = [_row(line, bound or 0.0, widest) for line in lines]
    return f"<h2>{escape(title(case))}</h2>{_table(HEADINGS, rows)}"


def _table(headings: Sequence[str], rows: Sequence[str], kind: str = "cases") -> str:
    """A table that scrolls by itself where the window is narrower."""
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    return f'<div class="wide"><table class="{kind}"><tr>{head}</tr>{"".join(rows)}</table></div>'


def _row(line: Line, bound: float, widest: float) -> str:
    step_time, to_single, *others = figures(line)
    bar = _bar(line.ratio_to_single, bound, widest)
    cells = (escape(line.placer), escape(line.order), str(line.graphs), step_time, to_single, bar, *others)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _bar(ratio: float | None, bound: float, widest: float) -> str:
    """A bar up to the ratio, with a line at the lower bound and a dashed one at a single device."""
    length, bound_at, one_at = (BAR_WIDTH * value / widest for value in (ratio or 0.0, bound, 1.0))
    return (
        f'<svg width="{BAR_WIDTH + 2}" height="{BAR_HEIGHT}" role="img" aria-label="{number(ratio)}">'
        f'<rect class="bar" width="{length:.1f}" height="{BAR_HEIGHT}"/>'
        f'<line class="bound" x1="{bound_at:.1f}" x2="{bound_at:.1f}" y2="{BAR_HEIGHT}"/>'
        f'<line class="one" x1="{one_at:.1f}" x2="{one_at:.1f}" y2="{BAR_HEIGHT}"/></svg>'
    )


def _graph_table(trials: Sequence[Trial]) -> str:
    best = best_times(trials)
    winners: dict[tuple[str, str], Trial] = {}
    for trial in trials:
        if trial.feasible and trial.is_placement and trial.step_time_s == best[trial.graph, trial.cluster]:
            winners.setdefault((trial.graph, trial.cluster), trial)
    cases = dict.fromkeys((trial.graph, trial.cluster) for trial in trials)
    rows = [_graph_row(*case, winners.get(case)) for case in cases]
    names = ("graph", "cluster", "best placer", "order", "step time, ms", "to single", "to bound")
    return _table(names, rows, "graphs")


def _graph_row(graph: str, cluster: str, winner: Trial | None) -> str:
    found = ["out of memory", "", "", "", ""]
    if winner is not None:
        to_bound = winner.step_time_s / winner.lower_bound_s if winner.lower_bound_s else None
        found = [
            escape(winner.placer),
            escape(winner.order),
            milliseconds(winner.step_time_s),
            number(winner.ratio_to_single),
            number(to_bound),
        ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in (escape(graph), escape(cluster), *found))}</tr>"
