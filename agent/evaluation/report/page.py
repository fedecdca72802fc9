"""`report.html`: one self-contained file with tables, charts and caveats; it needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from agent.evaluation.answers import Answers
from agent.evaluation.comparison.summary import DATA_PARALLEL_NOTE, SIMULATED, SINGLE_NOTE, summarise
from agent.evaluation.report.details import detail_section, pairs
from agent.evaluation.report.figures import curve_charts
from agent.evaluation.report.headline import headline
from agent.evaluation.report.tables import graph_table, main_tables, order_maps, render
from agent.evaluation.results import Trial, failed_line
from envs.figures import OKABE_ITO
from graphs.dataset import git_commit, project_version
from graphs.system.json_files import write_bytes_atomic


def write_report(
    path: Path,
    trials: Sequence[Trial],
    command: str,
    *,
    answers: Answers | None = None,
    n_failed: int = 0,
    n_trials: int | None = None,
) -> None:
    """Writes the report atomically.

    Args:
        path: file of the report, in the folder of the placements.
        trials: in the order of the evaluation; all, or those that are made so far.
        command: what made them, as typed.
        answers: placements of the trials; None leaves out single graphs, and what data parallelism would do
            unless it is among the trials.
        n_trials: number of trials in all; None = these.
    """
    n_ended, uncalibrated = len(trials) + n_failed, answers.spec.uncalibrated if answers else {}
    page = render(
        "report.html",
        headline=headline(trials, answers),
        command=command,
        written=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        version=project_version(),
        commit=git_commit(),
        n_ended=n_ended,
        n_trials=n_ended if n_trials is None else n_trials,
        failed=failed_line(n_failed) if n_failed else "",
        placers=main_tables(trials, summarise(trials), uncalibrated),
        orders=order_maps(trials),
        untrained_orders=answers.spec.untrained_orders if answers else "",
        curves=curve_charts(trials),
        details=detail_section(answers, pairs(trials)) if answers else "",
        graphs=graph_table(trials),
        host=answers.host_line(trials) if answers else "",
        notes={"simulated": SIMULATED, "single": SINGLE_NOTE, "data_parallel": DATA_PARALLEL_NOTE},
        light=OKABE_ITO,
    )
    write_bytes_atomic(path, page.encode())
