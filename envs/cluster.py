"""Devices, the links between them, and the rules a cluster schedules by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphs.op_graph import FloatArray

SCHEDULES = ("program", "fifo")
SHARING = ("egress", "pair", "none")
TRANSFER_PER = ("destination", "tensor")


class ClusterError(ValueError):
    """A cluster that breaks a rule; the message says which, where, and what would be right."""


@dataclass(frozen=True)
class Device:
    """One device.

    Attributes:
        kind: what measured seconds and roofline costs are looked up by, e.g. `v100`.
        memory_bytes: capacity in bytes.
        flops_per_s: peak floating-point operations a second.
        bytes_per_s: memory bandwidth, bytes a second.
        launch_s: seconds to launch one op.
    """

    name: str
    kind: str
    memory_bytes: float
    flops_per_s: float
    bytes_per_s: float
    launch_s: float


@dataclass(frozen=True, eq=False)
class Cluster:
    """Devices and links; heterogeneous by construction.

    Attributes:
        bytes_per_s: bandwidth of each ordered pair of devices, (n_devices, n_devices); the diagonal is unused.
        latency_s: seconds between the end of a transfer and its arrival, (n_devices, n_devices).
        schedule: what a free device and link do next, one of `SCHEDULES`.
        sharing: which transfers contend, one of `SHARING`.
        transfer_per: what is sent once, one of `TRANSFER_PER`.
        op_gap_s: rest of a device after an op with non-zero time.
        transfer_gap_s: how long a transfer occupies its link beyond bytes / bandwidth.

    Raises:
        ClusterError: on construction, if a rule is broken.
    """

    name: str
    devices: tuple[Device, ...]
    bytes_per_s: FloatArray
    latency_s: FloatArray
    schedule: str = "program"
    sharing: str = "egress"
    transfer_per: str = "destination"
    op_gap_s: float = 0.0
    transfer_gap_s: float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    @property
    def n_devices(self) -> int:
        """Number of devices."""
        return len(self.devices)

    @property
    def memory_bytes(self) -> FloatArray:
        """Capacity of each device in bytes, (n_devices,)."""
        return np.array([device.memory_bytes for device in self.devices], dtype=np.float64)
