"""Runs one placer on one problem, as every trial does: with its own seed, timed without compiling."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

import numpy as np

from agent.pipelines.data_parallel import simulate_data_parallel_pipeline
from agent.pipelines.search import PIPELINE_PLACERS
from agent.placers.base import Budget, PlacementResult, Placer, SearchState
from agent.placing.request import DATA_PARALLEL
from envs.cluster.cluster import Cluster
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import stages_of
from envs.placements.placement import Placement, spread_unread
from envs.problem import Problem
from graphs.op_graph import OpGraph, build_graph
from graphs.system.array_types import IntArray
from graphs.system.running_time import running_cpu_s, running_s

N_LAYERS = 12
"""Layers of the warm-up graph."""
WARM_UP = Budget(evaluations=4_000)
"""Enough for every placer to get to the last of its searches."""


class PipelineRun(NamedTuple):
    """The result of a placer of pipelines; data parallelism has no placement."""

    placement: Placement | None
    step_time_s: float
    fits: bool
    evaluations: int
    step_time: PipelineTime | None = None
    wall_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def bubble_share(self) -> float:
        """Share of the devices' time in which they compute nothing; 0 where unknown."""
        return self.step_time.bubble_share if self.step_time else 0.0


def _timed(placement: Placement, step: PipelineTime, evaluations: int) -> PipelineRun:
    return PipelineRun(placement, step.total_s, step.fits, evaluations, step)


class TrialRunner:
    """Runs placers, and remembers which of them have imported what they need."""

    def __init__(self) -> None:
        self._warm: set[str] = set()

    def place(
        self, placer: Placer, problem: Problem, budget: Budget, *, order: str, seed: int
    ) -> PlacementResult:
        """Let a placer place a problem; the placement depends on nothing but the arguments.

        Args:
            order: that the placer's policy visits ops in; empty for other placers.
            seed: of the placer's randomness, beside the names of graph, placer and order.

        Returns:
            The placement of the ops; parameters that no op reads are spread over the devices, unless the
            placer is `single`. The clock of its budget and of `wall_s` starts when the placer has imported
            what it needs, and stands still while kernels are compiled or loaded.
        """
        self._warm_up(placer, problem.cluster)
        name = f"{problem.graph.name}/{placer.name}/{order}"
        rng = np.random.default_rng([seed, crc32(name.encode())])
        found = placer.place(problem, budget, rng)
        if placer.name == "single" or not len(problem.graph.unread):
            return found
        peak_bytes, device_of = found.step_time.peak_bytes, found.placement.device_of
        spread = Placement(spread_unread(problem.graph, problem.cluster, device_of, peak_bytes))
        other = replace(found, placement=spread)
        return other if other.feasible or not found.feasible else found

    def score(self, problem: Problem, device_of: IntArray) -> PlacementResult:
        """Time a given placement: one evaluation.

        Args:
            device_of: device index of each op, int (n_ops,).
        """
        search = SearchState(problem, Budget(evaluations=1))
        search.score(device_of[None])
        return search.result()

    def run_pipeline(
        self,
        placer: str,
        pipelined: PipelinedProblem,
        budget: Budget,
        given: Placement | None,
        *,
        seed: int,
    ) -> PipelineRun:
        """Runs a placer of pipelines or data parallelism, or times a given placement.

        Args:
            given: a placement to time; None = the placer finds one.
            seed: of the placer's randomness, beside the names of graph and placer.

        Raises:
            PipelineError: the schedule cannot run the placement.
        """
        graph = pipelined.problem.graph.name
        began, cpu_began = running_s(), running_cpu_s()
        if placer == DATA_PARALLEL:
            parallel = simulate_data_parallel_pipeline(pipelined)
            run = PipelineRun(None, parallel.step_s, parallel.fits, parallel.evaluations)
        elif given is not None:
            stages = stages_of(pipelined.problem, given)
            run = _timed(given, pipelined.simulate(stages), 1)
        else:
            rng = np.random.default_rng([seed, crc32(f"{graph}/{placer}".encode())])
            found = PIPELINE_PLACERS[placer].place(pipelined, budget, rng)
            run = _timed(found.stages.placement, found.step, found.evaluations)
        wall_s, cpu_s = running_s() - began, running_cpu_s() - cpu_began
        return run._replace(wall_s=wall_s, cpu_s=cpu_s)

    def _warm_up(self, placer: Placer, cluster: Cluster) -> None:
        if placer.name not in self._warm:
            problem = Problem(warm_up_graph(), warm_up_cluster(cluster))
            placer.place(problem, WARM_UP, np.random.default_rng(0))
            self._warm.add(placer.name)


def warm_up_cluster(cluster: Cluster) -> Cluster:
    """Make a cluster by the rules of another, with its memory, on which ops take ordinary times."""
    devices = tuple(
        replace(device, kind="warm-up", flops_per_s=1e12, bytes_per_s=1e12, launch_s=1e-6, peaks={})
        for device in cluster.devices
    )
    shape = (cluster.n_devices, cluster.n_devices)
    return replace(cluster, devices=devices, bytes_per_s=np.full(shape, 1e10), latency_s=np.full(shape, 1e-6))


def warm_up_graph() -> OpGraph:
    """Make the graph that placers are warmed up on: layers with weights, forward and backward."""
    ops: list[dict[str, object]] = []
    tensors: list[tuple[int, float, list[int]]] = []
    for layer in range(N_LAYERS):
        ops.append({"name": f"weight{layer}", "type": "parameter", "resident_bytes": 1e3, "colocate": layer})
        ops.append({"name": f"forward{layer}", "flops": 1e9, "colocate": layer})
    for layer in reversed(range(N_LAYERS)):
        ops.append({"name": f"backward{layer}", "flops": 2e9, "phase": "backward"})
    for layer in range(N_LAYERS):
        weight, forward, backward = 2 * layer, 2 * layer + 1, 3 * N_LAYERS - 1 - layer
        following = [forward + 2] if layer + 1 < N_LAYERS else []
        tensors.append((weight, 1e3, [forward, backward]))
        tensors.append((forward, 1e6, [*following, backward]))
        if layer:
            tensors.append((backward, 1e6, [backward + 1]))
    return build_graph("warm-up", "", ops, tensors)
