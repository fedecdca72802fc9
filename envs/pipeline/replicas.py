"""Simulates replicas of a pipeline: each runs its share of the microbatches, then gradients are summed.

The gradients that a device makes are summed over the devices at its position in all replicas as in data
parallelism (`envs.simulator.data_parallel`): in buckets, in the order in which the first replica has them. The
all-reduce of a bucket starts when the last accumulation of its gradients ends in the slowest replica and the
bucket before has ended; beside it, ops of the device take `overlap_slowdown` times as long, which delays its
updates but no other device. An update waits for the sums that it reads, and for the other actions of its
device. With `shard_optimizer` the sums are reduce-scatters, and when the last replica has ended the updates
of a position, their weights are gathered. Replicas of one device each are data parallelism.

Source of sharding: Rajbhandari et al. 2020, "ZeRO", arXiv 1910.02054, section 5.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.arrays import PipelineArrays, Sums, pipeline_arrays
from envs.pipeline.groups import Groups, groups_for, part_of, sharded, shares_of, updated_bytes
from envs.pipeline.pipeline import ONE_F_ONE_B, Pipeline, PipelineError
from envs.pipeline.simulate import NO_SUMS, PipelinedProblem, PipelineTime
from envs.pipeline.stages import Stages
from envs.problem import Problem
from envs.simulator.all_reduce import buckets_of, gradients_of, ring_seconds
from envs.simulator.data_parallel import data_parallel_on_all, overlap
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import shortened


class _Run(NamedTuple):
    """A simulated replica."""

    list_of: NDArray[np.int32]  # (n_ops,)
    peak_bytes: FloatArray  # (n_devices of the replica,)


@dataclass(frozen=True, eq=False)
class Replicas:
    """Replicas of a pipeline on groups of devices, which positions in a group stand for.

    Attributes:
        problem: the graph on all devices.
        pipeline: with the microbatches of all replicas.
        groups: devices of each replica.
    """

    problem: Problem
    pipeline: Pipeline
    groups: Groups

    @cached_property
    def shares(self) -> tuple[int, ...]:
        """Microbatches of each replica."""
        return shares_of(self.problem, self.groups, self.pipeline.microbatches)

    @cached_property
    def members(self) -> list[PipelinedProblem]:
        """The pipeline of each replica; replicas that are alike have the same one."""
        whole, members = self.problem, dict[tuple[object, ...], PipelinedProblem]()
        whole = sharded(whole, len(self.groups)) if self.pipeline.shard_optimizer else whole
        found = []
        for group, share in zip(self.groups, self.shares, strict=True):
            part, pipeline = part_of(whole, group), replace(self.pipeline, microbatches=share, replicas=1)
            devices = tuple(replace(device, name="-") for device in part.cluster.devices)
            links = part.arrays.bandwidth, part.arrays.latency, part.arrays.n_half, part.op_seconds
            key = share, str(devices), *(each.tobytes() for each in links)
            found.append(members.setdefault(key, PipelinedProblem(part, pipeline)))
        return found

    @cached_property
    def _summed(self) -> IntArray:
        """Gradients that replicas sum, ascending, int64 (n_summed,)."""
        graph = self.problem.graph
        tensors, phases = gradients_of(graph), np.array(graph.phases)
        return tensors[phases[graph.tensor_producer[tensors]] == "backward"]

    def run(
        self, stages: Stages, least_bytes: Callable[[PipelinedProblem], FloatArray], until_s: float = np.inf
    ) -> tuple[float, dict[PipelinedProblem, _Run]]:
        """Simulates a step.

        Args:
            stages: of a replica; devices are positions in its group.
            least_bytes: makes the bytes that peaks start from, (n_devices,) or (0,), of each member.
            until_s: longest replica whose memory is found, seconds.

        Returns:
            Step time in seconds, negative where devices wait for each other, and the run of each member.
        """
        runs, sums = dict[PipelinedProblem, _Run](), self._sums(stages)
        if sums is None:
            return -1.0, runs
        total_s, of_member = sums
        for member, own in of_member.items():
            peak = least_bytes(member)
            end_s, list_of = member._run(stages, peak, until_s, sums=own)
            runs[member], total_s = _Run(list_of, peak), max(total_s, end_s)
        if self.pipeline.shard_optimizer:
            total_s = max(total_s, self._gathered_s(stages))
        if self._is_data_parallel(stages):
            total_s = self._data_parallel_s
        return total_s, runs

    def memory(self, stages: Stages, n_parts: int) -> FloatArray:
        """Simulates the most bytes that devices hold in equal parts of the step, (n_devices, n_parts)."""
        total_s, _ = self.run(stages, nothing_held)
        curves = np.zeros((self.problem.n_devices, n_parts))
        _, of_member = self._sums(stages) or (0.0, {})
        for member, group in zip(self.members, self.groups, strict=True):
            curve, own = np.zeros((len(group), n_parts)), of_member[member]._replace(least_s=total_s)
            member._run(stages, np.zeros(len(group)), curve=curve, sums=own)
            curves[list(group)] = curve
        return curves

    def _sums(self, stages: Stages) -> tuple[float, dict[PipelinedProblem, Sums]] | None:
        """Finds when the last sum is there, and when each is and each replica may start its updates."""
        n_tensors, size = self.problem.graph.n_tensors, len(self.groups[0])
        is_summed = np.zeros(n_tensors, dtype=np.int64)
        is_summed[self._summed] = 1
        from_s = np.zeros(n_tensors)
        found, ended_s = dict[PipelinedProblem, Sums](), dict[PipelinedProblem, FloatArray]()
        for member in dict.fromkeys(self.members):
            found[member] = Sums(is_summed, np.zeros(n_tensors), from_s, np.zeros(size), 0.0)
            if member._run(stages, np.zeros(0), sums=found[member])[0] < 0:
                return None
            ended_s[member] = member.end_s(stages, before_updates=True)
        if self._is_data_parallel(stages):
            return 0.0, dict.fromkeys(found, NO_SUMS)
        maker, last_s = stages.device_of[self.problem.graph.tensor_producer[self._summed]], 0.0
        for position in np.unique(maker).tolist():
            tensors = self._summed[maker == position]
            done_s = np.array([sums.done_s[tensors] for sums in found.values()])
            before_s = np.array([each[position] for each in ended_s.values()])
            arrived_s, computed_s = self._sum_bucket_by_bucket(position, tensors, done_s, before_s)
            from_s[tensors] = arrived_s
            last_s = max(last_s, float(arrived_s.max()))
            for sums, end_s in zip(found.values(), computed_s.tolist(), strict=True):
                sums.begin_s[position] = end_s + self.problem.cluster.op_gap_s if end_s else 0.0
        return last_s, found

    def _sum_bucket_by_bucket(
        self, position: int, tensors: IntArray, done_s: FloatArray, before_s: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Sums the gradients that the devices at a position make.

        Args:
            done_s: end of the last accumulation of each gradient in each member, (n_members, n_gradients).
            before_s: end of the last action before the updates of each member, (n_members,).

        Returns:
            When the sum of each gradient is there, (n_gradients,), and each member ended its actions.
        """
        order, size = np.argsort(done_s[0], kind="stable"), self.problem.graph.tensor_bytes[tensors]
        bucket = np.empty(len(tensors), dtype=np.int64)
        bucket[order] = buckets_of(size[order])
        ready_s = np.zeros((len(done_s), int(bucket.max()) + 1))
        for of_member, row in zip(done_s, ready_s, strict=True):
            np.maximum.at(row, bucket, of_member)
        seconds = self._ring_seconds(position, np.bincount(bucket, size))
        slowdown = [
            member.problem.cluster.devices[position].overlap_slowdown for member in dict.fromkeys(self.members)
        ]
        arrived_s, computed_s = overlap(seconds, ready_s, before_s, np.array(slowdown))
        return arrived_s[bucket], computed_s

    def _ring_seconds(self, position: int, sizes: FloatArray) -> FloatArray:
        """Seconds of all-reduces, or of reduce-scatters and gathers, among the devices at a position."""
        ring = np.sort([group[position] for group in self.groups])
        seconds = ring_seconds(self.problem, ring, sizes)
        return seconds / 2 if self.pipeline.shard_optimizer else seconds

    def _gathered_s(self, stages: Stages) -> float:
        """Returns when all weights are gathered, each position's at once; after the simulation of updates."""
        graph, last_s = self.problem.graph, 0.0
        sizes = np.minimum(*updated_bytes(graph))
        position_of = stages.device_of[graph.units.items[graph.units.ptr[:-1]]]
        ends_s = np.max([member.end_s(stages) for member in dict.fromkeys(self.members)], axis=0)
        for position in np.unique(position_of[sizes > 0]).tolist():
            gathered = sizes[position_of == position].sum()
            seconds = self._ring_seconds(position, np.array([gathered]))
            last_s = max(last_s, ends_s[position] + float(seconds[0]))
        return last_s

    def _is_data_parallel(self, stages: Stages) -> bool:
        return len(self.groups[0]) == 1 and not stages.recomputed and not self.pipeline.shard_optimizer

    @cached_property
    def _data_parallel_s(self) -> float:
        """Seconds of the step of data parallelism with the shares of the replicas."""
        arrays, devices = pipeline_arrays(self.problem), [group[0] for group in self.groups]
        before_s = before_last_s(self.problem, arrays, devices, self.shares)
        return before_s + data_parallel_on_all(self.problem).step_s


