"""Simulates a pipelined step under a placement."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.agenda import agenda_of
from envs.pipeline.arrays import (
    N_KINDS,
    OPTIMIZER_PHASE,
    Agenda,
    PipelineArrays,
    SecondRuns,
    Sums,
    pipeline_arrays,
    placed_arrays,
    second_runs,
)
from envs.pipeline.chain import Chain, chain_of
from envs.pipeline.pipeline import AUTO, CHOSEN_FROM, Pipeline, PipelineError
from envs.pipeline.stages import Stages
from envs.pipeline.step import STUCK, run_pipeline
from envs.pipeline.tied import CopiedGraph, Tie, copies_of, split, ties_of
from envs.problem import Problem
from envs.problem_arrays import ProblemArrays
from envs.simulator.simulate import SimulatedStep
from graphs.system.array_types import FloatArray, IntArray

MOST_AGENDAS = 64
"""Agendas that are kept; on other devices, an agenda is made anew."""
NO_SECOND_RUNS = SecondRuns(*np.zeros((3, 0), dtype=np.int64))
NO_SUMS = Sums(np.zeros(0, dtype=np.int64), np.zeros((2, 0)), np.zeros(0), 0.0)

ActionColumns = tuple[IntArray, IntArray, IntArray, IntArray, FloatArray, FloatArray]


class ActionTime(NamedTuple):
    """The time of an action on its device; the updates have kind and stage -1."""

    device: int
    kind: int
    stage: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False, kw_only=True)
class PipelineTime(SimulatedStep):
    """One simulated pipelined step.

    Attributes:
        bubble_share: share of the devices' time in the step in which they compute nothing.
        throughput_per_s: microbatches a second.
        columns: those of `actions`, one array each.
    """

    bubble_share: float
    throughput_per_s: float
    columns: ActionColumns

    @cached_property
    def actions(self) -> tuple[ActionTime, ...]:
        """The time of each action, by device, in its order."""
        return tuple(map(ActionTime, *(column.tolist() for column in self.columns)))


@dataclass(frozen=True, eq=False)
class PipelinedProblem:
    """A graph to place on a cluster as a pipeline; the graph is the step of one microbatch.

    Raises:
        PipelineError: on construction, if the schedule or the number of replicas has yet to be chosen.
    """

    problem: Problem
    pipeline: Pipeline

    def __post_init__(self) -> None:
        if self.pipeline.schedule == AUTO:
            raise PipelineError(
                f"schedule '{AUTO}' is chosen by place and evaluate.py alone; use {', '.join(CHOSEN_FROM)}"
            )
        if self.pipeline.replicas == AUTO:
            raise PipelineError(f"{AUTO} replicas are chosen by place and evaluate.py alone; give a number")

    @cached_property
    def arrays(self) -> PipelineArrays:
        """The arrays that kernels read besides `Problem.arrays`."""
        return pipeline_arrays(self.problem)

    @cached_property
    def chain(self) -> Chain:
        """The pieces of the graph, between which stages can be cut."""
        return chain_of(self.problem)

    @cached_property
    def always_fits(self) -> bool:
        """Says whether no pipeline can overflow a device: all bytes together fit on the smallest one."""
        graph = self.problem.graph
        most = graph.resident_bytes.sum() + self.pipeline.microbatches * graph.tensor_bytes.sum()
        return bool(most <= self.problem.cluster.memory_bytes.min())

    @cached_property
    def _second_runs(self) -> tuple[ProblemArrays, PipelineArrays, SecondRuns]:
        return second_runs(self.problem.arrays, self.arrays)

    @cached_property
    def _ties(self) -> tuple[Tie, ...]:
        """Parameters that may have a copy on several devices; one microbatch is a step of a program."""
        return ties_of(self.problem.graph) if self.pipeline.microbatches > 1 else ()

    @cached_property
    def _splits(self) -> dict[bytes, tuple[PipelinedProblem, CopiedGraph | None]]:
        return {}

    def with_copies(self, stages: Stages) -> tuple[PipelinedProblem, Stages]:
        """Adds a copy of each tied parameter on each device that reads it; the same where there is none."""
        if not self._ties:
            return self, stages
        key = stages.device_of[np.concatenate([tie.ops for tie in self._ties])].tobytes()
        if key not in self._splits:
            if len(self._splits) == MOST_AGENDAS:
                self._splits.clear()
            problem, device_of = self.problem, stages.device_of
            ties = [copies for tie in self._ties if (copies := copies_of(problem.graph, tie, device_of))]
            new = split(problem.graph, ties, device_of) if ties else None
            if new is not None:
                problem = Problem(new.graph, problem.cluster, problem.op_seconds[new.original])
            self._splits[key] = (replace(self, problem=problem), new) if new else (self, new)
        pipelined, new = self._splits[key]
        return pipelined, new.stages(stages) if new else stages

    @cached_property
    def _agendas(self) -> dict[tuple[object, ...], Agenda]:
        return {}

    def step_time_s(self, stages: Stages) -> float:
        """Simulates the step time alone, in seconds, for search; infinite where devices wait for each other.

        Raises:
            PipelineError: the stages are not on the devices that the schedule has them on.
        """
        return self.score(stages, until_s=-np.inf)[1]

    def score(self, stages: Stages, *, until_s: float = np.inf) -> tuple[float, float]:
        """Simulates the memory and the step time alone, for search.

        Args:
            until_s: longest step whose memory is of interest.

        Returns:
            Sum of the bytes that devices need beyond their memory, infinite where that is of no interest, and
            step time in seconds, infinite where devices wait for each other.

        Raises:
            PipelineError: the stages are not on the devices that the schedule has them on.
        """
        pipelined, stages = self.with_copies(stages)
        return pipelined._score(stages, until_s)

    def _score(self, stages: Stages, until_s: float) -> tuple[float, float]:
        peak = self.least_bytes()
        total_s, _ = self._run(stages, peak, until_s)
        total_s = total_s if total_s >= 0 else np.inf
        return (self.over_bytes(peak) if total_s <= until_s else np.inf), total_s

    def least_bytes(self) -> FloatArray:
        """Returns the memory of each device, (n_devices,), above which peaks count; (0,) where none may."""
        memory = self.problem.cluster.memory_bytes
        return np.zeros(0) if self.always_fits else np.array(memory, dtype=np.float64)

    def over_bytes(self, peak_bytes: FloatArray) -> float:
        """Sums the bytes over the memory of each device; of peaks that began with `least_bytes`."""
        return float((peak_bytes - self.problem.cluster.memory_bytes).sum()) if len(peak_bytes) else 0.0

    def _arrays_of(self, stages: Stages) -> tuple[ProblemArrays, PipelineArrays, SecondRuns]:
        """Arrays to simulate: the problem's, or those with second runs if a stage has them."""
        return self._second_runs if stages.recomputed else (self.problem.arrays, self.arrays, NO_SECOND_RUNS)

    def _run(
        self,
        stages: Stages,
        peak: FloatArray,
        until_s: float = np.inf,
        curve: FloatArray | None = None,
        sums: Sums = NO_SUMS,
    ) -> tuple[float, NDArray[np.int32]]:
        """Simulates a step; also returns the list of each op, -1 for second runs that take no part."""
        if stages.groups:
            raise PipelineError(
                f"the placement has {len(stages.groups)} groups of devices, but one replica is asked for; "
                f"ask for {len(stages.groups)} replicas, or place one pipeline"
            )
        p, q, runs = self._arrays_of(stages)
        list_of, agenda = np.full(len(q.phase), -1, dtype=np.int32), self._agenda(stages)
        placed, count = placed_arrays(stages, self.pipeline), self.pipeline.microbatches
        curve = np.zeros((self.problem.n_devices, 0)) if curve is None else curve
        total_s = run_pipeline(p, q, runs, placed, count, agenda, sums, until_s, peak, curve, list_of)
        return total_s, list_of

    def simulate(self, stages: Stages) -> PipelineTime:
        """Simulates one pipelined step; microbatches are numbered replica by replica.

        Raises:
            PipelineError: the schedule cannot run these stages.
        """
        pipelined, stages = self.with_copies(stages)
        return pipelined._simulate(stages)

    def _simulate(self, stages: Stages) -> PipelineTime:
        peak = np.zeros(self.problem.n_devices)
        total_s, list_of = self._run(stages, peak)
        self._check_ends(total_s)
        return self._pipeline_time(total_s, self._busy_s(stages, list_of), peak, self._columns(stages))

    def _check_ends(self, total_s: float) -> None:
        if total_s == STUCK:
            raise PipelineError(
                f"schedule '{self.pipeline.schedule}' cannot run this placement: devices wait for each "
                "other; place each backward op where the forward ops are that it belongs to"
            )

    def _pipeline_time(
        self, total_s: float, busy_s: FloatArray, peak: FloatArray, columns: ActionColumns
    ) -> PipelineTime:
        whole_s = len(busy_s) * total_s
        return PipelineTime(
            total_s=total_s,
            busy_s=busy_s,
            bubble_share=1 - float(busy_s.sum()) / whole_s if whole_s else 0.0,
            peak_bytes=peak,
            fits=bool((peak <= self.problem.cluster.memory_bytes).all()),
            throughput_per_s=self.pipeline.microbatches / total_s if total_s else np.inf,
            columns=columns,
        )

    def memory(self, stages: Stages, n_parts: int) -> FloatArray:
        """Simulates the most bytes that each device holds in each of equally long parts of the step.

        Returns:
            Bytes, (n_devices, n_parts).
        """
        pipelined, stages = self.with_copies(stages)
        return pipelined._memory(stages, n_parts)

    def _memory(self, stages: Stages, n_parts: int) -> FloatArray:
        curve = np.zeros((self.problem.n_devices, n_parts))
        self._run(stages, np.zeros(self.problem.n_devices), curve=curve)
        return curve

    def _agenda(self, stages: Stages) -> Agenda:
        """Lists what each device runs; the times are those of the last simulation.

        Raises:
            PipelineError: the stages are not on the devices that the schedule has them on.
        """
        key = tuple(stages.devices.tolist()), stages.recomputed
        if key not in self._agendas:
            if len(self._agendas) == MOST_AGENDAS:
                self._agendas.clear()
            self._agendas[key] = agenda_of(self.pipeline, self.problem, stages)
        return self._agendas[key]

    def end_s(self, stages: Stages, *, before_updates: bool = False) -> FloatArray:
        """Ends of each device's actions in the last simulation, with or without its updates, seconds."""
        agenda = self._agenda(stages)
        last = agenda.ptr[1:] - 1 - before_updates
        return np.where(last >= agenda.ptr[:-1], agenda.end_s[last], 0.0)

    def _columns(self, stages: Stages) -> ActionColumns:
        """The columns of `ActionTime`; the next simulation writes new times into the agenda."""
        agenda = self._agenda(stages)
        stage, kind = np.divmod(agenda.action, N_KINDS)
        in_stage = stage < len(stages.devices)
        stage = np.where(in_stage, stage, -1)
        device = np.repeat(np.arange(len(agenda.ptr) - 1), np.diff(agenda.ptr))
        times = agenda.start_s.copy(), agenda.end_s.copy()
        return device, np.where(in_stage, kind, -1), stage, agenda.microbatch, *times

    def _busy_s(self, stages: Stages, list_of: NDArray[np.int32]) -> FloatArray:
        """Seconds that each device computes, (n_devices,)."""
        p, q, runs = self._arrays_of(stages)
        device = stages.device_of[runs.first] if stages.recomputed else stages.device_of
        ops, sums = np.flatnonzero(list_of >= 0), np.flatnonzero(q.is_gradient)
        count, adder = self.pipeline.microbatches, device[p.producer[sums]]
        times = np.where(q.phase[ops] == OPTIMIZER_PHASE, 1, count)
        op_s, sum_s = times * p.op_seconds[ops, device[ops]], (count - 1) * q.accumulate_s[sums, adder]
        n_devices = self.problem.n_devices
        busy_s = np.bincount(device[ops], op_s, n_devices) + np.bincount(adder, sum_s, n_devices)
        return busy_s.astype(np.float64)
