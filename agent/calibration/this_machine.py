"""Calibrates the devices of this machine: times ops and copies, keeps the times, fits, writes a cluster."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from agent.calibration.fit import fit_class, fit_line
from agent.calibration.timed_ops import (
    MeasuredOp,
    MeasuredOpsError,
    TimedOp,
    largest_side,
    ops_to_time,
    time_issue,
    time_op,
    time_runs,
)
from envs.cluster.cluster import Cluster, Device
from envs.cluster.files import CLUSTER_NAME, own_calibration_file, own_cluster_file, write_cluster
from envs.cluster.kinds import LAUNCH_S, Kind
from envs.costs.calibration import Calibration, calibration_of, write_calibration
from envs.costs.op_classes import TENSOR
from envs.runtime.backends.processes import DeviceProcesses, n_cores, time_transfers
from graphs.limits import is_time

Report = Callable[[str, int, int], None]
"""Called with what is timed, how much of it is done, and how much there is in all."""
TABLE = (
    "CREATE TABLE IF NOT EXISTS times "
    "(device TEXT, op TEXT, median_s REAL, spread_s REAL, PRIMARY KEY (device, op))"
)
COPY_BYTES = tuple(1 << power for power in range(12, 29, 2))
"""Sizes of the copies between devices that are timed: 4 KiB to 256 MiB."""
LARGEST_ON_CPU = 1024
"""Largest side of a matrix that is timed on the processor."""
LARGEST_BETWEEN_PROCESSES = 1 << 26
"""Largest transfer between processes that is timed, in bytes."""
CPU_CACHE_BYTES = 2.0**20
"""Cache of a core. Only kinds with multiprocessors that share a cache make use of it."""


@dataclass(frozen=True)
class Effort:
    """The effort of measuring a machine: repeats and sizes.

    Attributes:
        repeats: number of times that each op and copy is timed.
        times: name of the SQLite file that keeps the times.
        cpu_side: largest side of a matrix that is timed on the processor; None for `LARGEST_ON_CPU`.
        most_bytes: largest copy that is timed.
        run_s: seconds that the runs of a repeat take at least; None for `timed_ops.MIN_SECONDS`.
        keeps_kinds: true if a device kind that was calibrated before stays as it is.
    """

    repeats: int
    times: str = "times.sqlite"
    cpu_side: int | None = None
    most_bytes: int = COPY_BYTES[-1]
    run_s: float | None = None
    keeps_kinds: bool = False


@dataclass(frozen=True)
class OwnDevice:
    """A device of this machine.

    Attributes:
        torch_name: name in PyTorch, e.g. `cuda:0`.
        kind: the key of its times and of its calibration.
        memory_bytes: bytes that are free for a step.
        parallel: cores or multiprocessors.
        l2_bytes: size of its last cache.
        multiplies_bf16: true if its tensor cores take bf16 and TF32, as NVIDIA's do since Ampere.
    """

    torch_name: str
    kind: str
    memory_bytes: float
    parallel: int
    l2_bytes: float
    multiplies_bf16: bool = False

    @property
    def is_cuda(self) -> bool:
        """Says whether it is a GPU."""
        return self.torch_name.startswith("cuda")


def own_devices(threads: int) -> list[OwnDevice]:
    """Finds the processor, with the given number of threads, and all CUDA devices."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    devices = [OwnDevice("cpu", f"cpu-{threads}-threads", memory, threads, threads * CPU_CACHE_BYTES)]
    for index in range(torch.cuda.device_count()):
        properties: Any = torch.cuda.get_device_properties(index)
        plain = re.sub(r"[^a-z0-9]+", "-", properties.name.lower()).strip("-")
        free_bytes = float(torch.cuda.mem_get_info(index)[0])
        chip = properties.multi_processor_count, float(properties.L2_cache_size)
        devices.append(OwnDevice(f"cuda:{index}", f"own-{plain}", free_bytes, *chip, properties.major >= 8))
    return devices


