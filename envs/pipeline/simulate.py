"""Simulates a pipelined step under a placement."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.pipeline.arrays import (
    N_KINDS,
    OPTIMIZER_PHASE,
    ActionLayout,
    Agenda,
    PipelineArrays,
    Tables,
    pipeline_arrays,
)
from envs.pipeline.chain import Chain, chain_of
from envs.pipeline.memory import pipeline_memory
from envs.pipeline.pipeline import INTERLEAVED, Pipeline, PipelineError
from envs.pipeline.recompute import SecondRuns, second_runs, with_second_runs
from envs.pipeline.schedules import device_actions
from envs.pipeline.stages import Stages
from envs.pipeline.step import run_pipeline
from envs.problem import Problem
from envs.problem_arrays import ProblemArrays
from graphs.system.array_types import FloatArray


class ActionTime(NamedTuple):
    """The time of an action on its device; the updates have kind and stage -1."""

    device: int
    kind: int
    stage: int
    microbatch: int
    start_s: float
    end_s: float


@dataclass(frozen=True, eq=False)
class PipelineTime:
    """One simulated pipelined step.

    Attributes:
        total_s: end of the last op, seconds.
        busy_s: seconds that each device computes, (n_devices,).
        bubble_share: share of the devices' time in the step in which they compute nothing.
        throughput_per_s: microbatches a second.
        peak_bytes: greatest memory in use on each device, (n_devices,).
        fits: whether no device needs more memory than it has.
        actions: when each action ran, by device, in its order.
    """

    total_s: float
    busy_s: FloatArray
    bubble_share: float
    throughput_per_s: float
    peak_bytes: FloatArray
    fits: bool
    actions: tuple[ActionTime, ...]


@dataclass(frozen=True, eq=False)
class PipelinedProblem:
    """A graph to place on a cluster as a pipeline; the graph is the step of one microbatch."""

    problem: Problem
    pipeline: Pipeline

    @cached_property
    def arrays(self) -> PipelineArrays:
        """The arrays that kernels read besides `Problem.arrays`."""
        return pipeline_arrays(self.problem)

    @cached_property
    def chain(self) -> Chain:
        """The pieces of the graph, between which stages can be cut."""
        return chain_of(self.problem)

    @cached_property
    def _second_runs(self) -> SecondRuns:
        return second_runs(self.problem.arrays, self.arrays)

    @cached_property
    def _agendas(self) -> dict[tuple[tuple[int, ...], ...], Agenda]:
        return {}

    def step_time_s(self, stages: Stages) -> float:
        """Simulates the step time alone, in seconds, for search; infinite where devices wait for each other.

        Raises:
            PipelineError: the stages are not on the devices that the schedule has them on.
        """
        total_s, _, _ = self._run(*self._arrays_of(stages))
        return float(total_s) if total_s >= 0 else np.inf

    def _arrays_of(self, stages: Stages) -> tuple[ProblemArrays, PipelineArrays, Stages]:
        """Arrays and stages to simulate: the problem's, or those with what recomputed stages run again."""
        if stages.recomputed:
            return with_second_runs(self._second_runs, stages)
        return self.problem.arrays, self.arrays, stages

    def _run(self, p: ProblemArrays, q: PipelineArrays, stages: Stages) -> tuple[float, ActionLayout, Tables]:
        found: tuple[float, ActionLayout, Tables] = run_pipeline(
            p,
            q,
            stages.device_of,
            stages.stage_of,
            stages.devices,
            self.pipeline.splits_backward,
            self.pipeline.microbatches,
            self._agenda(stages),
        )
        return found

    def simulate(self, stages: Stages) -> PipelineTime:
        """Simulates one pipelined step.

        Raises:
            PipelineError: the schedule cannot run these stages.
        """
        p, q, stages = self._arrays_of(stages)
        total_s, layout, tables = self._run(p, q, stages)
        agenda = self._agenda(stages)
        if total_s < 0:
            raise PipelineError(
                f"schedule '{self.pipeline.schedule}' cannot run this placement: devices wait for each "
                "other; place each backward op where the forward ops are that it belongs to"
            )
        peak = np.zeros(self.problem.n_devices)
        pipeline_memory(p, q, stages.device_of, agenda, layout, tables, total_s, peak)
        busy_s = self._busy_s(p, q, stages)
        whole_s = len(busy_s) * total_s
        return PipelineTime(
            total_s=total_s,
            busy_s=busy_s,
            bubble_share=1 - float(busy_s.sum()) / whole_s if whole_s else 0.0,
            peak_bytes=peak,
            fits=bool((peak <= p.memory).all()),
            throughput_per_s=self.pipeline.microbatches / total_s if total_s else np.inf,
            actions=tuple(_action_times(agenda, len(stages.devices))),
        )

    def _agenda(self, stages: Stages) -> Agenda:
        """Lists what each device runs; the times are those of the last simulation.

        Raises:
            PipelineError: the stages are not on the devices that the schedule has them on.
        """
        key = (tuple(stages.devices.tolist()), stages.recomputed)
        if key not in self._agendas:
            self._agendas[key] = self._new_agenda(stages)
        return self._agendas[key]

    def _new_agenda(self, stages: Stages) -> Agenda:
        ranks = stages.ranks
        _check_schedule(self.pipeline, stages, self.problem)
        of_rank = device_actions(self.pipeline, len(ranks), stages.recomputed)
        actions: list[list[tuple[int, int]]] = [[] for _ in range(self.problem.n_devices)]
        for device, entries in zip(ranks.tolist(), of_rank, strict=True):
            actions[device] = [(each.stage * N_KINDS + each.kind, each.microbatch) for each in entries]
        updates = len(stages.devices) * N_KINDS
        last = self.pipeline.microbatches
        for device, each in enumerate(actions):
            each.append((updates + device, last))
        flat = np.array([entry for each in actions for entry in each], dtype=np.int64)
        ptr = np.cumsum([0, *(len(each) for each in actions)])
        return Agenda(ptr, flat[:, 0].copy(), flat[:, 1].copy(), np.zeros(len(flat)), np.zeros(len(flat)))

    def _busy_s(self, p: ProblemArrays, q: PipelineArrays, stages: Stages) -> FloatArray:
        """Seconds that each device computes, (n_devices,)."""
        n, count = self.problem.n_devices, self.pipeline.microbatches
        ops = np.flatnonzero(stages.device_of >= 0)
        home = stages.device_of[ops]
        seconds = p.op_seconds[ops, home] * np.where(q.phase[ops] == OPTIMIZER_PHASE, 1, count)
        sums = np.flatnonzero(q.is_gradient)
        adds_on = stages.device_of[p.producer[sums]]
        added = q.accumulate_s[sums, adds_on] * (count - 1)
        busy = np.bincount(home, seconds, n) + np.bincount(adds_on, added, n)
        return busy.astype(np.float64)


