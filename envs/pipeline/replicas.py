"""Simulates replicas of a pipeline: each runs its share of the microbatches, then gradients are summed.

The gradients that a device makes are summed over the devices at its position in all replicas as in data
parallelism (`envs.simulator.data_parallel`): in buckets, in the order in which the first replica has them.
A bucket starts when the last accumulation of its gradients ends in the slowest replica and the bucket before
has ended; beside it, ops of the device take `overlap_slowdown` times as long, which delays its updates but no
other device. An update waits for the sums that it reads. With `shard_optimizer` the sums are reduce-scatters;
the weights at a position are gathered when the last replica has ended its updates.

Source of sharding: Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.arrays import DONE, FROM, PipelineArrays, Sums, pipeline_arrays
from envs.pipeline.groups import Groups, groups_for, part_of, sharded, shares_of, updated_bytes
from envs.pipeline.pipeline import ONE_F_ONE_B, Pipeline, PipelineError
from envs.pipeline.simulate import NO_SUMS, ActionColumns, PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages
from envs.pipeline.step import STUCK
from envs.problem import Problem
from envs.simulator.all_reduce import all_reduce_seconds, buckets_of, gradients_of, ring_seconds
from envs.simulator.data_parallel import data_parallel_on_all, overlap
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import shortened

NO_CURVES = np.zeros((0, 0))


class _Run(NamedTuple):
    list_of: NDArray[np.int32]  # (n_ops,)
    peak_bytes: FloatArray  # (n_devices of the replica,)


@dataclass(frozen=True, eq=False)
class Replicas:
    """Replicas of a pipeline on groups of devices; in their stages, devices are positions in a group.

    Attributes:
        problem: the graph on all devices.
        pipeline: the pipeline with the microbatches of all replicas.
    """

    problem: Problem
    pipeline: Pipeline
    groups: Groups

    @cached_property
    def members(self) -> list[PipelinedProblem]:
        """The pipeline of each replica; replicas that are alike have the same one."""
        of_kind, shards = dict[tuple[object, ...], PipelinedProblem](), self.pipeline.shard_optimizer
        whole = sharded(self.problem, len(self.groups)) if shards else self.problem
        members = []
        for group, share in zip(self.groups, self._shares, strict=True):
            part, alone = part_of(whole, group), replace(self.pipeline, microbatches=share, replicas=1)
            links = part.arrays.bandwidth, part.arrays.latency, part.arrays.n_half, part.op_seconds
            devices = [replace(device, name="-") for device in part.cluster.devices]
            key = share, str(devices), *(matrix.tobytes() for matrix in links)
            members.append(of_kind.setdefault(key, PipelinedProblem(part, alone)))
        return members

    @cached_property
    def _shares(self) -> tuple[int, ...]:
        return shares_of(self.problem, self.groups, self.pipeline.microbatches)

    @cached_property
    def _distinct(self) -> list[PipelinedProblem]:
        return list(dict.fromkeys(self.members))

    @cached_property
    def _summed(self) -> IntArray:
        """Gradients that replicas sum, ascending, int64 (n_summed,)."""
        tensors, phases = gradients_of(self.problem.graph), np.array(self.problem.graph.phases)
        is_backward: NDArray[np.bool_] = phases[self.problem.graph.tensor_producer[tensors]] == "backward"
        return tensors[is_backward]

    def run(
        self,
        stages: Stages,
        make_peak: Callable[[PipelinedProblem], FloatArray],
        *,
        until_s: float = np.inf,
        curves: FloatArray = NO_CURVES,
    ) -> tuple[float, dict[PipelinedProblem, _Run]]:
        """Simulates a step.

        Args:
            make_peak: makes the array of the peaks of a replica, which are raised.
            until_s: longest replica whose memory is found, seconds.
            curves: bytes held in equal parts of the step, (n_devices, n_parts); written.

        Returns:
            Step time in seconds, or `STUCK`, and the runs of distinct replicas.
        """
        runs, sums = dict[PipelinedProblem, _Run](), self._sums(stages)
        if sums is None:
            return STUCK, runs
        total_s, of_member = sums
        for member, member_sums in zip(self._distinct, of_member, strict=True):
            peak = make_peak(member)
            end_s, list_of = member._run(stages, peak, until_s, sums=member_sums)
            runs[member], total_s = _Run(list_of, peak), max(total_s, end_s)
        if self.pipeline.shard_optimizer:
            total_s = max(total_s, self._gathered_s(stages))
        total_s = self._data_parallel_s if self._is_data_parallel(stages) else total_s
        for member, group in zip(self.members, self.groups, strict=True) if curves.size else ():
            member_sums = of_member[self._distinct.index(member)]._replace(least_s=total_s)
            curve = np.zeros((len(group), curves.shape[1]))
            member._run(stages, np.zeros(len(group)), curve=curve, sums=member_sums)
            curves[list(group)] = curve
        return total_s, runs

    def _sums(self, stages: Stages) -> tuple[float, list[Sums]] | None:
        """Finds when the last sum is there, and when each is and each replica may start its updates."""
        n_tensors = self.problem.graph.n_tensors
        is_summed, last_s = np.zeros(n_tensors, dtype=np.int64), 0.0
        is_summed[self._summed] = 1
        of_member, ended_s = list[Sums](), []
        for member in self._distinct:
            begin_s = np.zeros(member.problem.n_devices)
            of_member.append(Sums(is_summed, np.zeros((2, n_tensors)), begin_s, 0.0))
            if member._run(stages, np.zeros(0), sums=of_member[-1])[0] == STUCK:
                return None
            ended_s.append(member.end_s(stages, before_updates=True))
        if self._is_data_parallel(stages):
            return 0.0, [NO_SUMS] * len(of_member)
        maker = stages.device_of[self.problem.graph.tensor_producer[self._summed]]
        for position in np.unique(maker).tolist():
            tensors = self._summed[maker == position]
            done_s = np.array([sums.times_s[DONE, tensors] for sums in of_member])
            arrived_s, computed_s = self._summed_s(position, tensors, done_s, np.array(ended_s)[:, position])
            last_s = max(last_s, float(arrived_s.max()))
            for sums, end_s in zip(of_member, computed_s.tolist(), strict=True):
                sums.times_s[FROM, tensors] = arrived_s
                sums.begin_s[position] = end_s + self.problem.cluster.op_gap_s if end_s else 0.0
        return last_s, of_member

    def _summed_s(
        self, position: int, tensors: IntArray, done_s: FloatArray, ended_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Sums the gradients that the devices at a position make.

        Args:
            done_s: end of the last accumulation of each gradient in distinct replicas, (n, n_gradients).
            ended_s: end of the last action before the updates, (n,).

        Returns:
            When the sum of each gradient is there, (n_gradients,), and these actions ended, (n,).
        """
        order, size = np.argsort(done_s[0], kind="stable"), self.problem.graph.tensor_bytes[tensors]
        bucket = np.empty(len(tensors), dtype=np.int64)
        bucket[order] = buckets_of(size[order])
        ready_s = np.zeros((len(done_s), int(bucket.max()) + 1))
        for of_member, row in zip(done_s, ready_s, strict=True):
            np.maximum.at(row, bucket, of_member)
        seconds = self._ring_seconds(position, np.bincount(bucket, size).astype(np.float64))
        devices = [member.problem.cluster.devices[position] for member in self._distinct]
        slowdown = np.array([device.overlap_slowdown for device in devices])
        arrived_s, computed_s = overlap(seconds, ready_s, ended_s, slowdown)
        return arrived_s[bucket], computed_s

    def _ring_seconds(self, position: int, sizes: FloatArray) -> FloatArray:
        """Seconds of all-reduces, or of reduce-scatters and gathers, among the devices at a position."""
        ring = np.sort([group[position] for group in self.groups])
        if self.pipeline.shard_optimizer:
            return ring_seconds(self.problem, ring, sizes) / 2
        return all_reduce_seconds(self.problem, ring, sizes)

    def _gathered_s(self, stages: Stages) -> float:
        """Returns when all weights are gathered, each position's at once, after a simulation."""
        units, sizes = self.problem.graph.units, np.minimum(*updated_bytes(self.problem.graph))
        position_of = stages.device_of[units.items[units.ptr[:-1]]]
        held = np.bincount(position_of, sizes, len(self.groups[0])).astype(np.float64)
        ended_s = np.max([member.end_s(stages) for member in self._distinct], axis=0)
        ends = [
            ended_s[position] + self._ring_seconds(position, held[position : position + 1])[0]
            for position in np.flatnonzero(held).tolist()
        ]
        return float(max(ends, default=0.0))

    def _is_data_parallel(self, stages: Stages) -> bool:
        return len(self.groups[0]) == 1 and not stages.recomputed and not self.pipeline.shard_optimizer

    @cached_property
    def _data_parallel_s(self) -> float:
        arrays, devices = pipeline_arrays(self.problem), [group[0] for group in self.groups]
        before_s = before_last_s(self.problem, arrays, devices, self._shares)
        return before_s + data_parallel_on_all(self.problem).step_s