def measured_seconds(
    path: Path,
    device: str,
    timed: Sequence[tuple[str, Callable[[], Sequence[float]]]],
    report: Report = lambda what, done, total: None,
) -> list[float]:
    """Times the ops that a database lacks, and returns the median seconds of all ops, in their order.

    Each time is kept as soon as it is known, so an interrupted run can be resumed.

    Args:
        path: SQLite file, made where it does not exist.
        timed: names, and functions that return the seconds of each repeat.

    Raises:
        MeasuredOpsError: the file is no such database, or a time is impossible.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute(TABLE)
            query = "SELECT op, median_s FROM times WHERE device = ?"
            seconds_of = dict(database.execute(query, (device,)).fetchall())
            for done, (key, timer) in enumerate(timed):
                report(device, done, len(timed))
                if key not in seconds_of:
                    seconds = np.array(timer(), dtype=np.float64)
                    seconds_of[key] = float(np.median(seconds))
                    _check(path, key, seconds_of[key])
                    spread = float(np.quantile(seconds, 0.9) - np.quantile(seconds, 0.1))
                    with database:
                        row = (device, key, seconds_of[key], spread)
                        database.execute("INSERT INTO times VALUES (?, ?, ?, ?)", row)
    except sqlite3.Error as error:
        raise MeasuredOpsError(f"{path}: is no database of measured times: {error}; delete it") from None
    report(device, len(timed), len(timed))
    for key, _ in timed:
        _check(path, key, seconds_of[key])
    return [seconds_of[key] for key, _ in timed]


def measured_rows(
    path: Path,
    kind: str,
    ops: Sequence[TimedOp],
    timer: Callable[[TimedOp], Sequence[float]],
    report: Report = lambda what, done, total: None,
) -> list[MeasuredOp]:
    """Times the ops of a device kind that a database does not hold yet, and returns all as measured.

    Raises:
        MeasuredOpsError: the file is no such database, or a time is impossible.
    """
    timed = [(str(op), lambda op=op: timer(op)) for op in ops]
    seconds = measured_seconds(path, kind, timed, report)
    return [op.row(op_s) for op, op_s in zip(ops, seconds, strict=True)]


def calibrate_device(device: OwnDevice, rows: Sequence[MeasuredOp]) -> Calibration:
    """Fits the models of a device to its times, and writes its calibration into the user's folder."""
    kind = kind_of_rows(device, rows)
    classes = sorted({row.op_class for row in rows})
    fits = {name: fit_class([row for row in rows if row.op_class == name], kind) for name in classes}
    origin = f"measured ({', '.join(fits)})"
    calibration = Calibration(device.kind, origin, "this machine", "", device.parallel, device.l2_bytes, fits)
    path = own_calibration_file(device.kind)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_calibration(path, calibration)
    return calibration


def kind_of_rows(device: OwnDevice, rows: Sequence[MeasuredOp]) -> Kind:
    """Makes the kind of a device: the best that was measured is its peak in a dtype.

    Its memory bandwidth is that of the largest sums, beyond all caches. Tensor cores that take bf16 and TF32
    have the rate of fp16, and half of it, as in all datasheets of `envs.cluster.kinds`.
    """
    products = [row for row in rows if row.op_class in ("gemm", TENSOR)]
    peaks = {
        dtype: max(row.flops / row.seconds for row in products if row.dtype == dtype)
        for dtype in sorted({row.dtype for row in products})
    }
    if device.multiplies_bf16 and "fp16" in peaks:
        peaks |= {"bf16": peaks["fp16"], "tf32": peaks["fp16"] / 2}
    streams = [row for row in rows if row.op_class == "elementwise"]
    largest = max(row.bytes_moved for row in streams)
    bandwidth = max(row.bytes_moved / row.seconds for row in streams if row.bytes_moved == largest)
    chip = device.parallel, device.l2_bytes
    return Kind(device.kind, device.memory_bytes, bandwidth, peaks, *chip)


def time_copy(
    n_bytes: int, sender: str, receiver: str, repeats: int, run_s: float | None = None
) -> list[float]:
    """Times a copy between two PyTorch devices; in the memory of the processor it is pinned.

    Returns:
        Seconds of one copy in each repeat, (repeats,).
    """

    def buffer(device: str) -> torch.Tensor:
        pin = device == "cpu" and torch.cuda.is_available()
        return torch.ones(n_bytes, dtype=torch.uint8, device=device, pin_memory=pin)

    source, target = buffer(sender), buffer(receiver)
    waited_for = receiver if receiver.startswith("cuda") else sender
    return time_runs(lambda: target.copy_(source, non_blocking=True), waited_for, repeats, run_s)


def measure_machine(
    effort: Effort, threads: int, report: Report = lambda what, done, total: None
) -> tuple[Cluster, dict[str, Calibration]]:
    """Calibrates the devices of this machine and writes the cluster `this` of them.

    Returns:
        The cluster, and the calibrations by device kind.

    Raises:
        MeasuredOpsError: the database of times cannot be used, or a time is impossible.
    """
    torch.set_num_threads(threads)
    path = own_cluster_file().with_name(effort.times)
    chips = own_devices(threads)
    measured = [_measured(path, chip, effort, report) for chip in chips]
    shape = (len(chips), len(chips))
    latency_s, bytes_per_s = np.zeros(shape), np.ones(shape)
    for i, j in np.argwhere(~np.eye(len(chips), dtype=bool)):
        sender, receiver = chips[i].torch_name, chips[j].torch_name
        timer = partial(
            time_copy, sender=sender, receiver=receiver, repeats=effort.repeats, run_s=effort.run_s
        )
        latency_s[i, j], bytes_per_s[i, j] = _fitted_link(
            path, f"{sender} to {receiver}", "copy", effort.most_bytes, timer, report
        )
    devices = tuple(device for device, _ in measured)
    cluster = Cluster(CLUSTER_NAME, devices, bytes_per_s, latency_s, sharing="pair")
    if gpu := next((chip.torch_name for chip in chips if chip.is_cuda), None):
        timed = [("issue", partial(time_issue, gpu, effort.repeats, effort.run_s))]
        cluster = replace(cluster, issue_s=measured_seconds(path, "host", timed, report)[0])
    write_cluster(own_cluster_file(), cluster)
    return cluster, {calibration.kind: calibration for _, calibration in measured}


