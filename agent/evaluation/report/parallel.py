"""Data parallelism for the advice of a report, also where it was not asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from agent.evaluation.results import DATA_PARALLEL, Trial
from agent.evaluation.spec import EvaluationSpec
from envs.cluster.cluster import Cluster
from envs.problem import Problem
from envs.simulator.data_parallel import DataParallelStep, simulate_data_parallel
from graphs.op_graph import OpGraph


def with_data_parallel(trials: Sequence[Trial], spec: EvaluationSpec | None) -> list[Trial]:
    """Returns the trials, and of data parallelism one per graph and cluster if the evaluation has none.

    Args:
        spec: of the evaluation; None adds nothing.
    """
    if spec is None or DATA_PARALLEL in spec.placers or spec.pipeline is not None:
        return list(trials)
    graphs = {graph.name: graph for graph in spec.graphs}
    clusters = {cluster.name: cluster for cluster in spec.clusters}
    wheres = {(trial.graph, trial.cluster): trial for trial in trials}
    steps = {where: _step(graphs[where[0]], clusters[where[1]]) for where in wheres}
    return [*trials, *(_trial(like, steps[where]) for where, like in wheres.items())]


@lru_cache(maxsize=1024)
def _step(graph: OpGraph, cluster: Cluster) -> DataParallelStep:
    """Simulates a step once, however often a report is refreshed."""
    return simulate_data_parallel(Problem(graph, cluster))


def _trial(like: Trial, step: DataParallelStep) -> Trial:
    return replace(
        like,
        placer=DATA_PARALLEL,
        order="",
        seed=0,
        step_time_s=step.seconds_per_batch,
        feasible=step.fits,
        improvements=(),
    )
