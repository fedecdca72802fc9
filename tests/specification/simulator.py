"""The simulated step in plain Python: when each op and each copy begins and ends, and the bytes held.

It defines what `envs.simulator.simulate` computes: slow, of another form, and short enough to verify by
reading. `tests/envs/simulator/test_simulate.py` compares the kernels with it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from envs.cluster.cluster import Cluster
from envs.costs.op_seconds import op_seconds
from graphs import OpGraph

seconds_of_ops = lru_cache(maxsize=16)(op_seconds)
"""An episode is many simulations of one graph on one cluster."""


@dataclass
class Reference:
    """One simulated step; seconds and bytes."""

    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    sent: dict[tuple[int, int], float] = field(default_factory=dict)
    arrival: dict[tuple[int, int], float] = field(default_factory=dict)
    total_s: float = 0.0
    transfer_bytes: float = 0.0
    peak_bytes: list[float] = field(default_factory=list)
    host_free: float = 0.0
    copies_end: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)


def simulate_plainly(graph: OpGraph, cluster: Cluster, device_of: list[int]) -> Reference:
    """Simulates one step; ops at -1 are absent."""
    step = _Step(graph, cluster, device_of)
    (step.program if cluster.schedule == "program" else step.fifo)()
    step.out.total_s = max(step.out.finish.values(), default=0.0)
    step.out.peak_bytes = step.peaks()
    return step.out


class _Step:
    def __init__(self, graph: OpGraph, cluster: Cluster, device_of: list[int]) -> None:
        self.graph, self.cluster, self.device_of = graph, cluster, device_of
        self.seconds = seconds_of_ops(graph, cluster)
        self.per_tensor = cluster.transfer_per == "tensor" and cluster.sharing == "egress"
        self.device_free = [0.0] * cluster.n_devices
        self.link_free: dict[object, float] = defaultdict(float)
        self.out = Reference(copies_end=[0.0] * cluster.n_devices, late=[0.0] * cluster.n_devices)
        for op in range(graph.n_ops):
            if graph.is_source[op] and device_of[op] >= 0:
                self.out.start[op] = self.out.finish[op] = 0.0

    def link(self, tensor: int, source: int, target: int) -> object:
        return {"egress": source, "pair": (source, target), "none": (tensor, target)}[self.cluster.sharing]

    def send(self, tensor: int, source: int, targets: list[int], not_before: float) -> None:
        """Puts one transfer on its link, after those before it."""
        cluster, others = self.cluster, [d for d in range(self.cluster.n_devices) if d != source]
        reached = others if self.per_tensor else targets
        rates = [cluster.bytes_per_s[source, target] for target in reached]
        n_half = [cluster.n_half_matrix[source, target] for target in reached]
        link = self.link(tensor, source, targets[0])
        if cluster.copies == "eager":
            not_before = max(not_before, self.device_free[source], self.device_free[targets[0]])
        seconds = (self.graph.tensor_bytes[tensor] + max(n_half)) / min(rates)
        start = max(not_before, self.link_free[link])
        end = start + seconds
        for device in (source, targets[0]):
            self.slow_ops(device, start, end)
        self.link_free[link] = end + cluster.transfer_gap_s
        self.out.transfer_bytes += self.graph.tensor_bytes[tensor]
        for target in reached:
            self.out.sent[tensor, target] = end
            self.out.arrival[tensor, target] = end + cluster.latency_s[source, target]
        if cluster.copies == "eager":
            self.device_free[source] = self.device_free[targets[0]] = self.out.arrival[tensor, targets[0]]

    def slow_ops(self, device: int, start: float, end: float) -> None:
        """Lets a copy slow the ops of a device; time in which another copy ran already does not count again.

        Ops issued before it make the device late by what they lose, as if one ran until the device is free.
        """
        beside = min(end, self.device_free[device]) - max(start, self.out.copies_end[device])
        lost_share = 1.0 - 1.0 / self.cluster.devices[device].overlap_slowdown
        self.out.late[device] += max(beside, 0.0) * lost_share
        self.out.copies_end[device] = max(self.out.copies_end[device], end)

    def issue(self) -> float:
        """Lets the host thread issue an op or a copy, or all at once; returns when that is done."""
        issued = self.out.host_free + self.cluster.issue_s
        self.out.host_free = issued if self.cluster.issue_per == "op" else 0.0
        return issued

    def execute(self, op: int, ready: float) -> None:
        device = self.device_of[op]
        seconds = self.seconds[op, device]
        start = max(ready, self.device_free[device] + self.out.late[device])
        self.out.late[device] = 0.0
        slowdown = self.cluster.devices[device].overlap_slowdown
        beside = max(self.out.copies_end[device] - start, 0.0)
        self.out.start[op] = start
        self.out.finish[op] = start + min(slowdown * seconds, seconds + beside * (1.0 - 1.0 / slowdown))
        self.device_free[device] = self.out.finish[op] + (self.cluster.op_gap_s if seconds > 0 else 0.0)

    def program(self) -> None:
        for op in range(self.graph.n_ops):
            device = self.device_of[op]
            if device < 0 or self.graph.is_source[op]:
                continue
            ready = 0.0
            for tensor in map(int, self.graph.inputs.row(op)):
                producer = int(self.graph.tensor_producer[tensor])
                source = self.device_of[producer]
                if source < 0:
                    continue
                if source != device and (tensor, device) not in self.out.arrival:
                    self.send(tensor, source, [device], max(self.out.finish[producer], self.issue()))
                there = self.out.finish[producer] if source == device else self.out.arrival[tensor, device]
                ready = max(ready, there)
            takes_time = self.seconds[op, device] > 0
            self.execute(op, max(ready, self.issue()) if takes_time else ready)

    def fifo(self) -> None:
        """Goes from instant to instant: finishes ops, delivers tensors, queues ready ops, starts what can."""
        graph, present = self.graph, [op for op in range(self.graph.n_ops) if self.device_of[op] >= 0]
        waiting = {op for op in present if not graph.is_source[op]}
        device_queue: list[list[int]] = [[] for _ in range(self.cluster.n_devices)]
        link_queue: dict[object, list[tuple[int, int, list[int]]]] = defaultdict(list)
        running: set[int] = set()
        there: dict[tuple[int, int], float] = {}
        for op in present:
            if graph.is_source[op]:
                self.produce(op, there, link_queue)
        now = 0.0
        while True:
            for device in range(self.cluster.n_devices):
                for op in sorted(running):
                    if self.device_of[op] == device and self.out.finish[op] == now:
                        running.discard(op)
                        self.produce(op, there, link_queue)
            for link, queue in link_queue.items():
                while queue and self.link_free[link] <= now:
                    tensor, source, targets = queue.pop(0)
                    self.send(tensor, source, targets, now)
            for slot, at in self.out.arrival.items():
                if at == now:
                    there[slot] = now
            for op in sorted(waiting):
                if self.is_ready(op, there):
                    waiting.discard(op)
                    device_queue[self.device_of[op]].append(op)
            started = False
            for device, queued in enumerate(device_queue):
                busy = any(self.device_of[op] == device for op in running)
                if queued and not busy and self.device_free[device] <= now:
                    op = queued.pop(0)
                    self.execute(op, now)
                    running.add(op)
                    started = True
            instants = [self.out.finish[op] for op in running]
            instants += [at for slot, at in self.out.arrival.items() if slot not in there and at >= now]
            instants += [self.device_free[d] for d, queue in enumerate(device_queue) if queue]
            instants += [self.link_free[link] for link, queue in link_queue.items() if queue]
            instants = [at for at in instants if at > now or (at == now and started)]
            if not instants and not running:
                return
            now = min([at for at in instants if at >= now], default=math.inf)

    def is_ready(self, op: int, there: dict[tuple[int, int], float]) -> bool:
        return all(
            (tensor, self.device_of[op]) in there
            for tensor in map(int, self.graph.inputs.row(op))
            if self.device_of[self.graph.tensor_producer[tensor]] >= 0
        )

    def produce(self, op: int, there: dict[tuple[int, int], float], link_queue: dict) -> None:  # type: ignore[type-arg]
        source = self.device_of[op]
        for tensor in map(int, self.graph.outputs.row(op)):
            there[tensor, source] = self.out.finish[op]
            targets = [self.device_of[reader] for reader in self.graph.consumers.row(tensor)]
            remote = [device for device in dict.fromkeys(targets) if device not in (source, -1)]
            for group in [remote] if self.per_tensor else [[target] for target in remote]:
                if group:
                    link_queue[self.link(tensor, source, group[0])].append((tensor, source, group))

    def peaks(self) -> list[float]:
        """Finds the greatest sum of the bytes held at once per device, from their intervals."""
        graph, held = self.graph, [[] for _ in range(self.cluster.n_devices)]  # type: ignore[var-annotated]
        for tensor in range(graph.n_tensors):
            producer, owner = int(graph.tensor_producer[tensor]), int(graph.tensor_owner[tensor])
            source = self.device_of[producer]
            if source < 0:
                continue
            for device in range(self.cluster.n_devices):
                uses = [
                    self.out.finish[reader]
                    for reader in map(int, graph.consumers.row(tensor))
                    if self.device_of[reader] == device
                ]
                if device == source:
                    sends = [end for (sent, _), end in self.out.sent.items() if sent == tensor]
                    since, uses = self.out.start[producer], [*uses, *sends, self.out.finish[producer]]
                elif uses:
                    since = self.out.arrival[tensor, device]
                else:
                    continue
                if owner < 0 or self.device_of[owner] != device:
                    held[device].append((since, max(uses), float(graph.tensor_bytes[tensor])))
        peaks = []
        for device, intervals in enumerate(held):
            mine = [op for op in range(graph.n_ops) if self.device_of[op] == device]
            instants = [since for since, _, _ in intervals]
            most = max(
                (sum(size for since, until, size in intervals if since <= at < until) for at in instants),
                default=0.0,
            )
            peaks.append(float(np.sum(graph.resident_bytes[mine])) + most)
        return peaks