def measure_processes(
    n_processes: int, effort: Effort, report: Report = lambda what, done, total: None
) -> tuple[Cluster, dict[str, Calibration]]:
    """Calibrates the cores of this machine as devices, each a process, and writes the cluster `2xcpu`.

    The cores and the memory are shared equally. Links are those of `envs.runtime`: a copy into memory that
    processes share.

    Args:
        n_processes: number of devices, at least 2.

    Returns:
        The cluster, named after the number of devices, and the calibration by device kind.

    Raises:
        MeasuredOpsError: there are fewer cores than devices, the database of times cannot be used, or a time
            is impossible.
    """
    if not 2 <= n_processes <= n_cores():
        raise MeasuredOpsError(f"{n_processes} processes on {n_cores()} cores; give from 2 to that many")
    name, threads = f"{n_processes}xcpu", n_cores() // n_processes
    torch.set_num_threads(threads)
    path = own_cluster_file(name).with_name(effort.times)
    whole = own_devices(threads)[0]
    share = replace(whole, memory_bytes=whole.memory_bytes / n_processes)
    device, calibration = _measured(path, share, effort, report)
    most_bytes = min(effort.most_bytes, LARGEST_BETWEEN_PROCESSES)
    with DeviceProcesses(n_processes) as processes:
        timer = partial(time_transfers, repeats=4 * effort.repeats, processes=processes)
        link = f"{n_processes} processes"
        latency_s, bytes_per_s = _fitted_link(path, link, "transfer", most_bytes, timer, report)
    shape = (n_processes, n_processes)
    cluster = Cluster(
        name,
        tuple(replace(device, name=f"cpu{index}") for index in range(n_processes)),
        np.full(shape, bytes_per_s),
        np.full(shape, latency_s),
        sharing="pair",
    )
    write_cluster(own_cluster_file(name), cluster)
    return cluster, {calibration.kind: calibration}


def _fitted_link(
    path: Path, link: str, what: str, most_bytes: int, timer: Callable[[int], Sequence[float]], report: Report
) -> tuple[float, float]:
    """Returns the latency in seconds and the bandwidth in bytes a second of a link.

    Args:
        link, what: names of the link and of its transfers in the database.
        timer: returns the seconds of transfers of so many bytes.
    """
    sizes = [size for size in COPY_BYTES if size <= most_bytes]
    timed = [(f"{what} {size}", partial(timer, size)) for size in sizes]
    seconds = measured_seconds(path, link, timed, report)
    return fit_line(np.array(sizes, dtype=np.float64), np.array(seconds))


def _measured(path: Path, chip: OwnDevice, effort: Effort, report: Report) -> tuple[Device, Calibration]:
    side = largest_side(chip.memory_bytes) if chip.is_cuda else effort.cpu_side or LARGEST_ON_CPU
    ops = ops_to_time(side, tensor_cores=chip.is_cuda)
    timer = partial(time_op, device=chip.torch_name, repeats=effort.repeats, run_s=effort.run_s)
    rows = measured_rows(path, chip.kind, ops, timer, report)
    calibrated = calibration_of(chip.kind) if effort.keeps_kinds else None
    calibration, kind = calibrated or calibrate_device(chip, rows), kind_of_rows(chip, rows)
    launch_s = LAUNCH_S if chip.is_cuda else calibration.traffic("elementwise").launch_s
    # The memory is what is free already, without a margin.
    device = Device(
        chip.torch_name.replace(":", ""),
        chip.kind,
        chip.memory_bytes,
        kind.peaks["fp32"],
        kind.bytes_per_s,
        launch_s,
        peaks=dict(kind.peaks),
    )
    return device, calibration


def _check(path: Path, key: str, seconds: float) -> None:
    if not (seconds > 0 and is_time(seconds)):
        raise MeasuredOpsError(f"{path}: '{key}' took {seconds} s; expected more than 0; measure it again")
