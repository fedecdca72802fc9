"""Copies between devices in a simulated step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.problem import Problem
from envs.problem_arrays import SENDS_PER_TENSOR
from envs.simulator.arrays import empty_timeline
from envs.simulator.kernels import run_many
from graphs.system.array_types import IntArray

TO_ALL = -1
"""Target of a copy that serves all devices."""


@dataclass(frozen=True)
class Copy:
    """One copy of a tensor.

    Attributes:
        source, target: devices by index; `target` is `TO_ALL` where one transfer serves all devices.
        start_s, end_s: when the copy occupies its link, seconds.
        arrival_s: when the tensor is there, seconds.
    """

    tensor: int
    source: int
    target: int
    start_s: float
    end_s: float
    arrival_s: float


def simulated_copies(problem: Problem, device_of: IntArray) -> list[Copy]:
    """Simulates one training step, and lists its copies by start.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.
    """
    graph, arrays, n = problem.graph, problem.arrays, problem.n_devices
    timeline = empty_timeline(graph.n_ops, graph.n_tensors, n)
    run_many(arrays, device_of[None], timeline, False, np.zeros(1), np.zeros((1, 0)))
    sent, arrival = timeline.sent.reshape(-1, n), timeline.arrival.reshape(-1, n)
    to_all = bool(arrays.rules[SENDS_PER_TENSOR])
    copies = []
    for tensor in np.flatnonzero((sent >= 0).any(axis=1)).tolist():
        source = int(device_of[graph.tensor_producer[tensor]])
        others = [device for device in np.flatnonzero(sent[tensor] >= 0).tolist() if device != source]
        for target in others[:1] if to_all else others:
            pair = source if to_all else target
            size = arrays.size[tensor] + arrays.n_half[source, pair]
            end_s = float(sent[tensor, target])
            copies.append(
                Copy(
                    tensor=tensor,
                    source=source,
                    target=TO_ALL if to_all else target,
                    start_s=max(end_s - float(size / arrays.bandwidth[source, pair]), 0.0),
                    end_s=end_s,
                    arrival_s=float(arrival[tensor, others if to_all else [target]].max()),
                )
            )
    return sorted(copies, key=lambda copy: (copy.start_s, copy.tensor, copy.target))


def link_name(problem: Problem, copy: Copy) -> str:
    """Names the link of a copy: the outgoing bus of its source, or the pair of devices."""
    names = [device.name for device in problem.cluster.devices]
    if problem.cluster.sharing == "egress":
        return f"{names[copy.source]} out"
    return f"{names[copy.source]} to {names[copy.target]}"
