"""Devices, the links between them, and the rules by which a cluster schedules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from graphs.graph_columns import DTYPES
from graphs.limits import MAX_BYTES, MAX_PER_S, MAX_SECONDS, MIN_PER_S, MIN_SECONDS, is_speed, is_time
from graphs.system.array_types import BoolArray, FloatArray
from graphs.system.errors import InputError, shortened

SCHEDULES = ("program", "fifo")
SHARING = ("egress", "pair", "none")
TRANSFER_PER = ("destination", "tensor")
COPIES = ("stream", "eager")
ISSUE_PER = ("op", "step")
STAND_INS = {"tf32": ("fp32",), "bf16": ("fp32",), "fp8": ("fp16", "fp32"), "int8": ("fp16", "fp32")}
"""Types whose peak holds for one that a device has none for: units without fp8 first widen it to fp16."""
MAX_DEVICES = 1024
MAX_SLOWDOWN = 1e3


class ClusterError(InputError):
    """A cluster that breaks a rule; the message says which, where, and what would be right."""


@dataclass(frozen=True)
class Device:
    """A device.

    Attributes:
        kind: the key of measured seconds, e.g. `v100`.
        flops_per_s: peak floating-point operations a second.
        bytes_per_s: memory bandwidth, bytes a second.
        launch_s: seconds to launch one op.
        peaks: peak floating-point operations a second by dtype of the arithmetic, from `DTYPES`; where it is
            empty, `flops_per_s` is the peak for all.
        overlap_slowdown: factor of the time of ops while a copy to or from the device runs, at least 1.
    """

    name: str
    kind: str
    memory_bytes: float
    flops_per_s: float
    bytes_per_s: float
    launch_s: float
    peaks: Mapping[str, float] = field(default_factory=dict, hash=False)
    overlap_slowdown: float = 1.0

    def peak(self, dtype: str) -> float:
        """Returns the peak for a dtype, flops a second: its own, a stand-in's or `flops_per_s`."""
        peaks = (self.peaks[name] for name in (dtype, *STAND_INS.get(dtype, ())) if name in self.peaks)
        return next(peaks, self.flops_per_s)


