"""Simulates data parallelism on a cluster: what replicas of the whole model would do with the same devices.

It is no placement: each device of a subset computes the whole step on a batch of its own, of the size that
the graph was captured with, and gradients are averaged over all. So one step computes as many batches as
there are replicas, and its seconds per batch compare with the step time of a placement, which computes one.
They may be below the lower bound of placements.

Source: Li et al., "PyTorch Distributed", VLDB 2020, section 3.2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.problem import Problem, kinds
from envs.simulator.all_reduce import all_reduce_seconds, buckets_of, gradients_of
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import in_ms
from graphs.system.jit import kernel


@dataclass(frozen=True, eq=False)
class DataParallelStep:
    """One step of data parallelism.

    Attributes:
        devices: index of the device of each replica, in the order of the ring.
        step_s: seconds of a step, in which each replica computes one batch of the captured size.
        computing_s: seconds of it that the slowest replica needs for its ops alone.
        gradient_bytes: bytes that each replica adds to the all-reduce in a step.
        peak_bytes: greatest memory in use of each replica, (n_replicas,); gradients are views of buckets.
        fits: true if each replica has the memory; if no device has it, the fastest stands alone.
        evaluations: steps of one device that were simulated.
    """

    devices: tuple[int, ...]
    step_s: float
    computing_s: float
    gradient_bytes: float
    peak_bytes: FloatArray
    fits: bool
    evaluations: int

    @property
    def n_replicas(self) -> int:
        """Number of replicas, and of batches in a step."""
        return len(self.devices)

    @property
    def seconds_per_batch(self) -> float:
        """Seconds per batch of the captured size, to compare with the step time of a placement."""
        return self.step_s / self.n_replicas

    def __str__(self) -> str:
        if not self.fits:
            return "no device has the memory of a replica"
        batches = "1 device" if self.n_replicas == 1 else f"{self.n_replicas} devices, each its own batch"
        return f"{in_ms(self.seconds_per_batch)} a batch on {batches} (simulated)"


class _Gradients(NamedTuple):
    """Gradients to reduce: buckets in the order of their all-reduces, and the updates that wait for them."""

    tensor: IntArray  # (n_gradients,) in the order in which they are ready
    bucket: IntArray  # (n_gradients,) bucket of each, ascending
    bucket_bytes: FloatArray  # (n_buckets,)
    update: IntArray  # (n_updates,) ops that update parameters and take time, in program order
    waits_for: IntArray  # (n_updates,) last bucket that each of them reads, -1 = none


class _Replica(NamedTuple):
    """The step of one device by itself, its updates left out."""

    backward_s: float  # end of its last op
    ready_s: FloatArray  # (n_buckets,) when the gradients of each bucket are all there
    issued_s: FloatArray  # (n_updates,) when the host has issued each update
    update_s: FloatArray  # (n_updates,)
    slowdown: float


def simulate_data_parallel(problem: Problem) -> DataParallelStep:
    """Simulates data parallelism on the devices that make its seconds per batch least."""
    return min(data_parallel_steps(problem), key=lambda step: (step.seconds_per_batch, step.n_replicas))


def data_parallel_steps(problem: Problem) -> list[DataParallelStep]:
    """Simulates data parallelism on one device, two devices, and so on.

    Devices with the memory for a replica are taken fastest first, as many as pay. All replicas get equal
    batches, so the slowest one bounds the step. An all-reduce of a bucket starts when all replicas have its
    gradients and the one before it has ended; beside it, ops of the backward pass take `overlap_slowdown`
    times as long. Updates run after the backward pass, each when its gradients arrived. Without gradients
    nothing is reduced.
    """
    fleet = _Fleet(problem)
    fastest_first = np.argsort(problem.single_device_s, kind="stable")
    candidates = fastest_first[fleet.has_memory[fastest_first]]
    if not len(candidates):
        candidates = fastest_first[:1]
    return [fleet.step(np.sort(candidates[:n_replicas])) for n_replicas in range(1, len(candidates) + 1)]


def data_parallel_on_all(problem: Problem) -> DataParallelStep:
    """Simulates data parallelism on all devices, whether or not they have the memory."""
    return _Fleet(problem).step(np.arange(problem.n_devices))


class _Fleet:
    """The devices of a problem, each simulated by itself."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.sample, self.of_device = _alike(problem)
        alone = [simulate_problem(problem, np.full(problem.graph.n_ops, device)) for device in self.sample]
        self.peak_bytes = np.array([alone[kind].peak_bytes.max() for kind in self.of_device])
        self.has_memory = self.peak_bytes <= problem.cluster.memory_bytes
        self.gradients, self.replicas = _replicas(problem, self.sample)

    def step(self, ring: IntArray) -> DataParallelStep:
        """Simulates the step on some of them, ascending, int (n_replicas,)."""
        replicas = [self.replicas[self.of_device[device]] for device in ring]
        return DataParallelStep(
            devices=tuple(ring.tolist()),
            step_s=_step_s(self.problem, ring, self.gradients, replicas),
            computing_s=float(self.problem.single_device_s[ring].max()),
            gradient_bytes=float(self.problem.graph.tensor_bytes[self.gradients.tensor].sum()),
            peak_bytes=self.peak_bytes[ring],
            fits=bool(self.has_memory[ring].all()),
            evaluations=2 * len(self.sample),
        )


def _alike(problem: Problem) -> tuple[IntArray, IntArray]:
    """Finds one device of each speed; returns these devices, and the position of each device's among them.

    The first of them, which decides the order of the gradients, does not depend on the order of the devices.
    """
    slowdown = [device.overlap_slowdown for device in problem.cluster.devices]
    columns = np.vstack([problem.op_seconds, slowdown])
    sample, of_device = kinds(columns)
    order = sorted(range(len(sample)), key=lambda kind: columns[:, sample[kind]].tolist())
    return sample[order], np.argsort(order)[of_device]


