"""Measures a cluster of this machine in seconds where it is named before it was measured."""

from __future__ import annotations

import sys

from envs.cluster.cluster import Cluster
from envs.cluster.files import CLUSTER_NAME, how_to_measure, is_own_cluster, own_cluster_file
from envs.cluster.presets import get_cluster


def get_or_measure_cluster(spec: str) -> Cluster:
    """Finds a cluster as `get_cluster` does; one of this machine is measured quickly if it never was.

    The times are kept apart from those of `python -m agent.calibration measure`, which replaces the cluster.

    Raises:
        ClusterError, FileFormatError: see `get_cluster`.
        MeasuredOpsError: there are fewer cores than devices, or a time is impossible.
    """
    file = own_cluster_file(spec)
    if is_own_cluster(spec) and not file.is_file():
        print(
            f"cluster '{spec}' is measured for some seconds and kept as {file}; more exactly, in minutes: "
            f"{how_to_measure(spec)}",
            file=sys.stderr,
        )
        _measure(spec)
    return get_cluster(spec)


def _measure(name: str) -> None:
    import torch

    from agent.calibration.this_machine import Effort, measure_machine, measure_processes

    effort = Effort(1, "quick_times.sqlite", cpu_side=512, most_bytes=1 << 22, run_s=1e-3, keeps_kinds=True)
    n_threads = torch.get_num_threads()
    try:
        if name == CLUSTER_NAME:
            measure_machine(effort, 1)
        else:
            measure_processes(int(name.removesuffix("xcpu")), effort)
    finally:
        torch.set_num_threads(n_threads)