def _check_schedule(pipeline: Pipeline, stages: Stages, problem: Problem) -> None:
    """Checks that the stages lie as the schedule wants them: round the devices, so many on each."""
    n_each = pipeline.stages_per_device
    expected = np.tile(stages.ranks, n_each)
    if len(stages.devices) == len(expected) and (stages.devices == expected).all():
        return
    names = [problem.cluster.devices[device].name for device in stages.devices.tolist()]
    rule = (
        f"schedule '{pipeline.schedule}' has {n_each} stages on each device, in rounds over the devices"
        if pipeline.name == INTERLEAVED
        else f"schedule '{pipeline.schedule}' has one stage on each device"
    )
    raise PipelineError(f"{rule}, but the {len(names)} stages are on {', '.join(names)}")


def _action_times(agenda: Agenda, n_stages: int) -> list[ActionTime]:
    found = []
    for device in range(len(agenda.ptr) - 1):
        for entry in range(agenda.ptr[device], agenda.ptr[device + 1]):
            stage, kind = divmod(int(agenda.action[entry]), N_KINDS)
            if stage >= n_stages:
                stage = kind = -1
            start_s, end_s = float(agenda.start_s[entry]), float(agenda.end_s[entry])
            found.append(ActionTime(device, kind, stage, int(agenda.microbatch[entry]), start_s, end_s))
    return found
