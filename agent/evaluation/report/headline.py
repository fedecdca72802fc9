"""The headline of the report: which placer is best, and by how much, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from agent.evaluation.cells import milliseconds
from agent.evaluation.report.markup import name_of, text
from agent.evaluation.report.ratios import (
    Run,
    Where,
    by_run,
    compared,
    log_time,
    ratio_to_single,
)
from agent.evaluation.results import DATA_PARALLEL, Trial
from agent.evaluation.summary import geometric_mean
from agent.intervals import Interval

LEAST = 0.0005
"""Differences below this share are none."""


def headline(trials: Sequence[Trial]) -> str:
    """Says in words how the best placer compares with the others, as HTML."""
    runs = by_run(trials)
    ranked = _ranked(runs)
    if not ranked:
        return '<p class="headline">No placement is feasible so far.</p>'
    best = ranked[0]
    own = runs[best]
    solved = [trial for where in own.values() for trial in where if trial.feasible]
    step_s = geometric_mean(trial.step_time_s for trial in solved)
    n_graphs = len({trial.graph for trial in solved})
    over = f", a geometric mean over {n_graphs} graphs" if n_graphs > 1 else f" on {text(solved[0].graph)}"
    parts = [f"<b>{text(name_of(*best))}</b> finds the fastest steps: {milliseconds(step_s)} ms{over}."]
    parts += _against_others(runs, best, ranked[1:], solved)
    return f'<p class="headline">{" ".join(parts)}</p>'


def _ranked(runs: Mapping[Run, Mapping[Where, Sequence[Trial]]]) -> list[Run]:
    """Placers by the number of graphs that they solved, then by step time on those that all of these did."""
    solved = {
        run: {where: log for where, each in by_where.items() if (log := log_time(each)) is not None}
        for run, by_where in runs.items()
        if run[0] != DATA_PARALLEL
    }
    most = max(map(len, solved.values()), default=0)
    full = {run: logs for run, logs in solved.items() if len(logs) == most and most}
    shared = set.intersection(*map(set, full.values())) if full else set()

    def mean(run: Run) -> float:
        logs = full[run]
        common = [logs[where] for where in shared] or list(logs.values())
        return math.fsum(common) / len(common)

    return sorted(full, key=lambda run: (mean(run), run))


def _against_others(
    runs: Mapping[Run, Mapping[Where, Sequence[Trial]]],
    best: Run,
    others: Sequence[Run],
    solved: Sequence[Trial],
) -> list[str]:
    own = runs[best]
    differences = []
    if others and (next_best := compared(own, runs[others[0]])):
        differences.append(_difference(next_best, f"{text(name_of(*others[0]))}, the next best"))
    if single := ratio_to_single(solved):
        differences.append(_difference(single, "the fastest single device"))
    parallel = runs.get((DATA_PARALLEL, ""))
    if parallel and (against := compared(own, parallel)):
        differences.append(_difference(against, "data parallelism on the same devices"))
    parts = [f"That is {'; '.join(differences)}."] if differences else []
    bound = geometric_mean(
        trial.step_time_s / trial.lower_bound_s for trial in solved if trial.lower_bound_s > 0
    )
    if bound:
        parts.append(f"The lower bound, which no placement can beat, is {1 - 1 / bound:.1%} below it.")
    return parts


def _difference(ratio: Interval, other: str) -> str:
    """Says how a step time compares with another's, with the interval of the ratio."""
    interval = f"95 % interval of the ratio: {ratio.low:.3f} to {ratio.high:.3f}"
    if abs(ratio.mean - 1) < LEAST:
        return f"the same as {other}"
    share, word = abs(ratio.mean - 1), "less" if ratio.mean < 1 else "more"
    shown = ", so no difference is shown" if ratio.low <= 1.0 <= ratio.high else ""
    return f"{share:.1%} {word} than {other} ({interval}{shown})"
