"""Calibrates the devices of this machine: times ops, keeps the times, fits models, writes a cluster."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from envs.calibration.calibration import Calibration, write_calibration
from envs.calibration.fit import fit_class
from envs.calibration.measured_ops import MeasurementError, OpRow, tables
from envs.calibration.timed_ops import TimedOp
from envs.cluster.cluster import Cluster
from envs.cluster.files import write_cluster
from envs.cluster.kinds import Kind
from envs.cluster.own_machine import CLUSTER_NAME, own_calibration_file, own_cluster_file
from graphs.limits import is_time

Timer = Callable[[TimedOp], Sequence[float]]
"""Seconds of each repeat of an op."""
TABLE = (
    "CREATE TABLE IF NOT EXISTS times "
    "(device TEXT, op TEXT, median_s REAL, spread_s REAL, PRIMARY KEY (device, op))"
)


def measured_rows(path: Path, kind: str, ops: Sequence[TimedOp], timer: Timer) -> list[OpRow]:
    """Times the ops of a device that its database does not hold yet, and returns all as measured.

    Each time is kept as soon as it is known, so an interrupted run goes on where it stopped.

    Args:
        path: SQLite file, made where it does not exist.
        kind: device kind, the key of its times.

    Raises:
        MeasurementError: the file is no such database, or a time is impossible.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with closing(sqlite3.connect(path)) as database:
            database.execute(TABLE)
            query = "SELECT op, median_s FROM times WHERE device = ?"
            known = dict(database.execute(query, (kind,)).fetchall())
            for op in ops:
                key = f"{op.op_class} {op.shape}"
                if key not in known:
                    seconds = np.array(timer(op), dtype=np.float64)
                    known[key] = float(np.median(seconds))
                    _check(path, key, known[key])
                    spread = float(np.quantile(seconds, 0.9) - np.quantile(seconds, 0.1))
                    with database:
                        database.execute(
                            "INSERT INTO times VALUES (?, ?, ?, ?)", (kind, key, known[key], spread)
                        )
    except sqlite3.Error as error:
        raise MeasurementError(f"{path}: is no database of measured times: {error}; delete it") from None
    rows = []
    for op in ops:
        key = f"{op.op_class} {op.shape}"
        _check(path, key, known[key])
        rows.append(op.row(kind, known[key]))
    return rows


def calibrate_device(
    name: str, rows: Sequence[OpRow], memory_bytes: float, parallel: int, l2_bytes: float
) -> Kind:
    """Fits the models of a device to its times, and writes its calibration into the user's folder.

    The peak is the best that was measured, the memory bandwidth that of the largest sums, beyond all caches.

    Args:
        name: the device kind.
        parallel: cores or multiprocessors.

    Returns:
        The kind.
    """
    peak = max(row.flops / row.seconds for row in rows if row.op_class == "gemm")
    streams = [row for row in rows if row.op_class == "elementwise"]
    largest = max(row.bytes_moved for row in streams)
    bandwidth = max(row.bytes_moved / row.seconds for row in streams if row.bytes_moved == largest)
    kind = Kind(
        name, "measured", "host", memory_bytes, bandwidth, {"fp32": peak}, parallel, l2_bytes, np.inf, 1.0
    )
    fits = {table.op_class: fit_class(table, kind) for table in tables(rows)}
    origin = f"measured ({', '.join(sorted(fits))})"
    calibration = Calibration(name, origin, "this machine", "", parallel, l2_bytes, fits)
    path = own_calibration_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_calibration(path, calibration)
    return kind


def measure_cpu(repeats: int, threads: int) -> Cluster:
    """Calibrates the processor of this machine and writes the cluster `this` with it.

    Raises:
        MeasurementError: the database of times cannot be used, or a time is impossible.
    """
    import torch

    from envs.calibration.timed_ops import ops_to_time, time_op

    torch.set_num_threads(threads)
    kind_name = f"cpu-{threads}-threads"
    path = own_cluster_file().with_name("times.sqlite")
    rows = measured_rows(path, kind_name, ops_to_time(1024), lambda op: time_op(op, "cpu", repeats))
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    kind = calibrate_device(kind_name, rows, memory, threads, threads * 2.0**20)
    device = kind.device("cpu0")
    cluster = Cluster(CLUSTER_NAME, (device,), np.ones((1, 1)), np.zeros((1, 1)))
    write_cluster(own_cluster_file(), cluster)
    return cluster


def _check(path: Path, key: str, seconds: float) -> None:
    if not (seconds > 0 and is_time(seconds)):
        raise MeasurementError(f"{path}: '{key}' took {seconds} s; expected more than 0; measure it again")
