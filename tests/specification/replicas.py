"""Replicas of a pipeline in plain Python: groups one by one, then sums bucket by bucket, then updates.

It defines what `envs.pipeline.replicas` computes; `tests/envs/pipeline/test_replicas.py` compares it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from envs.pipeline.pipeline import Pipeline
from envs.pipeline.stages import Stages
from envs.problem import Problem
from tests.specification.pipelined_step import Instance, PlainStep, _Plain

MIB = 2**20


@dataclass
class PlainReplicas:
    total_s: float
    steps: list[PlainStep]
    problems: list[Problem]

    def peak_bytes(self, stages: Stages) -> list[float]:
        """Peaks of all devices, group by group."""
        peaks = []
        for step, problem in zip(self.steps, self.problems, strict=True):
            resident = np.bincount(stages.device_of, problem.graph.resident_bytes, problem.n_devices)
            peaks += [step.peak_bytes(device, float(held)) for device, held in enumerate(resident)]
        return peaks


class _Held(_Plain):
    """A replica whose updates wait for sums of gradients, and for a time of each device.

    On an egress bus, copies of these sums stand behind those of all actions.
    """

    def __init__(self, problem: Problem, pipeline: Pipeline, stages: Stages) -> None:
        super().__init__(problem, pipeline, stages)
        self.sum_s: dict[int, float] = {}
        self.begin_s: dict[int, float] = {}
        self.waits_s = 0.0

    def sequences(self) -> dict[int, list[Instance]]:
        found = super().sequences()
        for own in found.values():
            n_before = sum(name[0] != "op" or self.phase[int(str(name[1]))] != "optimizer" for name in own)
            own.insert(n_before, ("queue", 0, 0))
        return found

    def send_copies(self, made: Instance, tensor: int) -> None:
        if not self.is_gradient(tensor) or int(str(made[2])) < self.count - 1:
            super().send_copies(made, tensor)

    def queue_sums(self, device: int) -> None:
        last = self.count - 1
        for tensor in range(self.graph.n_tensors if self.problem.cluster.sharing == "egress" else 0):
            if self.is_gradient(tensor) and self.home(tensor) == device:
                made = ("add", tensor, last) if last else ("op", _maker(self, tensor), 0)
                self.waits_s = self.sum_s.get(tensor, 0.0)
                super().send_copies(made, tensor)

    def instance(self, tensor: int, reader: Instance) -> Instance:
        is_update = self.phase[int(str(reader[1]))] == "optimizer"
        self.waits_s = self.sum_s.get(tensor, 0.0) if is_update else 0.0
        return super().instance(tensor, reader)

    def made_s(self, maker: Instance) -> float | None:
        made = super().made_s(maker)
        return made if made is None else max(made, self.waits_s)

    def try_run(self, device: int, instance: Instance) -> bool:
        if instance[0] == "queue":
            self.queue_sums(device)
            return True
        if instance[0] == "op" and self.phase[int(str(instance[1]))] == "optimizer":
            self.free[device] = max(self.free[device], self.begin_s.get(device, 0.0))
        return super().try_run(device, instance)


def plain_replicas(
    problem: Problem,
    parts: Sequence[Problem],
    pipelines: Sequence[Pipeline],
    stages: Stages,
    groups,
    shard: bool,
) -> PlainReplicas | None:
    """Simulates a step of replicas.

    Args:
        parts: problem of each replica.
        stages: of each, on positions in a group.
    """
    graph, first = problem.graph, [_Held(*each, stages) for each in zip(parts, pipelines, strict=True)]
    if any(each.run() is None for each in first):
        return None
    made = [
        tensor for tensor in range(graph.n_tensors) if graph.phases[_maker(first[0], tensor)] == "backward"
    ]
    gradients = [tensor for tensor in made if first[0].is_gradient(tensor)]
    if "optimizer" not in graph.phases:
        gradients = [tensor for tensor in made if not first[0].readers[tensor]]
    sums, begins, last_s = dict[int, float](), [dict[int, float]() for _ in first], 0.0
    for position in range(len(groups[0])):
        own = [tensor for tensor in gradients if first[0].home(tensor) == position]
        ring = sorted(group[position] for group in groups)
        arrived, ended = _sum(problem, first, own, position, ring, shard)
        sums |= arrived
        last_s = max([last_s, *arrived.values()])
        for begin, end_s in zip(begins, ended, strict=True):
            if own:
                begin[position] = end_s + problem.cluster.op_gap_s if end_s else 0.0
    steps = []
    for part, pipeline, begin in zip(parts, pipelines, begins, strict=True):
        plain = _Held(part, pipeline, stages)
        plain.sum_s, plain.begin_s = sums, begin
        step = plain.run()
        assert step is not None
        steps.append(step)
    total_s = max([last_s, *(step.total_s for step in steps)])
    if shard:
        total_s = max(total_s, _gathered_s(problem, steps, stages, groups))
    return PlainReplicas(total_s, steps, list(parts))


def _sum(problem, replicas, tensors, position, ring, shard):
    """When the sum of each gradient is there, and when each replica ended what comes before its updates."""
    done, ended = [], []
    for plain in replicas:
        last = plain.count - 1
        names = (
            [("add", each, last) for each in tensors],
            [("op", _maker(plain, each), last) for each in tensors],
        )
        done.append(
            {
                t: max(plain.step.finish_s.get(n, 0.0) for n in pair)
                for t, *pair in zip(tensors, *names, strict=True)
            }
        )
        before = [
            finish
            for name, finish in plain.step.finish_s.items()
            if plain.step.device_of[name] == position
            and (name[0] != "op" or plain.phase[int(name[1])] != "optimizer")
        ]
        ended.append(max(before, default=0.0))
    order = sorted(tensors, key=lambda tensor: (done[0][tensor], tensor))
    buckets, filled = [[]], 0.0
    for tensor in order:
        if filled >= (MIB if len(buckets) == 1 else 25 * MIB):
            buckets.append([])
            filled = 0.0
        buckets[-1].append(tensor)
        filled += float(problem.graph.tensor_bytes[tensor])
    arrived, now_s = {}, 0.0
    slow = [plain.problem.cluster.devices[position].overlap_slowdown for plain in replicas]
    busy = [[] for _ in replicas]  # spans of sums
    for bucket in buckets if tensors else ():
        size = sum(float(problem.graph.tensor_bytes[tensor]) for tensor in bucket)
        ready = max(
            _slowed(each[t], spans, factor)
            for each, spans, factor in zip(done, busy, slow, strict=True)
            for t in bucket
        )
        start = max(now_s, ready)
        now_s = start + _ring_s(problem, ring, size, shard)
        for spans in busy:
            spans.append((start, now_s))
        arrived |= dict.fromkeys(bucket, now_s)
    return arrived, [_slowed(*each) for each in zip(ended, busy, slow, strict=True)]


def _maker(plain, tensor):
    return int(plain.graph.tensor_producer[tensor])


def _slowed(done_s, spans, factor):
    """When work that would be done at a time is done, if it is slower within some spans."""
    now_s, left_s = 0.0, done_s
    for start, end in spans:
        if left_s <= start - now_s:
            return now_s + left_s
        left_s, now_s = left_s - (start - now_s), start
        if left_s * factor <= end - start:
            return now_s + left_s * factor
        left_s, now_s = left_s - (end - start) / factor, end
    return now_s + left_s


def _ring_s(problem, ring, size, shard):
    cluster, n = problem.cluster, len(ring)
    rounds = [
        (size / n + float(cluster.n_half_matrix[a, b])) / float(cluster.bytes_per_s[a, b])
        + float(cluster.latency_s[a, b])
        for a, b in zip(ring, ring[1:] + ring[:1], strict=True)
    ]
    ring_s = (1 if shard else 2) * (n - 1) * (max(rounds) + cluster.transfer_gap_s)
    links = [
        [(float(cluster.bytes_per_s[a, b]), float(cluster.latency_s[a, b])) for b in ring if b != a]
        for a in ring
    ]
    slowest = min(rate for row in links for rate, _ in row)
    mates = min(1 + sum(rate > slowest for rate, _ in row) for row in links)
    if shard or mates == 1:
        return ring_s
    far, near = (
        max(latency for row in links for rate, latency in row if (rate > slowest) == is_near)
        for is_near in (False, True)
    )
    return min(ring_s, 2 * (size / slowest + math.ceil(math.log2(n / mates)) * far + (mates - 1) * near))


def _gathered_s(problem, steps, stages, groups):
    graph = problem.graph
    weights, gradients = defaultdict(float), defaultdict(float)
    for tensor, (maker, owner) in enumerate(zip(graph.tensor_producer, graph.tensor_owner, strict=True)):
        if graph.op_types[maker] == "parameter":
            weights[graph.unit_of[maker]] += float(graph.tensor_bytes[tensor])
        elif owner >= 0 and graph.phases[maker] == "backward":
            gradients[graph.unit_of[owner]] += float(graph.tensor_bytes[tensor])
    of_position = defaultdict(float)
    for op in range(graph.n_ops):
        unit = graph.unit_of[op]
        of_position[int(stages.device_of[op])] += min(weights.pop(unit, 0.0), gradients.get(unit, 0.0))
    last_s = 0.0
    for position, size in of_position.items():
        ends = [s for step in steps for name, s in step.finish_s.items() if step.device_of[name] == position]
        if size:
            ring = sorted(group[position] for group in groups)
            last_s = max(last_s, max(ends, default=0.0) + _ring_s(problem, ring, size, True))
    return last_s
