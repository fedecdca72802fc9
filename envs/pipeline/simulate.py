"""Simulates a pipelined step under a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from envs.pipeline.arrays import N_KINDS, ActionLayout, Agenda, PipelineArrays, Tables, pipeline_arrays
from envs.pipeline.chain import Chain, chain_of
from envs.pipeline.memory import pipeline_memory
from envs.pipeline.pipeline import INTERLEAVED, Pipeline, PipelineError
from envs.pipeline.schedules import device_actions
from envs.pipeline.stages import Stages
from envs.pipeline.step import run_pipeline
from envs.problem import Problem
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
    def scale_s(self) -> float:
        """The pipelined step time on the fastest single device, the unit of rewards; 1 s where it is 0."""
        n_stages = self.pipeline.stages_per_device
        first = np.arange(n_stages)
        devices = range(self.problem.n_devices)
        found = [self.step_time_s(self.chain.stages(first, np.full(n_stages, each))) for each in devices]
        return min(found) or 1.0

    @cached_property
    def always_fits(self) -> bool:
        """Says whether no pipeline can overflow a device: all bytes together fit on the smallest one."""
        graph = self.problem.graph
        most = graph.resident_bytes.sum() + self.pipeline.microbatches * graph.tensor_bytes.sum()
        return bool(most <= self.problem.cluster.memory_bytes.min())

    @cached_property
    def _agendas(self) -> dict[tuple[int, ...], Agenda]:
        return {}

    def step_time_s(self, stages: Stages) -> float:
        """Simulates the step time alone, in seconds, for search; infinite where devices wait for each other.

        Raises:
            PipelineError: the stages are not on the devices that the schedule has them on.
        """
        total_s, _, _ = self._run(stages)
        return float(total_s) if total_s >= 0 else np.inf

    def _run(self, stages: Stages) -> tuple[float, ActionLayout, Tables]:
        key = tuple(stages.devices.tolist())
        if key not in self._agendas:
            self._agendas[key] = self._agenda(stages)
        found: tuple[float, ActionLayout, Tables] = run_pipeline(
            self.problem.arrays,
            self.arrays,
            stages.device_of,
            stages.stage_of,
            stages.devices,
            self.pipeline.splits_backward,
            self.pipeline.microbatches,
            self._agendas[key],
        )
        return found

    def simulate(self, stages: Stages) -> PipelineTime:
        """Simulates one pipelined step.

        Raises:
            PipelineError: the schedule cannot run these stages.
        """
        total_s, layout, tables = self._run(stages)
        agenda = self._agendas[tuple(stages.devices.tolist())]
        if total_s < 0:
            raise PipelineError(
                f"schedule '{self.pipeline.schedule}' cannot run this placement: devices wait for each "
                "other; place each backward op where the forward ops are that it belongs to"
            )
        peak = np.zeros(self.problem.n_devices)
        arrays = self.problem.arrays
        pipeline_memory(arrays, self.arrays, stages.device_of, agenda, layout, tables, total_s, peak)
        busy_s = self._busy_s(stages)
        whole_s = len(busy_s) * total_s
        return PipelineTime(
            total_s=total_s,
            busy_s=busy_s,
            bubble_share=1 - float(busy_s.sum()) / whole_s if whole_s else 0.0,
            peak_bytes=peak,
            fits=bool((peak <= arrays.memory).all()),
            throughput_per_s=self.pipeline.microbatches / total_s if total_s else np.inf,
            actions=tuple(_action_times(agenda, len(stages.devices))),
        )

    def _agenda(self, stages: Stages) -> Agenda:
        """Lists what each device runs.

        Raises:
            PipelineError: the stages are not on the devices that the schedule has them on.
        """
        ranks = stages.ranks
        check_schedule(self.pipeline, stages, [device.name for device in self.problem.cluster.devices])
        of_rank = device_actions(self.pipeline, len(ranks))
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

    def _busy_s(self, stages: Stages) -> FloatArray:
        """Seconds that each device computes, (n_devices,)."""
        problem, count = self.problem, self.pipeline.microbatches
        ops = np.arange(problem.graph.n_ops)
        seconds = problem.op_seconds[ops, stages.device_of] * np.where(self.arrays.phase == 2, 1, count)
        makers = problem.graph.tensor_producer
        home = stages.device_of[makers]
        added = self.arrays.accumulate_s[np.arange(len(makers)), home] * (count - 1)
        n = problem.n_devices
        busy = np.bincount(stages.device_of, seconds, n) + np.bincount(home, added, n)
        return busy.astype(np.float64)


def check_schedule(pipeline: Pipeline, stages: Stages, names: Sequence[str]) -> None:
    """Checks that the stages lie as the schedule wants them: round the devices, so many on each.

    Args:
        names: of the devices.

    Raises:
        PipelineError: they do not.
    """
    n_each = pipeline.stages_per_device
    expected = np.tile(stages.ranks, n_each)
    if len(stages.devices) == len(expected) and (stages.devices == expected).all():
        return
    used = [names[device] for device in stages.devices.tolist()]
    rule = (
        f"schedule '{pipeline.schedule}' has {n_each} stages on each device, in rounds over the devices"
        if pipeline.name == INTERLEAVED
        else f"schedule '{pipeline.schedule}' has one stage on each device"
    )
    raise PipelineError(f"{rule}, but the {len(used)} stages are on {', '.join(used)}")


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
