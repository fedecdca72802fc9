"""Devices, the links between them, and the rules by which a cluster schedules."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from graphs.op_graph import FloatArray

SCHEDULES = ("program", "fifo")
SHARING = ("egress", "pair", "none")
TRANSFER_PER = ("destination", "tensor")
MAX_DEVICES = 1024


class ClusterError(ValueError):
    """A cluster that breaks a rule; the message says which, where, and what would be right."""


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        kind: the key of measured seconds, e.g. `v100`.
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
    """Devices and links, which may all differ.

    Attributes:
        bytes_per_s: bandwidth of each ordered pair, (n_devices, n_devices); the diagonal is unused.
        latency_s: seconds between the end of a transfer and its arrival, (n_devices, n_devices).
        schedule: what a free device or link does next, one of `SCHEDULES`.
        sharing: which transfers contend, one of `SHARING`.
        transfer_per: whether a tensor is sent once per destination or once in all, one of `TRANSFER_PER`.
        op_gap_s: seconds that a device rests after an op of non-zero time.
        transfer_gap_s: seconds that a transfer occupies its link beyond bytes / bandwidth.

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
        """The number of devices."""
        return len(self.devices)

    @property
    def memory_bytes(self) -> FloatArray:
        """The capacity of each device in bytes, (n_devices,)."""
        return np.array([device.memory_bytes for device in self.devices], dtype=np.float64)


def _check(cluster: Cluster) -> None:
    where = f"cluster '{cluster.name}'"
    if not 1 <= cluster.n_devices <= MAX_DEVICES:
        raise ClusterError(f"{where}: has {cluster.n_devices} devices; give 1 to {MAX_DEVICES}")
    names = [device.name for device in cluster.devices]
    for index, device in enumerate(cluster.devices):
        at = f"{where}: device {index} ('{device.name}')"
        if device.name in names[:index]:
            raise ClusterError(
                f"{at} has the name of device {names.index(device.name)}; names must be unique"
            )
        for label in ("memory_bytes", "flops_per_s", "bytes_per_s"):
            _check_number(at, label, getattr(device, label), above_zero=True)
        _check_number(at, "launch_s", device.launch_s, above_zero=False)
    for label, allowed in (("schedule", SCHEDULES), ("sharing", SHARING), ("transfer_per", TRANSFER_PER)):
        if getattr(cluster, label) not in allowed:
            raise ClusterError(
                f"{where}: {label} is '{getattr(cluster, label)}'; use one of {', '.join(allowed)}"
            )
    for label in ("op_gap_s", "transfer_gap_s"):
        _check_number(where, label, getattr(cluster, label), above_zero=False)
    _check_matrix(where, "bytes_per_s", cluster.bytes_per_s, names, above_zero=True)
    _check_matrix(where, "latency_s", cluster.latency_s, names, above_zero=False)


def _check_number(where: str, label: str, value: float, *, above_zero: bool) -> None:
    if not (math.isfinite(value) and (value > 0 or (value == 0 and not above_zero))):
        rule = "> 0" if above_zero else ">= 0"
        raise ClusterError(f"{where}: {label} is {value}; use a finite number {rule}")


def _check_matrix(where: str, label: str, matrix: FloatArray, names: list[str], *, above_zero: bool) -> None:
    n_devices = len(names)
    if np.shape(matrix) != (n_devices, n_devices):
        raise ClusterError(
            f"{where}: {label} of the links has shape {np.shape(matrix)}; use ({n_devices}, {n_devices}), "
            "from each device (row) to each device (column)"
        )
    good = np.isfinite(matrix) & ((matrix > 0) if above_zero else (matrix >= 0))
    np.fill_diagonal(good, True)
    if not good.all():
        source, target = np.argwhere(~good)[0]
        link = f"{where}: link from '{names[source]}' to '{names[target]}'"
        _check_number(link, label, float(matrix[source, target]), above_zero=above_zero)
