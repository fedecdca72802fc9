"""Requests: what `place` and `evaluate.py` are asked for beside graphs, clusters and placers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import NoneType
from typing import Any, NamedTuple

from agent.placers.base import PLACERS_OF, Budget, PlacementResult, PlacerError, names_of
from envs.cluster.cluster import Cluster
from envs.costs.op_seconds import stand_in_lines
from envs.objective import PIPELINE, STEP, Objective, objective_of
from envs.pipeline.pipeline import AUTO, CHOSEN_FROM, MAX_MICROBATCHES, Pipeline, PipelineError
from envs.problem import InfeasibleError
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from graphs.precision import with_precision
from graphs.system.errors import InputError, checked, print_notice
from graphs.system.numbers import in_ms

DATA_PARALLEL = "data-parallel"
"""Name of data parallelism, which is compared but is no placement."""
BUDGET = 10_000
"""Evaluations of a trial where neither evaluations nor seconds are given."""
MOST_COUNTS, PER_DEVICE = 5, 4
"""Numbers of microbatches that are tried at most; they are near to so many for each device."""


def row_names(kind: str = STEP) -> tuple[str, ...]:
    """Names of all that an evaluation of a kind of objective compares: the placers, and data parallelism."""
    return (*names_of(kind), DATA_PARALLEL)


def check_placers(names: Iterable[str], kind: str = STEP, known: Sequence[str] = ()) -> None:
    """Checks that placers exist and place what is asked for, a pipeline or one batch at a time.

    Args:
        known: names to choose from; by default all that an evaluation compares.

    Raises:
        PlacerError: a name is unknown, or a package that a placer needs is not installed.
    """
    known = known or row_names(kind)
    for name in names:
        use = f"use {', '.join(known)}"
        if name not in known and name in row_names(PIPELINE):
            raise PlacerError(f"placer '{name}' is one of pipelines, and none is asked for; {use}")
        if name not in known and name in row_names(STEP):
            raise PlacerError(f"placer '{name}' places one batch at a time, no pipelines; {use}")
        if name not in known:
            raise PlacerError(f"unknown placer '{name}'; {use}")
        if name in PLACERS_OF[kind]:
            PLACERS_OF[kind][name].check_installed()


@dataclass(frozen=True)
class Request:
    """The step to make short, the limits of each search, and what one decision places.

    Attributes:
        pipeline: a pipeline, or its schedule alone; empty = the step of one batch.
        microbatches: number in a step of the pipeline, if there is only a schedule.
        split: number of microbatches that a module's inputs, a whole batch, are cut into, or `auto`.
        batch_dim, split_inputs: dimension and inputs that are cut, as `split_batch` takes them.
        budget, seconds: limits of each placer.
        precision: precision in which the costs of fp32 graphs are computed; None = as they are.
        granularity: name from `graphs.step_settings.GRANULARITIES`.
        replicas, shard_optimizer: of the pipeline, as of `Pipeline`, if there is only a schedule.
    """

    pipeline: Pipeline | str | None = None
    microbatches: int | None = None
    split: int | str | None = None
    batch_dim: int = 0
    split_inputs: Sequence[str | int] = ()
    budget: int | None = None
    seconds: float | None = None
    precision: str | None = None
    granularity: str = "op"
    replicas: int | str | None = None
    shard_optimizer: bool = False

    def __post_init__(self) -> None:
        checked(InputError, "pipeline", self.pipeline, Pipeline, str, NoneType)
        checked(InputError, "split", self.split, int, str, NoneType)
        checked(InputError, "batch_dim", self.batch_dim, int)
        checked(InputError, "split_inputs", self.split_inputs, Sequence)
        checked(InputError, "budget", self.budget, int, NoneType)
        checked(InputError, "seconds", self.seconds, float, NoneType)
        checked(InputError, "precision", self.precision, str, NoneType)
        checked(InputError, "granularity", self.granularity, str)

    @classmethod
    def of(cls, settings: object, **others: Any) -> Request:
        """Makes the request of settings that have fields of the same names, but for others."""
        known = {each.name: getattr(settings, each.name) for each in fields(cls)}
        return cls(**known | others)

    @cached_property
    def wanted(self) -> Pipeline | None:
        """The pipeline, of the microbatches that a batch is split into, else of 8; None without a schedule.

        Raises:
            PipelineError: the numbers differ or have no schedule, an unknown schedule, or a number out of
                range.
        """
        split, pipeline = self.split, self.pipeline
        count = pipeline.microbatches if isinstance(pipeline, Pipeline) else self.microbatches
        if not pipeline:
            if split is not None:
                raise PipelineError(
                    "split makes the microbatches of a pipeline; give a pipeline's schedule too"
                )
            if count is not None:
                raise PipelineError("microbatches are those of a pipeline; give its schedule too")
            if self.replicas is not None or self.shard_optimizer:
                raise PipelineError("replicas are those of a pipeline; give its schedule too")
            return None
        split = number_or_auto("split", split, "number of microbatches")
        replicas = number_or_auto("replicas", self.replicas, "number")
        if None not in (split, count) and split != count:
            raise PipelineError(
                f"split is {split}, but the pipeline has {count} microbatches; give one of them"
            )
        given = [each for each in (count, split) if isinstance(each, int)]
        if isinstance(pipeline, Pipeline):
            return pipeline
        others = {"replicas": 1 if replicas is None else replicas, "shard_optimizer": self.shard_optimizer}
        return Pipeline(pipeline, *given[:1], **others)  # type: ignore[arg-type]

    @property
    def limits(self) -> Budget:
        """The budget of each placer; `BUDGET` evaluations if there is no limit."""
        is_unlimited = self.budget is None and self.seconds is None
        return Budget(BUDGET if is_unlimited else self.budget, self.seconds)

    def prepared(self, graph: OpGraph, clusters: Sequence[Cluster] = ()) -> OpGraph:
        """Returns a graph in the precision and of the granularity.

        Prints to stderr where a device of the clusters has no peak for the type of an op.

        Raises:
            PrecisionError, GranularityError: the graph cannot have them.
        """
        costed = graph if self.precision is None else with_precision(graph, self.precision)
        for line in (line for cluster in clusters for line in stand_in_lines(costed, cluster)):
            print_notice(line)
        return with_granularity(costed, self.granularity)

    def to_try(self, inputs: Any, n_devices: int) -> list[Pipeline | None]:
        """Lists the pipelines to choose from: one, but for `auto`; None = the step of one batch.

        Args:
            inputs: batch that is split; anything if none is.
        """
        wanted = self.wanted
        if wanted is None:
            return [None]
        counts = [wanted.microbatches]
        if self.split == AUTO:
            from graphs.capture.structures import batch_size

            counts = counts_to_try(batch_size(inputs, self.batch_dim, self.split_inputs), n_devices)
        schedules = CHOSEN_FROM if wanted.schedule == AUTO else (wanted.schedule,)
        numbers = [number for number in range(1, n_devices + 1) if n_devices % number == 0]
        return [
            replace(wanted, schedule=each, microbatches=count, replicas=number)
            for count in counts
            for each in schedules
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


class Tried(NamedTuple):
    """A pipeline that was tried, or the step of one batch, and the best placement that was found for it."""

    pipeline: Pipeline | None
    result: PlacementResult

    def __str__(self) -> str:
        step, memory = self.result.step_time, "" if self.result.feasible else ", out of memory"
        assert self.pipeline is not None, "a pipeline"
        replicas = f"{self.pipeline.replicas} replicas of " if self.pipeline.replicas != 1 else ""
        name = f"{replicas}{self.pipeline.schedule} with {self.pipeline.microbatches} microbatches"
        return f"{name}: {in_ms(step.total_s)}{memory}"


def try_each(
    pipelines: Sequence[Pipeline | None],
    graph_of: Callable[[int], OpGraph],
    cluster: Cluster,
    place: Callable[[Objective, Budget], PlacementResult],
    budget: Budget,
) -> list[Tried]:
    """Tries pipelines in equal shares of a budget.

    If there are several, each is reported; those that the graph or the cluster cannot run are left out.

    Args:
        graph_of: makes the graph of one of a number of microbatches.
        place: finds a placement within a share of the budget.

    Returns:
        First what fits, then what has the shortest step.

    Raises:
        PipelineError, InfeasibleError: none can run.
    """
    found, refused = list[Tried](), list[PipelineError | InfeasibleError]()
    for number, pipeline in enumerate(pipelines, start=1):
        try:
            graph = graph_of(pipeline.microbatches if pipeline else 1)
            objective = objective_of(graph, cluster, pipeline)
            objective.check_feasible()
            found.append(Tried(pipeline, place(objective, budget.shared(len(pipelines)))))
        except (PipelineError, InfeasibleError) as error:
            refused.append(error)
            told: object = f"cannot run: {error}"
        else:
            told = found[-1]
        if len(pipelines) > 1:
            print(f"pipeline {number} of {len(pipelines)}: {told}", file=sys.stderr)
    if not found:
        raise refused[0]
    return sorted(found, key=lambda each: (not each.result.feasible, each.result.step_time.total_s))
