"""`report.html`: one self-contained file with tables, charts and caveats; it needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from agent.evaluation.comparison.summary import DATA_PARALLEL_NOTE, SIMULATED, SINGLE_NOTE, summarise
from agent.evaluation.failures import failed_line
from agent.evaluation.report.chosen import pairs
from agent.evaluation.report.curves import curve_charts
from agent.evaluation.report.details import detail_section
from agent.evaluation.report.figures import LIGHT
from agent.evaluation.report.headline import headline
from agent.evaluation.report.rendering import render
from agent.evaluation.report.tables import graph_table, main_tables, order_maps
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec
from agent.placing.request import DATA_PARALLEL
from envs.cluster.cluster import Cluster
from graphs.op_graph import OpGraph
from graphs.system.json_files import write_bytes_atomic


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
        n_trials: number of trials in all; None = these.
    """
    n_ended, uncalibrated = len(trials) + n_failed, spec.uncalibrated if spec else ()
    page = render(
        "report.html",
        headline=headline(with_data_parallel(trials, spec), uncalibrated),
        command=command,
        n_ended=n_ended,
        n_trials=n_ended if n_trials is None else n_trials,
        failed=failed_line(n_failed) if n_failed else "",
        placers=main_tables(trials, summarise(trials), uncalibrated),
        orders=order_maps(trials),
        curves=curve_charts(trials),
        details=detail_section(spec, path.parent, pairs(trials)) if spec else "",
        graphs=graph_table(trials),
        notes={"simulated": SIMULATED, "single": SINGLE_NOTE, "data_parallel": DATA_PARALLEL_NOTE},
        light=LIGHT,
    )
    write_bytes_atomic(path, page.encode())


def with_data_parallel(trials: Sequence[Trial], spec: EvaluationSpec | None) -> list[Trial]:
    """Returns the trials, and of data parallelism one per graph and cluster if the evaluation has none.

    Args:
        spec: of the evaluation; None adds nothing.
    """
    if spec is None or DATA_PARALLEL in spec.placers:
        return list(trials)
    graphs = {graph.name: graph for graph in spec.graphs}
    clusters = {cluster.name: cluster for cluster in spec.clusters}
    wheres = {(trial.graph, trial.cluster): trial for trial in trials}
    added = []
    for (graph, cluster), like in wheres.items():
        step_s, fits = _seconds_per_batch(spec, graphs[graph], clusters[cluster])
        same = replace(like, placer=DATA_PARALLEL, order="", seed=0, improvements=())
        added.append(replace(same, step_time_s=step_s, feasible=fits))
    return [*trials, *added]


@lru_cache(maxsize=1024)
def _seconds_per_batch(spec: EvaluationSpec, graph: OpGraph, cluster: Cluster) -> tuple[float, bool]:
    """Simulates data parallelism once, however often a report is refreshed; says whether it fits."""
    step = spec.objective(graph, cluster).data_parallel()
    return step.seconds_per_batch, step.fits