def nothing_held(member: PipelinedProblem) -> FloatArray:
    """Returns no bytes for each device of a replica, (n_devices,)."""
    return np.zeros(member.problem.n_devices)


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
    return float(((np.array(counts) - 1) * (computes_s + adds_s)[list(devices)]).max())


@dataclass(frozen=True, eq=False)
class ReplicatedProblem(PipelinedProblem):
    """Replicas of a pipeline; stages are those of the first one, with the groups of devices of all."""

    @cached_property
    def _of_groups(self) -> dict[tuple[Groups, Pipeline], Replicas]:
        return {}

    @cached_property
    def default_groups(self) -> Groups:
        """The groups of stages that name none: the first of `groups_for`."""
        return groups_for(self.problem.cluster, int(self.pipeline.replicas))[0]

    def replicas(self, groups: Groups, pipeline: Pipeline | None = None) -> Replicas:
        """Returns the replicas on groups of devices."""
        key = groups, pipeline or self.pipeline
        if key not in self._of_groups:
            self._of_groups[key] = Replicas(self.problem, key[1], groups)
        return self._of_groups[key]

    def _local(self, stages: Stages) -> tuple[Replicas, Stages]:
        """Returns the replicas of stages, and their stages with positions in a group for devices.

        Raises:
            PipelineError: the groups are not as many as the replicas, or an op is on none of the first group.
        """
        groups, n_replicas = stages.groups or self.default_groups, int(self.pipeline.replicas)
        if len(groups) != n_replicas:
            raise PipelineError(
                f"the placement has {len(groups)} groups of devices, but {n_replicas} replicas are asked for; "
                "ask for as many as it has"
            )
        position = np.full(self.problem.n_devices, -1)
        position[list(groups[0])] = np.arange(len(groups[0]))
        outside = position[stages.device_of] < 0
        if outside.any():
            op = int(np.argmax(outside))
            names = [device.name for device in self.problem.cluster.devices]
            raise PipelineError(
                f"op '{shortened(self.problem.graph.op_names[op])}' is on '{names[stages.device_of[op]]}', which "
                f"is not in the first of {n_replicas} groups of devices, {', '.join(names[d] for d in groups[0])}; "
                "place it on one of these, or name other groups"
            )
        local = replace(
            stages, device_of=position[stages.device_of], devices=position[stages.devices], groups=()
        )
        if len(groups[0]) > 1 or stages.recomputed or self.pipeline.shard_optimizer:
            return self.replicas(groups), local
        accumulates = replace(self.pipeline, schedule=ONE_F_ONE_B)
        whole = replace(local, stage_of=np.minimum(local.stage_of, 0), devices=np.zeros(1, dtype=np.int64))
        return self.replicas(groups, accumulates), whole

    def score(self, stages: Stages, *, until_s: float = np.inf) -> tuple[float, float]:
        """Simulates the memory and the step time alone, as that of one pipeline does."""
        replicas, local = self._local(stages)
        total_s, runs = replicas.run(local, PipelinedProblem.least_bytes, until_s)
        total_s = total_s if total_s >= 0 else np.inf
        if total_s > until_s:
            return np.inf, total_s
        return sum(member.over_bytes(runs[member].peak_bytes) for member in replicas.members if runs), total_s

    def simulate(self, stages: Stages) -> PipelineTime:
        """Simulates one step of all replicas; microbatches are numbered replica by replica.

        Raises:
            PipelineError: the schedule cannot run these stages.
        """
        replicas, local = self._local(stages)
        total_s, runs = replicas.run(local, nothing_held)
        busy_s, peak = np.zeros((2, self.problem.n_devices))
        columns, first = [], 0
        for member, group in zip(replicas.members, replicas.groups, strict=True) if runs else ():
            busy_s[list(group)] = member._busy_s(local, runs[member].list_of)
            peak[list(group)] = runs[member].peak_bytes
            device, kind, stage, microbatch, *times = member._columns(local)
            columns.append((np.array(group)[device], kind, stage, microbatch + first, *times))
            first += member.pipeline.microbatches
        merged = [np.concatenate(column) for column in zip(*columns, strict=True)]
        order = np.argsort(merged[0], kind="stable") if merged else []
        return self._pipeline_time(total_s, busy_s, peak, tuple(each[order] for each in merged))

    def memory(self, stages: Stages, n_parts: int) -> FloatArray:
        """Simulates the most bytes that each device holds in parts of the step, (n_devices, n_parts)."""
        replicas, local = self._local(stages)
        return replicas.memory(local, n_parts)


def on_groups(stages: Stages, groups: Groups) -> Stages:
    """Returns stages on positions in a group as stages on the devices of the first one."""
    devices = np.array(groups[0])
    return replace(
        stages, device_of=devices[stages.device_of], devices=devices[stages.devices], groups=groups
    )


def pipelined_of(problem: Problem, pipeline: Pipeline) -> PipelinedProblem:
    """Makes the problem of a pipeline, or of replicas of it."""
    return (PipelinedProblem if pipeline.replicas == 1 else ReplicatedProblem)(problem, pipeline)