def _replicas(problem: Problem, devices: IntArray) -> tuple[_Gradients, list[_Replica]]:
    """Lays out the gradients by their readiness on the first device, and simulates each device by itself."""
    graph = problem.graph
    is_update = np.array([phase == "optimizer" for phase in graph.phases], dtype=bool)
    steps = [simulate_problem(problem, np.where(is_update, -1, device)) for device in devices]
    tensors = gradients_of(graph)
    producer = graph.tensor_producer
    tensors = tensors[np.argsort(steps[0].finish_s[producer[tensors]], kind="stable")]
    bucket = buckets_of(graph.tensor_bytes[tensors])
    updates = np.flatnonzero(is_update)
    updates = updates[(problem.op_seconds[updates] > 0).any(axis=1)]
    gradients = _Gradients(
        tensor=tensors,
        bucket=bucket,
        bucket_bytes=np.bincount(bucket, graph.tensor_bytes[tensors]).astype(np.float64),
        update=updates,
        waits_for=_last_bucket(graph, tensors, bucket)[updates],
    )
    replicas = []
    for device, step in zip(devices, steps, strict=True):
        ready_s = np.zeros(len(gradients.bucket_bytes))
        np.maximum.at(ready_s, bucket, step.finish_s[producer[tensors]])
        replicas.append(
            _Replica(
                backward_s=step.total_s,
                ready_s=ready_s,
                issued_s=_issued_s(problem, int(device), ~is_update, len(updates)),
                update_s=problem.op_seconds[updates, device],
                slowdown=problem.cluster.devices[device].overlap_slowdown,
            )
        )
    return gradients, replicas


def _last_bucket(graph: OpGraph, tensors: IntArray, bucket: IntArray) -> IntArray:
    """Finds the last bucket that each op reads, -1 where it reads none, int (n_ops,)."""
    last = np.full(graph.n_ops, -1)
    for tensor, index in zip(tensors.tolist(), bucket.tolist(), strict=True):
        readers = graph.consumers.row(tensor)
        last[readers] = np.maximum(last[readers], index)
    return last


def _issued_s(problem: Problem, device: int, before: NDArray[np.bool_], n_updates: int) -> FloatArray:
    """Computes when the replica's host has issued each update, after all other ops, (n_updates,)."""
    if problem.cluster.issue_per == "step":
        return np.full(n_updates, problem.cluster.issue_s)
    n_issued = int((problem.op_seconds[before, device] > 0).sum())
    return (n_issued + np.arange(1.0, n_updates + 1)) * problem.cluster.issue_s


def _step_s(problem: Problem, ring: IntArray, gradients: _Gradients, replicas: list[_Replica]) -> float:
    """Computes the seconds of a step of replicas on a ring of devices."""
    if len(ring) == 1:
        return float(problem.single_device_s[ring[0]])
    arrived_s, backward_s = overlap(
        all_reduce_seconds(problem, ring, gradients.bucket_bytes),
        np.array([replica.ready_s for replica in replicas]),
        np.array([replica.backward_s for replica in replicas]),
        np.array([replica.slowdown for replica in replicas]),
    )
    update_from_s = np.append(arrived_s, 0.0)[gradients.waits_for]
    ends = [
        _updated_s(end_s, np.maximum(update_from_s, replica.issued_s), replica, problem.cluster.op_gap_s)
        for end_s, replica in zip(backward_s, replicas, strict=True)
    ]
    return max([*ends, *map(float, arrived_s[-1:])])


@kernel(entry=True, allocates=True)
def overlap(seconds, ready_s, backward_s, slowdown):
    """Runs the all-reduces beside the backward passes.

    Args:
        seconds: time of each bucket's all-reduce, seconds, (n_buckets,).
        ready_s: when a replica has all gradients of a bucket, seconds, (n_replicas, n_buckets).
        backward_s: end of the backward pass of each replica by itself, seconds, (n_replicas,).
        slowdown: factor of the time of ops beside an all-reduce, (n_replicas,).

    Returns:
        Arrival of each bucket, (n_buckets,), and end of each backward pass, (n_replicas,); seconds.
    """
    now_s, left_s = 0.0, backward_s.copy()
    ended_s, computed_s, arrived_s = np.zeros(len(left_s)), np.zeros(len(left_s)), np.zeros(len(seconds))
    for bucket, lasts_s in enumerate(seconds):
        waited_s = max((ready_s[:, bucket] - computed_s).max(), 0.0)
        slowed_s = np.maximum(left_s - waited_s, 0.0)
        ended_s += np.minimum(left_s, waited_s) + np.minimum(slowed_s * slowdown, lasts_s)
        left_s = np.maximum(slowed_s - lasts_s / slowdown, 0.0)
        computed_s = computed_s + waited_s + lasts_s / slowdown
        now_s += waited_s + lasts_s
        arrived_s[bucket] = now_s
    return arrived_s, ended_s + left_s


def _updated_s(ended_s: float, from_s: FloatArray, replica: _Replica, op_gap_s: float) -> float:
    """Computes when a replica ends its last update; each starts from `from_s` on, (n_updates,)."""
    takes_time = replica.update_s > 0
    if not takes_time.any():
        return ended_s
    free_s = ended_s + op_gap_s if ended_s > 0 else 0.0
    occupied_s = replica.update_s[takes_time] + op_gap_s
    to_end_s = occupied_s[::-1].cumsum()[::-1]
    return float((np.maximum(from_s[takes_time], free_s) + to_end_s).max()) - op_gap_s
