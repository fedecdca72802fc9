"""The headline of the report: what to use, and by how much it is better, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from agent.evaluation.answers import Answers
from agent.evaluation.comparison.ratios import (
    Interval,
    Run,
    Where,
    by_run,
    compared,
    geometric_mean,
    log_time,
    ratio_to_bound,
)
from agent.evaluation.comparison.summary import milliseconds
from agent.evaluation.report.tables import render
from agent.evaluation.results import Trial, name_of
from agent.placers.base import PLACERS
from agent.placing.handover.explain import advice_text, as_graph, what_to_use
from agent.placing.request import DATA_PARALLEL

LEAST = 0.0005
"""Differences below this share are none."""
ByRun = Mapping[Run, Mapping[Where, Sequence[Trial]]]
"""Trials by placer and order, then by graph and cluster."""


def headline(trials: Sequence[Trial], answers: Answers | None = None) -> Markup:
    """Says in words what to use and how the best placer compares with the others, as HTML."""
    use, _, gain = advice_of(trials, answers).partition(":")
    runs = by_run(_with_data_parallel(trials, answers))
    ranked = _ranked(runs)
    others = _against_others(runs, ranked, parallel_is_used="data parallelism" in use) if ranked else ()
    return render("headline.html", use=use[:1].upper() + use[1:], gain=gain, sentences=list(others))


def advice_of(trials: Sequence[Trial], answers: Answers | None = None) -> str:
    """Says what to use: one device, the best placement or data parallelism; and what that gives.

    Args:
        answers: placements of the trials; None leaves out data parallelism that is not among the trials.
    """
    runs = by_run(_with_data_parallel(trials, answers))
    ranked, uncalibrated = _ranked(runs), answers.spec.uncalibrated if answers else {}
    solved = _solved(runs[ranked[0]]) if ranked else list(trials)
    if not solved:
        return "no placement is feasible so far"
    step_s = geometric_mean(trial.step_time_s for trial in solved) if ranked else None
    fits = all(trial.single_fits for trial in solved)
    single_s = geometric_mean(trial.single_s for trial in solved) if fits else None
    parallel = runs.get((DATA_PARALLEL, ""), {})
    logs = [log_time(parallel.get((trial.graph, trial.cluster), ())) for trial in solved]
    batch_s = None if None in logs else math.exp(math.fsum(filter(None, logs)) / len(logs))
    use = what_to_use({"one device": single_s, "placement": step_s, "data parallel": batch_s}) or "memory"
    pipeline = answers.spec.pipeline if answers else None
    kind = pipeline.noun if pipeline else "placement"
    n_graphs = len({trial.graph for trial in solved})
    over = f", a geometric mean over {n_graphs} graphs" if n_graphs > 1 else f" on {solved[0].graph}"
    notes = {uncalibrated[trial.cluster] for trial in solved if trial.cluster in uncalibrated}
    over += "".join(f", {note}" for note in sorted(notes))
    best = f"the {kind} of {name_of(*ranked[0])} ({milliseconds(step_s)} ms{over})" if ranked else ""
    placement = best or f"the best {kind}", step_s
    text = as_graph(answers.host_line(trials) if answers else "")
    text += advice_text(use, placement, ("one device", single_s), batch_s or 0.0)
    text += " for all of them" * (n_graphs > 1 and text.endswith("has the memory"))
    changes = answers.data_parallel_changes(trials) if answers and use == "data parallel" else ""
    return f"{text}; {changes}" if changes else text


def _with_data_parallel(trials: Sequence[Trial], answers: Answers | None) -> list[Trial]:
    """Returns the trials, and of data parallelism one per graph and cluster if the evaluation has none."""
    if answers is None or DATA_PARALLEL in answers.spec.placers:
        return list(trials)
    added = []
    for where, like in {(trial.graph, trial.cluster): trial for trial in trials}.items():
        step = answers.data_parallel(where)
        same = replace(like, placer=DATA_PARALLEL, order="", seed=0, improvements=())
        added.append(replace(same, step_time_s=step.seconds_per_batch, feasible=step.fits))
    return [*trials, *added]


def learned_line(trials: Sequence[Trial]) -> str:
    """Compares the best learned placer, and the best hybrid, with the best that learned nothing."""
    runs = by_run(trials)
    return _learned_line(runs, _ranked(runs))


def _learned_line(runs: ByRun, ranked: Sequence[Run]) -> str:
    learned = {name: placer.is_hybrid for name, placer in PLACERS.items() if placer.is_learned}
    other = next((run for run in ranked if run[0] not in learned), None)
    sentences = []
    for is_hybrid, kind in ((False, "learned placer"), (True, "hybrid of a policy and search")):
        best_learned = next((r for r in ranked if learned.get(r[0]) == is_hybrid), None)
        if best_learned and other and (ratio := compared(runs[best_learned], runs[other])):
            best_other = f"{name_of(*other)}, the best placer that learned nothing"
            difference = _difference(ratio, best_other, _solved(runs[best_learned]))
            sentences.append(f"{name_of(*best_learned)}, the best {kind}, {difference}.")
    return " ".join(sentences)


def _ranked(runs: ByRun) -> list[Run]:
    """Placers that solved most graphs, by step time on those that all of these did; ties as in the trials."""
    solved = {
        run: {where: log for where, trials in by_where.items() if (log := log_time(trials)) is not None}
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

    return sorted(full, key=lambda run: round(mean(run), 9))


def _against_others(runs: ByRun, ranked: Sequence[Run], *, parallel_is_used: bool) -> Iterator[str]:
    """Compares the best placement with the next best, data parallelism and the lower bound, in sentences."""
    winner, best = runs[ranked[0]], name_of(*ranked[0])
    solved = _solved(winner)
    said, differences = _learned_line(runs, ranked), []
    if not said and ranked[1:] and (next_best := compared(winner, runs[ranked[1]])):
        differences.append(_difference(next_best, f"{name_of(*ranked[1])}, the next best", solved))
    parallel = runs.get((DATA_PARALLEL, ""))
    if parallel and not parallel_is_used and (against := compared(winner, parallel)):
        differences.append(_difference(against, "data parallelism per batch", solved))
    if differences:
        yield f"That placement {'; it '.join(differences)}."
    if said:
        yield said
    if bound := geometric_mean(map(ratio_to_bound, solved)):
        level, less = f"is faster than {best}'s", f"takes less than {1 / bound:.3f} of the time of {best}"
        yield f"By the lower bound, no placement {level if bound < 1 + LEAST else less}."


def _solved(by_where: Mapping[Where, Sequence[Trial]]) -> list[Trial]:
    return [trial for trials in by_where.values() for trial in trials if trial.feasible]


def _difference(ratio: Interval, other: str, solved: Sequence[Trial]) -> str:
    """Says how a step time compares with another's; of several graphs with the interval of the ratio."""
    if abs(ratio.mean - 1) < LEAST:
        return f"takes as long as {other}"
    shown = ""
    if len({(trial.graph, trial.cluster) for trial in solved}) > 1:
        none = ", so no difference is shown" if ratio.low <= 1.0 <= ratio.high else ""
        shown = f" (95 % interval: {ratio.low:.3f} to {ratio.high:.3f}{none})"
    return f"takes {ratio.mean:.3f} of the time of {other}{shown}"