def before_last_s(
    problem: Problem, arrays: PipelineArrays, devices: Sequence[int], counts: Sequence[int]
) -> float:
    """Computes the seconds before the last microbatch where each device runs the whole graph.

    Args:
        counts: microbatches of each of these devices, which add their gradients up; the slowest one counts.
    """
    seconds, gap_s = problem.op_seconds[(arrays.phase == 0) | (arrays.phase == 1)], problem.cluster.op_gap_s
    computes_s = np.where(seconds > 0, seconds + gap_s, 0.0).sum(axis=0)
    adds_s = np.where(arrays.accumulate_s > 0, arrays.accumulate_s + gap_s, 0.0).sum(axis=0)
    issue_s = problem.cluster.issue_s if problem.cluster.issue_per == "op" else 0.0
    issued_s = issue_s * ((seconds > 0).sum(axis=0) + (arrays.accumulate_s > 0).sum(axis=0))
    microbatch_s = np.maximum(computes_s + adds_s, issued_s)[list(devices)]
    return float(((np.array(counts) - 1) * microbatch_s).max())


@dataclass(frozen=True, eq=False)
class ReplicatedProblem(PipelinedProblem):
    """Replicas of a pipeline; stages are on devices of the first one, and may name the groups of all."""

    @cached_property
    def _of_groups(self) -> dict[tuple[Groups, Pipeline], Replicas]:
        return {}

    def replicas(self, groups: Groups, pipeline: Pipeline | None = None) -> Replicas:
        """Returns the replicas on groups of devices."""
        key = groups, pipeline or self.pipeline
        return self._of_groups.setdefault(key, Replicas(self.problem, key[1], groups))

    def _local(self, stages: Stages) -> tuple[Replicas, Stages]:
        """Returns the replicas of stages, and their stages on positions.

        Raises:
            PipelineError: the groups are not as many as the replicas, or an op is on none of the first group.
        """
        n_replicas, position = int(self.pipeline.replicas), np.full(self.problem.n_devices, -1)
        groups = stages.groups or groups_for(self.problem.cluster, n_replicas)[0]
        if len(groups) != n_replicas:
            raise PipelineError(
                f"the placement has {len(groups)} groups of devices; ask for {len(groups)} replicas, not "
                f"{n_replicas}"
            )
        position[list(groups[0])] = np.arange(len(groups[0]))
        if (outside := position[stages.device_of] < 0).any():
            op, names = int(np.argmax(outside)), [device.name for device in self.problem.cluster.devices]
            raise PipelineError(
                f"op '{shortened(self.problem.graph.op_names[op])}' is on '{names[stages.device_of[op]]}', "
                f"but the first of {n_replicas} replicas has {', '.join(names[d] for d in groups[0])}; "
                "place it there, or name other groups"
            )
        device_of, of_stages = position[stages.device_of], position[stages.devices]
        local = replace(stages, device_of=device_of, devices=of_stages, groups=())
        if len(groups[0]) > 1 or stages.recomputed or self.pipeline.shard_optimizer:
            return self.replicas(groups), local
        local = replace(local, stage_of=np.minimum(local.stage_of, 0), devices=local.devices[:1])
        return self.replicas(groups, replace(self.pipeline, schedule=ONE_F_ONE_B)), local

    def _score(self, stages: Stages, until_s: float) -> tuple[float, float]:
        replicas, local = self._local(stages)
        total_s, runs = replicas.run(local, PipelinedProblem.least_bytes, until_s=until_s)
        total_s = total_s if runs else np.inf
        if total_s > until_s:
            return np.inf, total_s
        return sum(member.over_bytes(runs[member].peak_bytes) for member in replicas.members if runs), total_s

    def _simulate(self, stages: Stages) -> PipelineTime:
        replicas, local = self._local(stages)
        total_s, runs = replicas.run(local, lambda member: np.zeros(member.problem.n_devices))
        self._check_ends(total_s)
        busy_s, peak = np.zeros((2, self.problem.n_devices))
        columns, n_before = list[ActionColumns](), 0
        for member, group in zip(replicas.members, replicas.groups, strict=True):
            busy_s[list(group)] = member._busy_s(local, runs[member].list_of)
            peak[list(group)] = runs[member].peak_bytes
            device, kind, stage, microbatch, *times = member._columns(local)
            columns.append((np.array(group)[device], kind, stage, microbatch + n_before, times[0], times[1]))
            n_before += member.pipeline.microbatches
        order = np.argsort(np.concatenate([of_member[0] for of_member in columns]), kind="stable")
        merged = tuple(np.concatenate(column)[order] for column in zip(*columns, strict=True))
        return self._pipeline_time(total_s, busy_s, peak, merged)  # type: ignore[arg-type]  # six columns

    def _memory(self, stages: Stages, n_parts: int) -> FloatArray:
        replicas, local = self._local(stages)
        curves = np.zeros((self.problem.n_devices, n_parts))
        replicas.run(local, lambda member: np.zeros(0), curves=curves)
        return curves


def on_groups(stages: Stages, groups: Groups) -> Stages:
    """Returns stages on positions in a group as stages on the devices of the first one."""
    devices = np.array(groups[0])
    device_of, of_stages = devices[stages.device_of], devices[stages.devices]
    return replace(stages, device_of=device_of, devices=of_stages, groups=groups)


def pipelined_of(problem: Problem, pipeline: Pipeline) -> PipelinedProblem:
    """Makes the problem of a pipeline, or of replicas of it."""
    return (PipelinedProblem if pipeline.replicas == 1 else ReplicatedProblem)(problem, pipeline)
