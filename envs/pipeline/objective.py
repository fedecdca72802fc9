"""The objective of a pipeline: the pipelined step of a batch in microbatches, beside the same without one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self

import numpy as np

from envs.cluster.host import eager_issue_s
from envs.objective import PIPELINE, Bars, Objective
from envs.pipeline.chain import Chain, Cuts, cut_by_load
from envs.pipeline.groups import Groups, groups_for
from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ZERO_BUBBLE, Pipeline, PipelineError
from envs.pipeline.replicas import ReplicatedProblem, before_last_s, on_groups, pipelined_of
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT
from envs.pipeline.simulate import PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages, check_cluster, phases_of, stages_of
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.simulator.data_parallel import DataParallelStep, data_parallel_steps
from graphs.system.array_types import FloatArray
from graphs.system.errors import shortened

UPDATE = -1
KINDS_OF_BARS = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "optimizer": UPDATE,
    "weight gradients": WEIGHT,
    "forward again": RECOMPUTE,
}
"""Kind of the actions of each kind of bars."""


@dataclass(frozen=True, eq=False)
class DataParallelPipeline(DataParallelStep):
    """A step of as many microbatches as a step of the pipeline.

    Attributes:
        own_batches: each device computes a whole batch; `step_s` is per batch then.
    """

    own_batches: bool = False

    @property
    def seconds_per_batch(self) -> float:
        return self.step_s


@dataclass(frozen=True)
class PipelineBaselines:
    """Steps of the same batch without a pipeline, cut into as many microbatches or, if that is faster, whole.

    Attributes:
        single: on the fastest device that has the memory; where none has, on the fastest.
        data_parallel: on the devices that make the step shortest.
        uncut: speed of one device with the batch uncut; `unknown` if its step could not be made.
    """

    single: PipelineTime
    data_parallel: DataParallelPipeline
    uncut: Literal["faster", "slower", "too large", "unknown"] = "slower"

    def steps(self) -> dict[str, tuple[float, bool]]:
        """Returns the seconds of each step by its name, and whether it has the memory."""
        single, parallel = self.single, self.data_parallel
        return {
            "one device": (single.total_s, single.fits),
            "data parallelism": (parallel.step_s, parallel.fits),
        }


@dataclass(frozen=True, eq=False)
class PipelineObjective(Objective):
    """The pipelined step, to be made short; the graph is the step of one microbatch.

    Attributes:
        whole: step of the batch that is not cut into microbatches, or why there is none.
        groups: devices of each replica that placers see; empty = the first of `groups_for`.

    Raises:
        PipelineError: at the first use, if the schedule has yet to be chosen.
    """

    pipeline: Pipeline
    whole: Problem | str = ""
    groups: Groups = ()

    kind = PIPELINE

    @classmethod
    def of(cls, problem: Problem, pipeline: Pipeline, whole: Problem | str) -> Self:
        return cls(problem, pipeline, whole)

    @cached_property
    def pipelined(self) -> PipelinedProblem:
        """The graph and its pipeline, as they are simulated."""
        return pipelined_of(self.problem, self.pipeline)

    @cached_property
    def members(self) -> list[PipelinedProblem]:
        """The pipeline of each replica; the devices of placers are positions in the group of the first."""
        if isinstance(self.pipelined, ReplicatedProblem):
            return self.pipelined.replicas(self._groups).members
        return [self.pipelined]

    @cached_property
    def _groups(self) -> Groups:
        """Devices of each replica; empty = one replica."""
        count = self.pipeline.replicas
        return () if count == 1 else self.groups or groups_for(self.problem.cluster, int(count))[0]

    @property
    def placed(self) -> Problem:
        """The graph on the devices that placers see: those of the first replica."""
        return self.members[0].problem

    def layouts(self) -> list[PipelineObjective]:
        """Lists the objectives of all groups of devices that replicas can have, which differ."""
        if self.pipeline.replicas == 1 or self.groups:
            return [self]
        groups = groups_for(self.problem.cluster, int(self.pipeline.replicas))
        return [replace(self, groups=group) for group in groups]

    @property
    def chain(self) -> Chain:
        """The pieces of the graph, between which stages can be cut."""
        return self.members[0].chain

    @property
    def eager_host_s(self) -> float:
        """Seconds in which hosts, one per device, issue equal shares of the ops eagerly; as of one batch."""
        runs = np.where(phases_of(self.problem.graph) == 2, 1, self.pipeline.microbatches)
        n_issued = float(runs[(self.problem.op_seconds > 0).any(axis=1)].sum())
        return eager_issue_s(self.problem.cluster) * n_issued / self.problem.n_devices

    def check(self) -> None:
        """Checks that the graph can be placed on the cluster as a pipeline.

        Raises:
            PipelineError: the cluster cannot run it, or the graph has too few pieces.
        """
        check_cluster(self.problem.cluster)
        n_pieces = self.chain.n_pieces
        if n_pieces < self.pipeline.stages_per_device:
            graph = shortened(self.problem.graph.name)
            raise PipelineError(
                f"schedule '{self.pipeline.schedule}' needs {self.pipeline.stages_per_device} stages on a "
                f"device, but graph '{graph}' can be cut into {n_pieces} pieces at most"
            )

    def check_feasible(self) -> None:
        """Checks that some pipeline may be feasible.

        Raises:
            InfeasibleError: none is.
            PipelineError: what `check` raises.
        """
        self.check()
        for problem in {member.problem: None for member in self.members}:
            problem.check_feasible(recomputes=self.pipeline.may_recompute)

    def cut(self, placement: Placement) -> Stages:
        """Cuts a placement into stages.

        Raises:
            PipelineError: it cannot be cut.
        """
        return stages_of(self.problem, placement)

    def simulate(self, placement: Placement) -> PipelineTime:
        return self.pipelined.simulate(self.cut(placement))

    def ignored(self, placement: Placement) -> str:
        graph, stage_of = self.problem.graph, placement.stage_of
        in_stages = np.isin(phases_of(graph), (0, 1))
        unread = np.flatnonzero(~in_stages & (stage_of >= 0)) if stage_of is not None else np.zeros(0, int)
        if not len(unread):
            return ""
        count = f"{len(unread):,} parameters, inputs and updates, such as '{graph.op_names[unread[0]]}'"
        return f"stages of {count}, are ignored; they go with their devices"

    def memory(self, placement: Placement, n_parts: int) -> FloatArray:
        return self.pipelined.memory(self.cut(placement), n_parts)

    def bars(self, placement: Placement, step: PipelineTime) -> dict[str, Bars]:
        device, kind, _, microbatch, start_s, end_s = step.columns
        actions = Bars(device, start_s, end_s, np.where(kind == UPDATE, -1, microbatch))
        return {name: actions.where(kind == of_kind) for name, of_kind in KINDS_OF_BARS.items()}

    @property
    def single(self) -> PipelineTime:
        """The step on the fastest device that has the memory, or else on the fastest."""
        return self.baselines.single

    @property
    def single_step(self) -> tuple[float, bool]:
        return self.single.total_s, self.single.fits

    def columns(self, step_s: float) -> dict[str, Any]:
        count = self.pipeline.microbatches
        return {"pipeline": self.pipeline.schedule, "microbatches": count, "throughput_per_s": count / step_s}

    @cached_property
    def most_ranks(self) -> int:
        """The most devices that there are stages for, whether or not the schedule runs on so many."""
        return min(self.placed.n_devices, self.chain.n_pieces // self.pipeline.stages_per_device)

    @property
    def usable(self) -> list[int]:
        """Numbers of devices that the schedule runs on, descending."""
        return [n_ranks for n_ranks in range(self.most_ranks, 0, -1) if self.can_use(n_ranks)]

    def can_use(self, n_ranks: int) -> bool:
        """Says whether the schedule runs on so many devices."""
        counts = {member.pipeline.microbatches for member in self.members}
        in_rounds = self.pipeline.name not in (INTERLEAVED, ZERO_BUBBLE)
        are_equal = in_rounds or all(count % max(1, count // n_ranks) == 0 for count in counts)
        return 1 <= n_ranks <= self.most_ranks and are_equal

    def stages(self, cuts: Cuts) -> Stages:
        """Makes the stages of cuts."""
        recomputed = tuple(stage for stage, again in enumerate(cuts.recomputed) if again)
        devices = np.array(cuts.ranks * (len(cuts.first) // len(cuts.ranks)))
        stages = self.chain.stages(np.array(cuts.first), devices, recomputed)
        return on_groups(stages, self._groups) if self._groups else stages

    def balanced(self, ranks: Sequence[int]) -> Cuts:
        """Finds the cuts whose greatest compute time of a stage is least, for devices in a given order."""
        seconds = self.chain.seconds_before[list(ranks) * self.pipeline.stages_per_device]
        first = np.empty(len(seconds), dtype=np.int64)
        cut_by_load(seconds, first)
        return Cuts(tuple(first.tolist()), tuple(ranks))

    def singles(self) -> Iterator[Cuts]:
        """Yields the cuts of one device, the fastest first; devices of equal time and memory count once."""
        problem, seen = self.placed, set()
        for device in np.argsort(problem.single_device_s, kind="stable").tolist():
            kind = problem.single_device_s[device], problem.cluster.devices[device].memory_bytes
            if kind not in seen:
                seen.add(kind)
                yield Cuts(tuple(range(self.pipeline.stages_per_device)), (device,))

    def _single(self) -> PipelineTime:
        return self.pipelined.simulate(min(map(self.stages, self.singles()), key=self.pipelined.score))

    @cached_property
    def baselines(self) -> PipelineBaselines:
        """The steps without a pipeline."""
        alone = replace(self, pipeline=replace(self.pipeline, replicas=1), groups=())
        cut = (self if self.pipeline.replicas == 1 else alone)._single()
        parallel = self.data_parallel()
        if not isinstance(self.whole, Problem):
            return PipelineBaselines(cut, parallel, "unknown" if self.whole else "slower")
        uncut = PipelineObjective(self.whole, Pipeline(GPIPE, 1))._single()
        if (not uncut.fits, uncut.total_s) < (not cut.fits, cut.total_s):
            return PipelineBaselines(uncut, parallel, "faster")
        return PipelineBaselines(cut, parallel, "slower" if uncut.fits else "too large")

    def data_parallel(self) -> DataParallelPipeline:
        """Simulates data parallelism with accumulated gradients, on the devices that make the step shortest.

        If there is a step of the whole batch, and a batch of their own for each device is faster, it is that.
        Every replica computes its microbatches one after the other and adds their gradients up; the last of
        them overlaps with the all-reduce, as `no_sync` of PyTorch has it. The slowest one bounds the step.
        """
        problem, arrays, count = self.problem, self.pipelined.arrays, self.pipeline.microbatches
        steps = []
        for step in data_parallel_steps(problem):
            counts = [math.ceil(count / step.n_replicas)] * step.n_replicas
            step_s = before_last_s(problem, arrays, step.devices, counts) + step.step_s
            steps.append(DataParallelPipeline(**vars(step) | {"step_s": step_s}))
        for step in data_parallel_steps(self.whole) if isinstance(self.whole, Problem) else ():
            of_batches = vars(step) | {"step_s": step.seconds_per_batch}
            steps.append(DataParallelPipeline(**of_batches, own_batches=True))
        return min(steps, key=lambda step: (not step.fits, step.step_s, step.n_replicas, step.own_batches))
