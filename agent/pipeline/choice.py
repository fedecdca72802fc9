"""The pipelines that a request asks for, and the best of those that there are to choose from."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from agent.placers.base import Budget, PlacementResult
from agent.placing.request import Request
from envs.cluster.cluster import Cluster
from envs.objective import Objective, objective_of
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import AUTO, CHOSEN_FROM, MAX_MICROBATCHES, Pipeline, PipelineError
from envs.problem import InfeasibleError, Problem
from graphs.op_graph import OpGraph
from graphs.system.errors import in_ms

MOST_COUNTS, PER_DEVICE = 5, 4
"""Numbers of microbatches that are tried at most; they are near to so many for each device."""


def wanted_pipeline(request: Request) -> Pipeline:
    """Makes the pipeline of a request.

    Raises:
        PipelineError: see `Request.wanted`.
    """
    split, pipeline = request.split, request.pipeline
    count = pipeline.microbatches if isinstance(pipeline, Pipeline) else request.microbatches
    if not pipeline:
        if split is not None:
            raise PipelineError("split makes the microbatches of a pipeline; give a pipeline's schedule too")
        if count is not None:
            raise PipelineError("microbatches are those of a pipeline; give its schedule too")
        if request.replicas is not None or request.shard_optimizer:
            raise PipelineError("replicas are those of a pipeline; give its schedule too")
    split = number_or_auto("split", split, "number of microbatches")
    replicas = number_or_auto("replicas", request.replicas, "number")
    if None not in (split, count) and split != count:
        raise PipelineError(f"split is {split}, but the pipeline has {count} microbatches; give one of them")
    counts = [number for number in (count, split) if isinstance(number, int)]
    if isinstance(pipeline, Pipeline):
        return pipeline
    others = {"replicas": 1 if replicas is None else replicas, "shard_optimizer": request.shard_optimizer}
    return Pipeline(pipeline, *counts[:1], **others)  # type: ignore[arg-type]


def to_try(request: Request, inputs: Any, n_devices: int) -> list[Pipeline]:
    """Lists the pipelines to choose from: one, but for `auto`.

    Args:
        inputs: batch that is split; anything if none is.
    """
    wanted = wanted_pipeline(request)
    counts = [wanted.microbatches]
    if request.split == AUTO:
        from graphs.capture.structures import batch_size

        counts = counts_to_try(batch_size(inputs, request.batch_dim, request.split_inputs), n_devices)
    schedules = CHOSEN_FROM if wanted.schedule == AUTO else (wanted.schedule,)
    numbers = [number for number in range(1, n_devices + 1) if n_devices % number == 0]
    return [
        replace(wanted, schedule=schedule, microbatches=count, replicas=number)
        for count in counts
        for schedule in schedules
        for number in (numbers if wanted.replicas == AUTO else [wanted.replicas])
        if wanted.replicas != AUTO or count % int(number) == 0
    ]


def number_or_auto(what: str, value: int | str | None, of_what: str) -> int | str | None:
    """Returns the number that a setting is, or `auto` or None as it is.

    Raises:
        PipelineError: it is none of them.
    """
    if not isinstance(value, str) or value == AUTO:
        return value
    if not value.isdecimal() or len(value) > 9:
        raise PipelineError(f"{what} is {value!r}; give a {of_what}, or {AUTO}")
    return int(value)


def counts_to_try(batch: int, n_devices: int) -> list[int]:
    """Lists the divisors of a batch that are nearest to `PER_DEVICE` microbatches a device, ascending."""
    divisors = [count for count in range(1, min(batch, MAX_MICROBATCHES) + 1) if batch % count == 0]
    divisors.sort(key=lambda count: abs(math.log(count / (PER_DEVICE * n_devices))))
    return sorted(divisors[:MOST_COUNTS])


def try_each(
    request: Request,
    inputs: Any,
    graph_of: Callable[[int], OpGraph],
    cluster: Cluster,
    place: Callable[[Objective, Budget], PlacementResult],
    budget: Budget | None = None,
) -> list[PlacementResult]:
    """Tries the pipelines of a request, as `Request.try_each` does.

    If there are several, each is reported; those that the graph or the cluster cannot run are left out.

    Args:
        budget: budget of all together; by default that of the request.
    """
    pipelines = to_try(request, inputs, cluster.n_devices)
    share = (budget or request.limits).shared(len(pipelines))
    results, refused = list[PlacementResult](), list[PipelineError | InfeasibleError]()
    for number, pipeline in enumerate(pipelines, start=1):
        try:
            objective = objective_of(graph_of(pipeline.microbatches), cluster, pipeline)
            objective.check_feasible()
            results.append(place(objective, share))
        except (PipelineError, InfeasibleError) as error:
            refused.append(error)
            told = f"cannot run: {error}"
        else:
            told = words_on(results[-1])
        if len(pipelines) > 1:
            print(f"pipeline {number} of {len(pipelines)}: {told}", file=sys.stderr)
    if not results:
        raise refused[0]
    return sorted(results, key=lambda result: (not result.feasible, result.step_time.total_s))


def pipeline_tried(tried: PlacementResult) -> Pipeline:
    """Returns the pipeline that was placed."""
    assert isinstance(tried.objective, PipelineObjective), "a pipeline"
    return tried.objective.pipeline


def words_on(tried: PlacementResult) -> str:
    """Says what a pipeline that was tried is, and how long its step takes."""
    pipeline, memory = pipeline_tried(tried), "" if tried.feasible else ", out of memory"
    replicas = f"{pipeline.replicas} replicas of " if pipeline.replicas != 1 else ""
    name = f"{replicas}{pipeline.schedule} with {pipeline.microbatches} microbatches"
    return f"{name}: {in_ms(tried.step_time.total_s)}{memory}"


def compared(
    request: Request, tried: Sequence[PlacementResult], graph_of: Callable[[int], OpGraph]
) -> tuple[PipelineObjective, int, dict[str, Any]]:
    """Compares the best pipeline with the others and, if a batch was split, with the whole batch.

    Returns:
        Its objective, its number of microbatches, and the fields `tried` and `best_steps` of its plan.
    """
    objective = tried[0].objective
    assert isinstance(objective, PipelineObjective), "a pipeline"
    if request.split is not None:
        objective = replace(objective, whole=_whole(objective, graph_of))
    best_steps = {pipeline_tried(result).replicas: result.step_time for result in reversed(tried)}
    told = {"tried": tuple(map(words_on, tried)), "best_steps": best_steps}
    return objective, objective.pipeline.microbatches, told


def _whole(objective: PipelineObjective, graph_of: Callable[[int], OpGraph]) -> Problem | str:
    """Returns the step of the whole batch, or why there is none."""
    try:
        problem = objective.problem.with_graph(graph_of(1))
        replace(objective, problem=problem).check_feasible()
    except ValueError as error:  # it may not fit, or run with microbatches alone
        return str(error)
    return problem
