"""The timeline that an episode goes on from: a part of the step simulated, and the way of each transfer.

It defines `envs.simulator.arrays.Timeline`, by the plain simulator.
"""

from __future__ import annotations

from dataclasses import dataclass

from envs.cluster.cluster import Cluster
from envs.problem import Problem
from tests.specification.simulator import simulate_plainly

Link = int | tuple[int, int] | None
"""What transfers queue for: a sender, a pair of devices, or nothing."""


@dataclass
class Timeline:
    """When what happens in a simulated part of the step; seconds from the start of the step.

    Attributes:
        total_s: finish of the last op, 0 where nothing ran.
        start_s, finish_s: by op; 0 for source ops.
        sent_s: end of the transfer by (tensor, receiving device). One transfer for all (`sends_once`) has the
            same end on every device but the sender.
        arrival_s: by (tensor, device), where an op that reads the tensor was simulated on the device.
        device_free_s: when each device can start another op, (n_devices,).
        host_free_s: when the host thread can issue something else.
        copies_end_s: when the last copy from or to each device ends, (n_devices,).
        late_s: by how much the copies beside its ops make each device late, (n_devices,).
        link_free_s: when each link can start another transfer; links that never carried anything are missing.
    """

    total_s: float
    start_s: dict[int, float]
    finish_s: dict[int, float]
    sent_s: dict[tuple[int, int], float]
    arrival_s: dict[tuple[int, int], float]
    device_free_s: list[float]
    host_free_s: float
    copies_end_s: list[float]
    late_s: list[float]
    link_free_s: dict[Link, float]


def sends_once(cluster: Cluster) -> bool:
    """Whether one transfer brings a tensor to all other devices."""
    return cluster.transfer_per == "tensor" and cluster.sharing == "egress"


def link_of(cluster: Cluster, source: int, target: int) -> Link:
    """The link from one device to another; None where transfers do not wait for each other."""
    links: dict[str, Link] = {"egress": source, "pair": (source, target), "none": None}
    return links[cluster.sharing]


def transfer_s(cluster: Cluster, size_bytes: float, source: int, target: int) -> float:
    """Seconds that a tensor of some bytes takes over a free link, 0 where it stays on its device."""
    if source == target:
        return 0.0
    bytes_s = float(cluster.bytes_per_s[source, target])
    latency_s = float(cluster.latency_s[source, target])
    return (size_bytes + float(cluster.n_half_matrix[source, target])) / bytes_s + latency_s


def copy_start_s(cluster: Cluster, timeline: Timeline, ready_s: float, source: int, target: int) -> float:
    """Start of a copy that is issued next; an eager one waits for both devices."""
    link_free_s = timeline.link_free_s.get(link_of(cluster, source, target), 0.0)
    start_s = max(ready_s, timeline.host_free_s + cluster.issue_s, link_free_s)
    if cluster.copies == "eager":
        start_s = max(start_s, timeline.device_free_s[source], timeline.device_free_s[target])
    return start_s


def simulate_part(problem: Problem, device_of: list[int]) -> Timeline:
    """Simulate the ops that have a device.

    A device is free when its last op ends, after an op that took time an op gap later, and when the last
    eager copy from or to it has arrived; a link is free a transfer gap after its last transfer.
    """
    graph, cluster = problem.graph, problem.cluster
    step = simulate_plainly(graph, cluster, device_of)
    device_free_s = [0.0] * cluster.n_devices
    for op, finish_s in step.finish.items():
        device = device_of[op]
        gap_s = cluster.op_gap_s if problem.op_seconds[op, device] > 0 else 0.0
        device_free_s[device] = max(device_free_s[device], finish_s + gap_s)
    for (tensor, target), at in step.arrival.items() if cluster.copies == "eager" else ():
        for device in (device_of[graph.tensor_producer[tensor]], target):
            device_free_s[device] = max(device_free_s[device], at)
    link_free_s: dict[Link, float] = {}
    for (tensor, target), end_s in step.sent.items():
        link = link_of(cluster, device_of[graph.tensor_producer[tensor]], target)
        if link is not None:
            link_free_s[link] = max(link_free_s.get(link, 0.0), end_s + cluster.transfer_gap_s)
    readers = {
        (tensor, device_of[reader])
        for tensor in range(graph.n_tensors)
        for reader in graph.consumers.row(tensor)
    }
    arrival_s = {slot: at for slot, at in step.arrival.items() if slot in readers}
    return Timeline(
        step.total_s,
        step.start,
        step.finish,
        step.sent,
        arrival_s,
        device_free_s,
        step.host_free,
        step.copies_end,
        step.late,
        link_free_s,
    )
