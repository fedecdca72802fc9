"""`report.html`: one self-contained file with tables, charts and caveats; it needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent.evaluation.comparison.summary import DATA_PARALLEL_NOTE, SIMULATED, SINGLE_NOTE, summarise
from agent.evaluation.failures import failed_line
from agent.evaluation.report.chosen import is_learned, losses, pairs
from agent.evaluation.report.curves import SIZE_IN, curve_figure, lines_of
from agent.evaluation.report.details import detail_section
from agent.evaluation.report.figures import as_svg
from agent.evaluation.report.headline import headline
from agent.evaluation.report.markup import chart, text
from agent.evaluation.report.parallel import with_data_parallel
from agent.evaluation.report.style import SCRIPT, STYLE
from agent.evaluation.report.tables import graph_table, loss_table, main_tables, order_maps
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec
from graphs.system.json_files import write_bytes_atomic

VIEWPORT = '<meta name="viewport" content="width=device-width, initial-scale=1">'
CAVEATS = (
    f"{SIMULATED} Compare placers by them, and do not read them as a promise.",
    "Step times and ratios are geometric means over graphs and seeds, of feasible placements; "
    "“feasible” is their share. Lower is better.",
    f"“To single” is relative to {SINGLE_NOTE}. Its 95 % interval "
    "is by bootstrap: families are drawn, graphs of each, and seeds of each graph. With one graph, it says "
    "how seeds differ, and nothing of other graphs.",
    "A bar is as long as “to single”; its red line is the lower bound, the dashed line a single device.",
    "“To best” is relative to the best placement that any placer of this run found for the same graph.",
    "“To bound” is relative to a lower bound; none is below 1.",
    "“To refine” is relative to what refine, a search that learned nothing, had found in the "
    "same processor time; - for the heuristics that refine begins with, and where it was not run or ended "
    "earlier (--seconds gives all searches the same time).",
    DATA_PARALLEL_NOTE,
    "± is the sample standard deviation over seeds.",
    "An evaluation is one simulated complete placement. An episode of a policy is one evaluation, although "
    "it looks ahead with partial simulations: compare in equal time.",
)


def write_report(
    path: Path,
    trials: Sequence[Trial],
    command: str,
    *,
    spec: EvaluationSpec | None = None,
    n_failed: int = 0,
    n_trials: int | None = None,
) -> None:
    """Writes the report atomically.

    Args:
        path: of the report; placements are in the same folder.
        trials: in the order of the evaluation; all, or those that are made so far.
        command: what made them, as typed.
        spec: of the evaluation; None leaves out single graphs, and what data parallelism would do unless it
            is among the trials.
        n_failed: number of trials that failed.
        n_trials: number of trials in all; None = these.
    """
    content = _content(path.parent, trials, spec)
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{VIEWPORT}'
        f"<title>Placewalk evaluation</title><style>{STYLE}</style></head><body><h1>Placewalk evaluation</h1>"
        f"{headline(with_data_parallel(trials, spec))}<p><code>{text(command)}</code></p>"
        f"{_progress(len(trials), n_failed, n_trials)}{content}"
        f"<h2>How to read this</h2><ul>{''.join(f'<li>{caveat}</li>' for caveat in CAVEATS)}</ul>"
        f"<script>{SCRIPT}</script></body></html>\n"
    )
    write_bytes_atomic(path, page.encode())


def _progress(n_made: int, n_failed: int, n_trials: int | None) -> str:
    failed = f"<p>{failed_line(n_failed)}</p>" if n_failed else ""
    if n_trials is None or n_made + n_failed >= n_trials:
        return failed
    return f'<p class="progress">{n_made + n_failed:,} of {n_trials:,} trials so far.</p>{failed}'


def _content(folder: Path, trials: Sequence[Trial], spec: EvaluationSpec | None) -> str:
    sections = [("Placers", main_tables(trials, summarise(trials)))]
    if orders := order_maps(trials):
        note = "Step time over one device's. The stronger the colour, the slower next to the best order."
        sections.append(("Orders by family", f'<p class="note">{note}</p>{orders}'))
    sections.append(("Quality against effort", _curves(trials)))
    if any(map(is_learned, trials)):
        sections.append(("Where learned placers lost", loss_table(losses(trials))))
    note = (
        "Step time of the best seed over the best placement found; the stronger the colour, the slower. "
        "Numbers link to placement files beside this page."
    )
    sections.append(("Graphs", f'<p class="note">{note}</p>{graph_table(trials)}'))
    parts = [f"<h2>{heading}</h2>{part}" for heading, part in sections if part]
    if spec is not None:
        parts.insert(-1, detail_section(spec, folder, pairs(trials)))
    return "".join(parts)


def _curves(trials: Sequence[Trial]) -> str:
    """Two charts: against evaluations and against seconds; empty where nothing is feasible."""
    charts = []
    for of in ("evaluations", "seconds"):
        if lines := lines_of(trials, of):
            label = f"step time over one device against {of}"
            charts.append(chart(as_svg(curve_figure(lines, of), *SIZE_IN, label)))
    if not charts:
        return ""
    note = (
        "Best placement so far, a geometric mean over graphs and seeds, of the placers that are feasible on "
        "every graph that any is feasible on. A line begins where the last of its trials has a placement. A "
        "dot is a placer that stops at once."
    )
    return f'<p class="note">{note}</p><div class="pair curves">{"".join(charts)}</div>'