@dataclass(frozen=True, eq=False)
class Cluster:
    """Devices and links, which may all differ.

    Names can be printed, and numbers are within the bounds of `graphs.limits`.

    Attributes:
        bytes_per_s: bandwidth of each ordered pair, (n_devices, n_devices); the diagonal is unused.
        latency_s: seconds between the end of a transfer and its arrival, (n_devices, n_devices).
        schedule: rule by which a free device or link goes on, one of `SCHEDULES`.
        sharing: which transfers contend, one of `SHARING`.
        transfer_per: sends of a tensor, once per destination or once in all, one of `TRANSFER_PER`.
        op_gap_s: seconds that a device rests after an op of non-zero time.
        transfer_gap_s: seconds that a transfer occupies its link beyond bytes / bandwidth.
        issue_s: seconds that the one host thread needs for what it issues at a time; 0 = no time.
        issue_per: unit of its issues, one of `ISSUE_PER`: one op or copy, or as a CUDA graph all of the
            step.
        copies: on which streams copies run, one of `COPIES`.
        n_half_bytes: size at which a transfer reaches half of its bandwidth, one number for all pairs or
            (n_devices, n_devices) with an unused diagonal.

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
    issue_s: float = 0.0
    issue_per: str = "op"
    copies: str = "stream"
    n_half_bytes: FloatArray | float = 0.0

    def __post_init__(self) -> None:
        _check(self)

    def __repr__(self) -> str:
        devices = ", ".join(shortened(device.name) for device in self.devices)
        return f"<Cluster {shortened(self.name)}: {devices}>"

    @property
    def n_devices(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @property
    def memory_bytes(self) -> FloatArray:
        """The capacity of each device in bytes, (n_devices,)."""
        return np.array([device.memory_bytes for device in self.devices], dtype=np.float64)

    def first(self, n_devices: int) -> Cluster:
        """Returns the cluster of its first devices and the links between them.

        Raises:
            ClusterError: fewer than 1 device, or more than it has.
        """
        if not 1 <= n_devices <= self.n_devices:
            raise ClusterError(f"cluster '{self.name}': has {self.n_devices} devices; take 1 to all of them")
        some = np.s_[:n_devices, :n_devices]
        n_half = self.n_half_bytes
        return replace(
            self,
            devices=self.devices[:n_devices],
            bytes_per_s=self.bytes_per_s[some],
            latency_s=self.latency_s[some],
            n_half_bytes=n_half if np.ndim(n_half) == 0 else np.asarray(n_half)[some],
        )

    @property
    def n_half_matrix(self) -> FloatArray:
        """The half-bandwidth size of each ordered pair in bytes, (n_devices, n_devices)."""
        n_half = np.asarray(self.n_half_bytes, dtype=np.float64)
        return np.broadcast_to(n_half, (self.n_devices, self.n_devices)) if n_half.ndim == 0 else n_half


def _check(cluster: Cluster) -> None:
    where = f"cluster '{cluster.name}'"
    if not 1 <= cluster.n_devices <= MAX_DEVICES:
        raise ClusterError(f"{where}: has {cluster.n_devices} devices; give 1 to {MAX_DEVICES}")
    _check_name(f"{where}: name", cluster.name)
    index_of: dict[str, int] = {}
    for index, device in enumerate(cluster.devices):
        _check_device(f"{where}: device {index} ('{device.name}')", device)
        if device.name in index_of:
            raise ClusterError(
                f"{where}: device {index} ('{device.name}') has the name of device {index_of[device.name]}; "
                "names must be unique"
            )
        index_of[device.name] = index
    for label, allowed in (
        ("schedule", SCHEDULES),
        ("sharing", SHARING),
        ("transfer_per", TRANSFER_PER),
        ("issue_per", ISSUE_PER),
        ("copies", COPIES),
    ):
        if getattr(cluster, label) not in allowed:
            raise ClusterError(
                f"{where}: {label} is '{getattr(cluster, label)}'; use one of {', '.join(allowed)}"
            )
    for label in ("op_gap_s", "transfer_gap_s", "issue_s"):
        _check_time(where, label, getattr(cluster, label))
    _check_host(where, cluster)
    _check_links(where, cluster)


def _check_host(where: str, cluster: Cluster) -> None:
    if cluster.schedule == "fifo":
        for label, default in (("issue_s", 0), ("issue_per", "op"), ("copies", "stream")):
            value = getattr(cluster, label)
            if value != default:
                raise ClusterError(
                    f"{where}: {label} is {value!r}, but under schedule 'fifo' no host thread issues ops in "
                    f"order; use {default!r}, or schedule 'program'"
                )
        for index, device in enumerate(cluster.devices):
            if device.overlap_slowdown != 1:
                raise ClusterError(
                    f"{where}: device {index} ('{device.name}'): overlap_slowdown is "
                    f"{device.overlap_slowdown:g}, but under schedule 'fifo' copies slow no ops; use 1, or "
                    "schedule 'program'"
                )
    if cluster.copies == "eager" and cluster.transfer_per == "tensor":
        raise ClusterError(
            f"{where}: copies is 'eager' and transfer_per 'tensor', but an eager copy has one destination; "
            "use transfer_per 'destination', or copies 'stream'"
        )


def _check_device(where: str, device: Device) -> None:
    _check_name(f"{where}: name", device.name)
    _check_name(f"{where}: kind", device.kind)
    if not 1 <= device.memory_bytes <= MAX_BYTES:
        raise ClusterError(
            f"{where}: memory_bytes is {device.memory_bytes}; use a number from 1 to {MAX_BYTES:g}"
        )
    _check_speed(where, "flops_per_s", device.flops_per_s)
    _check_speed(where, "bytes_per_s", device.bytes_per_s)
    _check_time(where, "launch_s", device.launch_s)
    if not 1 <= device.overlap_slowdown <= MAX_SLOWDOWN:
        raise ClusterError(
            f"{where}: overlap_slowdown is {device.overlap_slowdown:g}; use a number from 1 to "
            f"{MAX_SLOWDOWN:g} (times as long)"
        )
    for dtype, peak in device.peaks.items():
        if dtype not in DTYPES:
            raise ClusterError(f"{where}: peaks has {dtype!r}; use dtypes of {', '.join(DTYPES)}")
        _check_speed(where, f"peaks of {dtype}", peak)


def _check_name(where: str, name: str) -> None:
    if not name or not name.isprintable():
        raise ClusterError(f"{where} is {name!r}; give a name of printable characters")


def _check_speed(where: str, label: str, value: float) -> None:
    if not is_speed(value):
        raise ClusterError(
            f"{where}: {label} is {value}; use a number from {MIN_PER_S:g} to {MAX_PER_S:g} (a second)"
        )


def _check_time(where: str, label: str, value: float) -> None:
    if not is_time(value):
        raise ClusterError(
            f"{where}: {label} is {value}; use 0, or from {MIN_SECONDS:g} to {MAX_SECONDS:g} seconds"
        )


def _check_links(where: str, cluster: Cluster) -> None:
    n_devices = cluster.n_devices

    def is_size(n_half: FloatArray) -> BoolArray:
        with np.errstate(divide="ignore", invalid="ignore"):
            return (n_half >= 0) & is_time(n_half / cluster.bytes_per_s)

    for label, matrix, is_good, check in (
        ("bytes_per_s", cluster.bytes_per_s, is_speed, _check_speed),
        ("latency_s", cluster.latency_s, is_time, _check_time),
        ("n_half_bytes", cluster.n_half_matrix, is_size, _refuse_size),
    ):
        if np.shape(matrix) != (n_devices, n_devices):
            one = "one number, or " if label == "n_half_bytes" else ""
            raise ClusterError(
                f"{where}: {label} of the links has shape {np.shape(matrix)}; use {one}({n_devices}, "
                f"{n_devices}), from each device (row) to each device (column)"
            )
        good = np.where(np.eye(n_devices, dtype=bool), np.isfinite(matrix), is_good(matrix))
        if not good.all():
            source, target = np.argwhere(~good)[0]
            names = [cluster.devices[index].name for index in (source, target)]
            link = f"{where}: link from '{names[0]}' to '{names[1]}'"
            check(link, label, float(matrix[source, target]))


def _refuse_size(where: str, label: str, value: float) -> None:
    raise ClusterError(
        f"{where}: {label} is {value:g}; use 0, or a size that the link takes {MIN_SECONDS:g} to "
        f"{MAX_SECONDS:g} seconds for"
    )
