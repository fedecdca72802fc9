"""The objective of a placement: the step of one batch, or of a pipeline behind a door."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pkgutil import resolve_name
from typing import Any, NamedTuple, Self

import numpy as np

from envs.cluster.cluster import Cluster
from envs.cluster.host import NONE, eager_issue_s, with_host
from envs.placements.placement import Placement, check_placement
from envs.problem import InfeasibleError, Problem, kinds
from envs.simulator.copies import simulated_copies
from envs.simulator.data_parallel import DataParallelStep, simulate_data_parallel
from envs.simulator.simulate import SimulatedStep, StepTime, simulate_many, simulate_problem, simulated_memory
from graphs.graph_columns import PHASES
from graphs.op_graph import OpGraph
from graphs.system.array_types import BoolArray, FloatArray, IntArray

STEP, PIPELINE = "step", "pipeline"
"""Kinds of objectives."""
OBJECTIVES = {STEP: "envs.objective:Objective", PIPELINE: "envs.pipeline.objective:PipelineObjective"}
"""Class of each kind; that of pipelines is loaded when one is asked for."""
OVER_BYTES, TOTAL_S = range(2)
"""Columns of the scores of placements, or entries of a tuple: bytes over the memory limits of all devices,
and step time in seconds; a smaller tuple is better."""
COPIES = "copies"
"""Kind of the bars of copies; those of ops have the phases as kinds."""


class Bars(NamedTuple):
    """Bars of a timeline: a device index, seconds and a microbatch (-1 = none) for each, (n,)."""

    device: IntArray
    start_s: FloatArray
    end_s: FloatArray
    microbatch: IntArray

    def where(self, chosen: IntArray | BoolArray) -> Bars:
        """Returns some of the bars, by index or mask."""
        return Bars(*(column[chosen] for column in self))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False)
class Objective:
    """The step of one batch, to be made short; that of a pipeline is a subclass."""

    problem: Problem

    kind = STEP

    @classmethod
    def of(cls, problem: Problem, pipeline: Any, whole: Problem | str) -> Self:
        """Makes the objective of a problem, as `objective_of` has it."""
        return cls(problem)

    def check_feasible(self) -> None:
        """Checks that some placement may be feasible.

        Raises:
            InfeasibleError: none is.
        """
        self.problem.check_feasible()

    def infeasibility(self) -> InfeasibleError | None:
        """Returns the error of `check_feasible`, if it raises one."""
        try:
            self.check_feasible()
        except InfeasibleError as error:
            return error
        return None

    def simulate(self, placement: Placement) -> SimulatedStep:
        """Simulates the step under a placement."""
        return simulate_problem(self.problem, placement.device_of)

    def ignored(self, placement: Placement) -> str:
        """Says what of a placement means nothing; empty if all does."""
        return ""

    def memory(self, placement: Placement, n_parts: int) -> FloatArray:
        """Simulates the most bytes that each device holds in each of equally long parts of the step.

        Returns:
            Bytes, (n_devices, n_parts).
        """
        return simulated_memory(self.problem, placement.device_of, n_parts)

    def bars(self, placement: Placement, step: Any) -> dict[str, Bars]:
        """Lists what runs when, in the step that `simulate` makes, by its kind."""
        device_of, phases = placement.device_of, np.array(self.problem.graph.phases)
        ops = Bars(device_of, step.start_s, step.finish_s, np.full(len(device_of), -1))
        copies = simulated_copies(self.problem, device_of)
        spans = np.array([(copy.source, copy.start_s, copy.end_s) for copy in copies]).reshape(-1, 3)
        sent = Bars(spans[:, 0].astype(int), spans[:, 1], spans[:, 2], np.full(len(spans), -1))
        return {phase: ops.where(phases == phase) for phase in PHASES} | {COPIES: sent}

    def scores(self, devices_of: IntArray) -> FloatArray:
        """Simulates placements for search, on all cores if there is enough to do.

        Args:
            devices_of: device of each op, one placement a row, int (n, n_ops).

        Returns:
            Columns `OVER_BYTES` and `TOTAL_S`, (n, 2).
        """
        total_s, peak_bytes = simulate_many(self.problem, np.ascontiguousarray(devices_of))
        over_bytes = np.maximum(peak_bytes - self.problem.cluster.memory_bytes, 0.0).sum(axis=1)
        return np.stack([over_bytes, total_s], axis=1)

    @property
    def eager_host_s(self) -> float:
        """Seconds in which the host issues the ops eagerly, counted or not; 0 as a graph or without GPUs."""
        return eager_issue_s(self.problem.cluster) * float((self.problem.op_seconds > 0).any(axis=1).sum())

    def without_host(self) -> Self:
        """Returns the objective with a host that issues everything at once."""
        problem = self.problem
        at_once = replace(problem, cluster=with_host(problem.cluster, NONE), seconds=problem.op_seconds)
        return replace(self, problem=at_once)

    @cached_property
    def single(self) -> Any:
        """The step on the fastest device that has the memory, or else on the fastest: a `FastestSingle`."""
        return fastest_single(self.problem)

    @property
    def single_step(self) -> tuple[float, bool]:
        """Seconds of that step, and whether the device has the memory."""
        return self.single.step_s, self.single.fits

    def columns(self, step_s: float) -> dict[str, Any]:
        """Lists the columns that a row of results has of this kind alone, of a step of so many seconds."""
        return {}

    def data_parallel(self) -> DataParallelStep:
        """Simulates data parallelism on the devices that make the step of a batch shortest."""
        return simulate_data_parallel(self.problem)


def objective_of(
    graph: OpGraph, cluster: Cluster, pipeline: object = None, whole: OpGraph | str = ""
) -> Objective:
    """Makes the objective of a graph on a cluster: the step of a `Pipeline`, or without one of one batch.

    Args:
        whole: step of the batch that microbatches are cut from, or why there is none.
    """
    problem = Problem(graph, cluster)
    batch = whole if isinstance(whole, str) else problem.with_graph(whole)
    return resolve_name(OBJECTIVES[kind_of(pipeline)]).of(problem, pipeline, batch)


def kind_of(pipeline: object) -> str:
    """Returns the kind of the objective of a pipeline, or of a step if there is none."""
    return STEP if pipeline is None else PIPELINE


def simulate(graph: OpGraph, cluster: Cluster, placement: Placement) -> StepTime:
    """Simulates one training step under a placement.

    Args:
        placement: device index of each op, int (n_ops,); none may be -1.

    Returns:
        Seconds and bytes; `total_s` is the finish of the last op.

    Raises:
        PlacementError: wrong length, an unplaced op, a device the cluster lacks, or a split placement unit.

    Source: Addanki et al. 2019, section 4; departures are in docs/explanation/step.md.
    """
    check_placement(graph, cluster, placement)
    return simulate_problem(Problem(graph, cluster), placement.device_of)


class FastestSingle(NamedTuple):
    """The fastest device that has the memory for all ops; where none has, the fastest of all.

    Attributes:
        step_s: simulated seconds of the step with all ops on it; 1 where no op takes time.
        fits: true if it has the memory.
    """

    device: int
    step_s: float
    fits: bool


def fastest_single(problem: Problem) -> FastestSingle:
    """Finds the fastest single device; one device of each kind is simulated."""
    ranked = []
    of_kind, _ = kinds(np.vstack([problem.op_seconds, problem.cluster.memory_bytes]))
    for device in of_kind.tolist():
        step = simulate_problem(problem, np.full(problem.graph.n_ops, device, dtype=np.int64))
        ranked.append((not step.fits, step.total_s, device))
    overflows, step_s, device = min(ranked)
    return FastestSingle(device, step_s or 1.0, not overflows)
