"""Requests: what `place` and `evaluate.py` are asked for beside graphs, clusters and placers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pkgutil import resolve_name
from types import NoneType
from typing import TYPE_CHECKING, Any

from agent.placers.base import PLACERS_OF, Budget, PlacerError, names_of
from envs.cluster.cluster import Cluster
from envs.costs.op_seconds import stand_in_lines
from envs.objective import PIPELINE, STEP, kind_of
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph
from graphs.precision import with_precision
from graphs.system.errors import InputError, checked, print_notice

if TYPE_CHECKING:
    from envs.pipeline.pipeline import Pipeline

DATA_PARALLEL = "data-parallel"
"""Name of data parallelism, which is compared but is no placement."""
BUDGET = 10_000
"""Evaluations of a trial where neither evaluations nor seconds are given."""
CHOICE = "agent.pipeline.choice"
PIPELINE_CLASS = "envs.pipeline.pipeline:Pipeline"
"""Doors to the pipelines that a request asks for."""


def row_names(kind: str = STEP) -> tuple[str, ...]:
    """Names of all that an evaluation of a kind of objective compares: the placers, and data parallelism."""
    return (*names_of(kind), DATA_PARALLEL)


def check_placers(names: Iterable[str], kind: str = STEP, choices: Sequence[str] = ()) -> None:
    """Checks that placers exist and place what is asked for, a pipeline or one batch at a time.

    Args:
        choices: names to choose from; by default all that an evaluation compares.

    Raises:
        PlacerError: a name is unknown, or a package that a placer needs is not installed.
    """
    choices = choices or row_names(kind)
    for name in names:
        use = f"use {', '.join(choices)}"
        if name not in choices and name in row_names(PIPELINE):
            raise PlacerError(f"placer '{name}' is one of pipelines, and none is asked for; {use}")
        if name not in choices and name in row_names(STEP):
            raise PlacerError(f"placer '{name}' places one batch at a time, no pipelines; {use}")
        if name not in choices:
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
        if not isinstance(self.pipeline, str | None):
            checked(InputError, "pipeline", self.pipeline, resolve_name(PIPELINE_CLASS), str, NoneType)
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
        same = {item.name: getattr(settings, item.name) for item in fields(cls)}
        return cls(**same | others)

    @cached_property
    def wanted(self) -> Pipeline | None:
        """The pipeline, of the microbatches that a batch is split into, else of 8; None without a schedule.

        Raises:
            PipelineError: the numbers differ or have no schedule, an unknown schedule, or a number out of
                range.
        """
        numbers = self.split, self.microbatches, self.replicas
        if not self.pipeline and numbers == (None, None, None) and not self.shard_optimizer:
            return None
        return resolve_name(f"{CHOICE}:wanted_pipeline")(self)

    @property
    def kind(self) -> str:
        """Kind of the objective."""
        return kind_of(self.wanted)

    @property
    def is_open(self) -> bool:
        """Says whether there are several pipelines to choose from."""
        return "auto" in (self.pipeline, self.split, self.replicas)

    def n_parts(self, pipeline: Pipeline | None) -> int | None:
        """Returns how many microbatches the inputs are cut into for a pipeline; None = they are one."""
        return pipeline.microbatches if pipeline and self.split is not None else None

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
