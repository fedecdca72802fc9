"""Cluster files, format `placewalk.cluster/1`, and the folder that stores this machine's measurements."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np

from envs.cluster.cluster import MAX_DEVICES, Cluster, ClusterError, Device
from graphs.graph_columns import DTYPES
from graphs.system.array_types import FloatArray
from graphs.system.json_fields import array, fields, json_number, name, number, text
from graphs.system.json_files import FileFormatError, read_json, write_json_atomic

FOLDER_VARIABLE = "PLACEWALK_HOME"
CLUSTER_NAME = "this"
FORMAT = "placewalk.cluster/1"
REQUIRED = frozenset({"format", "name", "devices", "links"})
OPTIONAL = frozenset({"schedule", "op_gap_s", "transfer_gap_s", "issue_s", "issue_per", "copies"})
LINK_REQUIRED = frozenset({"bytes_per_s", "latency_s"})
LINK_OPTIONAL = frozenset({"sharing", "transfer_per", "n_half_bytes"})
DEVICE_NUMBERS = ("memory_bytes", "flops_per_s", "bytes_per_s", "launch_s")
DEVICE_KEYS = frozenset({"name", "kind", *DEVICE_NUMBERS})
DEVICE_OPTIONAL = frozenset({"peaks", "overlap_slowdown"})


def read_cluster(path: str | os.PathLike[str]) -> Cluster:
    """Reads a cluster file, format `placewalk.cluster/1`.

    Raises:
        FileFormatError: the path is no readable JSON file, or the file breaks the format.
        ClusterError: the cluster breaks a rule of `Cluster`.
    """
    return cluster_from_json(read_json(path), str(path))


def write_cluster(path: str | os.PathLike[str], cluster: Cluster) -> None:
    """Writes a cluster file atomically."""
    write_json_atomic(path, cluster_to_json(cluster))


def cluster_from_json(value: object, where: str) -> Cluster:
    """Builds a cluster from its parsed JSON; `where` begins the message of any error.

    Raises:
        FileFormatError: the value breaks the format.
        ClusterError: the cluster breaks a rule of `Cluster`.
    """
    record = fields(value, where, REQUIRED, OPTIONAL, format=FORMAT)
    devices = array(record["devices"], f"{where}: devices")
    if not 1 <= len(devices) <= MAX_DEVICES:
        raise ClusterError(f"{where}: has {len(devices)} devices; give 1 to {MAX_DEVICES}")
    links = fields(record["links"], f"{where}: links", LINK_REQUIRED, LINK_OPTIONAL)
    try:
        return Cluster(
            name=name(record["name"], f"{where}: name"),
            devices=tuple(
                _device(device, f"{where}: device {index}") for index, device in enumerate(devices)
            ),
            bytes_per_s=_matrix(links["bytes_per_s"], len(devices), f"{where}: links: bytes_per_s"),
            latency_s=_matrix(links["latency_s"], len(devices), f"{where}: links: latency_s"),
            schedule=text(record.get("schedule", "program"), f"{where}: schedule"),
            sharing=text(links.get("sharing", "egress"), f"{where}: links: sharing"),
            transfer_per=text(links.get("transfer_per", "destination"), f"{where}: links: transfer_per"),
            op_gap_s=number(record.get("op_gap_s", 0), f"{where}: op_gap_s"),
            transfer_gap_s=number(record.get("transfer_gap_s", 0), f"{where}: transfer_gap_s"),
            issue_s=number(record.get("issue_s", 0), f"{where}: issue_s"),
            issue_per=text(record.get("issue_per", "op"), f"{where}: issue_per"),
            copies=text(record.get("copies", "stream"), f"{where}: copies"),
            n_half_bytes=_matrix(links.get("n_half_bytes", 0), len(devices), f"{where}: links: n_half_bytes"),
        )
    except ClusterError as error:
        raise ClusterError(f"{where}: {error}") from None


def cluster_to_json(cluster: Cluster) -> dict[str, Any]:
    """Converts a cluster to JSON values; a matrix of equal entries is one number."""
    devices = []
    for device in cluster.devices:
        record: dict[str, Any] = {"name": device.name, "kind": device.kind}
        record |= {key: json_number(float(getattr(device, key))) for key in DEVICE_NUMBERS}
        if device.peaks:
            record["peaks"] = {dtype: json_number(float(peak)) for dtype, peak in device.peaks.items()}
        if device.overlap_slowdown != 1:
            record["overlap_slowdown"] = json_number(float(device.overlap_slowdown))
        devices.append(record)
    links: dict[str, Any] = {"bytes_per_s": cluster.bytes_per_s, "latency_s": cluster.latency_s}
    for key, matrix in (links | {"n_half_bytes": cluster.n_half_matrix}).items():
        rows = [[json_number(value) for value in row] for row in np.asarray(matrix, dtype=float).tolist()]
        links[key] = rows[0][0] if (matrix == matrix[0, 0]).all() else rows
    return {
        "format": FORMAT,
        "name": cluster.name,
        "schedule": cluster.schedule,
        "devices": devices,
        "links": links | {"sharing": cluster.sharing, "transfer_per": cluster.transfer_per},
        "op_gap_s": json_number(float(cluster.op_gap_s)),
        "transfer_gap_s": json_number(float(cluster.transfer_gap_s)),
        "issue_s": json_number(float(cluster.issue_s)),
        "copies": cluster.copies,
    } | ({} if cluster.issue_per == "op" else {"issue_per": cluster.issue_per})


def _device(value: object, where: str) -> Device:
    record = fields(value, where, DEVICE_KEYS, DEVICE_OPTIONAL)
    peaks = fields(record.get("peaks", {}), f"{where}: peaks", frozenset(), frozenset(DTYPES))
    return Device(
        name=name(record["name"], f"{where}: name"),
        kind=name(record["kind"], f"{where}: kind"),
        **{key: number(record[key], f"{where}: {key}") for key in DEVICE_NUMBERS},
        peaks={dtype: number(peak, f"{where}: peaks: {dtype}") for dtype, peak in peaks.items()},
        overlap_slowdown=number(record.get("overlap_slowdown", 1), f"{where}: overlap_slowdown"),
    )


def _matrix(value: object, n_devices: int, where: str) -> FloatArray:
    if not isinstance(value, list):
        return np.full((n_devices, n_devices), number(value, where))
    rows = [array(row, f"{where}: row {index}") for index, row in enumerate(value)]
    if len(rows) != n_devices or {len(row) for row in rows} != {n_devices}:
        raise FileFormatError(f"{where}: expected one number, or {n_devices} rows of {n_devices} numbers")
    cells = ([(f"row {i}, column {j}", v) for j, v in enumerate(row)] for i, row in enumerate(rows))
    return np.array([[number(value, f"{where}: {cell}") for cell, value in row] for row in cells])


def own_folder() -> Path:
    """Returns the folder that `PLACEWALK_HOME` names, by default `.placewalk` in the user's home."""
    return Path(os.environ.get(FOLDER_VARIABLE) or os.path.expanduser("~/.placewalk"))


def is_own_cluster(name: str) -> bool:
    """Says whether a cluster of that name is one of this machine: `this`, or `2xcpu` and the like."""
    return name == CLUSTER_NAME or re.fullmatch(r"[1-9][0-9]{0,2}xcpu", name) is not None


def own_cluster_file(name: str = CLUSTER_NAME) -> Path:
    """Returns the file of a cluster of this machine."""
    return own_folder() / f"{name}.json"


def how_to_measure(name: str) -> str:
    """Returns the command that measures a cluster of this machine."""
    n_processes = name.removesuffix("xcpu")
    flags = "" if name == CLUSTER_NAME else f" --processes {n_processes}"
    return f"python -m agent.calibration measure{flags}"


def own_calibration_file(kind: str) -> Path:
    """Returns the file of a device kind that was measured here."""
    return own_folder() / "calibration" / f"{kind}.json"
