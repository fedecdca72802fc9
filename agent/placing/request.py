"""Requests: which placers, with which budget, as which pipeline, of a graph in which precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.placers.base import PLACERS, Budget, PlacerError
from agent.placers.pipeline.search import PIPELINE_PLACERS
from agent.policy.placers import LEARNED
from envs.cluster.cluster import Cluster
from envs.costs.op_seconds import stand_in_lines
from envs.pipeline.pipeline import AUTO, Pipeline, PipelineError
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from graphs.precision import with_precision
from graphs.system.errors import print_notice

DATA_PARALLEL = "data-parallel"
"""Name of data parallelism, which is compared but is no placement."""
BUDGET = 10_000
"""Evaluations of a trial where neither evaluations nor seconds are given."""


def placer_names() -> tuple[str, ...]:
    """Names of all placers: those that learned nothing, then those that need a policy."""
    return (*PLACERS, *LEARNED)


def row_names() -> tuple[str, ...]:
    """Names of all that an evaluation compares: the placers, and data parallelism."""
    return (*placer_names(), DATA_PARALLEL)


def pipeline_row_names() -> tuple[str, ...]:
    """Names of all that an evaluation of pipelines compares."""
    return (*PIPELINE_PLACERS, DATA_PARALLEL)


def unknown_placer(name: str, known: Iterable[str]) -> str:
    """Makes the line about a name that is not among those of an objective; it may be one of the other."""
    use = f"use {', '.join(known)}"
    if name in pipeline_row_names():
        return f"placer '{name}' is one of pipelines, and none is asked for; {use}"
    if name in row_names():
        return f"placer '{name}' places one batch at a time, no pipelines; {use}"
    return f"unknown placer '{name}'; {use}"


def check_placers(names: Iterable[str], pipeline: Pipeline | None) -> None:
    """Checks that placers exist and place what is asked for, a pipeline or one batch at a time.

    Raises:
        PlacerError: a name is unknown, or a package that a placer needs is not installed.
    """
    known = row_names() if pipeline is None else pipeline_row_names()
    for name in names:
        if name not in known:
            raise PlacerError(unknown_placer(name, known))
        if pipeline is None and name in PLACERS:
            PLACERS[name].check_installed()


def make_pipeline(
    wanted: Pipeline | str | None, microbatches: int | None, split: int | str | None
) -> Pipeline | None:
    """Makes a pipeline of the microbatches that a batch is split into, else of 8; None without a schedule.

    Args:
        wanted: a pipeline, or its schedule alone.
        microbatches: of the pipeline; None if there is only a schedule.

    Raises:
        PipelineError: the numbers differ or have no schedule, an unknown schedule, or a number out of range.
    """
    if not wanted:
        if split is not None:
            raise PipelineError("split makes the microbatches of a pipeline; give a pipeline's schedule too")
        if microbatches is not None:
            raise PipelineError("microbatches are those of a pipeline; give its schedule too")
        return None
    if isinstance(split, str) and split != AUTO:
        if not split.isdecimal() or len(split) > 9:
            raise PipelineError(f"split is {split!r}; give a number of microbatches, or {AUTO}")
        split = int(split)
    if None not in (split, microbatches) and split != microbatches:
        raise PipelineError(
            f"split is {split}, but the pipeline has {microbatches} microbatches; give one of them"
        )
    given = [count for count in (microbatches, split) if isinstance(count, int)]
    return wanted if isinstance(wanted, Pipeline) else Pipeline(wanted, *given[:1])


def prepared(
    graph: OpGraph, precision: str | None, granularity: str, clusters: Sequence[Cluster] = ()
) -> OpGraph:
    """Returns a graph in a precision (None: as it is) and of a granularity.

    Prints to stderr where a device of the clusters has no peak for the type of an op.

    Raises:
        PrecisionError, GranularityError: the graph cannot have them.
    """
    costed = graph if precision is None else with_precision(graph, precision)
    for line in (line for cluster in clusters for line in stand_in_lines(costed, cluster)):
        print_notice(line)
    return with_granularity(costed, granularity)


def make_budget(evaluations: int | None, seconds: float | None) -> Budget:
    """Make a budget; `BUDGET` evaluations where neither limit is given."""
    return Budget(BUDGET if evaluations is None and seconds is None else evaluations, seconds)
