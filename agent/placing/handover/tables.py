"""Tables of a placement: where each op goes, and how full each device is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from envs.cluster.cluster import Cluster
from envs.simulator.simulate import StepTime
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray


@dataclass(frozen=True)
class OpRow:
    """The source line of an op and its device.

    Attributes:
        source: line of code that ran it, `file.py:12`; "" if it is not known.
        shape: of the first tensor that it makes, `2x5`; "" of a scalar, or if it is not known.
    """

    op: str
    type: str
    phase: str
    module: str
    source: str
    shape: str
    device: str


@dataclass(frozen=True)
class MemoryRow:
    """The memory that a device holds.

    Attributes:
        peak_bytes: greatest memory in use, simulated.
    """

    device: str
    peak_bytes: float
    capacity_bytes: float
    share: float


def op_rows(graph: OpGraph, cluster: Cluster, device_of: IntArray) -> Iterator[OpRow]:
    """Lists all ops in program order.

    Args:
        device_of: device index of each op, int (n_ops,).
    """
    for op, device in enumerate(device_of.tolist()):
        yield OpRow(
            graph.op_names[op],
            graph.op_types[op],
            graph.phases[op],
            graph.modules[op],
            graph.sources[op],
            "x".join(map(str, graph.shapes[op] or ())),
            cluster.devices[device].name,
        )


def memory_rows(cluster: Cluster, step: StepTime) -> list[MemoryRow]:
    """Lists the peak memory of all devices."""
    return [
        MemoryRow(device.name, peak, device.memory_bytes, peak / device.memory_bytes)
        for device, peak in zip(cluster.devices, step.peak_bytes.tolist(), strict=True)
    ]
