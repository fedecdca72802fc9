"""Times every op of a model on the devices of clusters; the times are kept beside those of this machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from envs.cluster.cluster import Cluster
from envs.cluster.files import own_folder
from envs.runtime.backends.processes import DeviceProcesses, torch_devices
from envs.runtime.device_program import ExecutionError
from envs.runtime.runnable_model import RunnableModel
from envs.runtime.step_meter import StepMeter
from graphs.identity import content_hash
from graphs.op_graph import OpGraph
from graphs.system import json_fields
from graphs.system.array_types import FloatArray
from graphs.system.json_files import read_json, write_json_atomic

FORMAT = "placewalk.profile/1"
KEYS = frozenset({"format", "seconds"})


def with_profile(
    graph: OpGraph,
    model: RunnableModel,
    clusters: Sequence[Cluster],
    *,
    timeout_s: float,
    report: Callable[[int, int], None] = lambda done, total: None,
) -> OpGraph:
    """Adds the seconds of its ops on each kind of device to a graph; times them if no times are stored.

    Args:
        graph: graph of the model, at any granularity.
        clusters: whose devices are devices of this machine.
        timeout_s: seconds after which timing on one kind is given up.
        report: called with (kinds timed, kinds in all).

    Raises:
        ExecutionError: this machine lacks a device, or the whole step cannot be run on one of them.
        FileFormatError: a file of times is damaged.
    """
    kinds = {
        device.kind: (cluster, index) for cluster in clusters for index, device in enumerate(cluster.devices)
    }
    seconds: dict[str, FloatArray] = {}
    for done, (kind, (cluster, device)) in enumerate(kinds.items()):
        report(done, len(kinds))
        path = own_folder() / "profiles" / kind / f"{content_hash(model.captured.graph)}.json"
        if not path.exists():
            with DeviceProcesses(torch_devices(cluster), timeout_s) as processes:
                meter = StepMeter(model.captured, model.module, model.inputs, processes)
                values = meter.op_seconds(device).tolist()
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(path, {"format": FORMAT, "seconds": values}, indent=None)
        seconds[kind] = _read(path, graph.n_ops)
    report(len(kinds), len(kinds))
    return replace(graph, seconds=seconds)


def _read(path: Path, n_ops: int) -> FloatArray:
    record = json_fields.fields(read_json(path), str(path), KEYS, format=FORMAT)
    stored = json_fields.array(record["seconds"], f"{path}: seconds")
    if len(stored) != n_ops:
        raise ExecutionError(f"{path}: has {len(stored)} ops; delete it to time them again")
    return np.array([json_fields.number(time_s, f"{path}: seconds") for time_s in stored])
