"""Profiles of PipeDream and inputs of Piper, and the clusters that their layers are placed on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from envs.cluster.cluster import Cluster, Device
from graphs.io.layer_profiles import read_pipedream_profile, read_piper_profile
from graphs.op_graph import OpGraph

DATA = Path(__file__).parent / "data"
"""Graphs, clusters and best known answers; `agent/instances/README.md` says whose they are."""
MILLISECONDS = ("piper_resnet",)
"""Inputs of Piper whose times are milliseconds."""
EQUAL, UNEQUAL = "equal", "half at half speed"
FAST, SLOW = "fast", "slow"
MEMORY_BYTES, BYTES_PER_S, LATENCY_S = 1e12, 12e9, 1e-5
PEAK_FLOPS_PER_S, PEAK_BYTES_PER_S = 15.7e12, 900e9


def profile_paths() -> dict[str, Path]:
    """Lists the profiles of msr-fiddle/pipedream and the inputs of msr-fiddle/piper by name."""
    return {path.name.partition(".")[0]: path for path in sorted(DATA.glob("pipe*.gz"))}


def profile_graph(path: Path) -> OpGraph:
    """Reads a profile, with the times of devices at half speed too.

    Layers that read nothing take no time, as in PipeDream's planner: they load data.
    """
    name = path.name.partition(".")[0]
    if name.startswith("pipedream"):
        graph = read_pipedream_profile(path, kind=FAST)
    else:
        graph = read_piper_profile(path, kind=FAST, unit_s=1e-3 if name in MILLISECONDS else 1.0)
    loads = np.array([not len(graph.predecessors.row(op)) for op in range(graph.n_ops)])
    seconds = np.where(loads, 0.0, graph.seconds[FAST])
    return replace(graph, name=name, seconds={FAST: seconds, SLOW: 2 * seconds})


def profile_cluster(n_devices: int, speeds: str) -> Cluster:
    """Makes devices with links of their own between all pairs; the second half may have half the speed."""
    devices = []
    for at in range(n_devices):
        is_slow = speeds == UNEQUAL and at >= n_devices // 2
        kind, slower = (SLOW, 2) if is_slow else (FAST, 1)
        peaks = PEAK_FLOPS_PER_S / slower, PEAK_BYTES_PER_S / slower
        devices.append(Device(f"gpu{at}", kind, MEMORY_BYTES, *peaks, 0.0))
    shape = (n_devices, n_devices)
    links = np.full(shape, BYTES_PER_S), np.full(shape, LATENCY_S)
    return Cluster(f"{n_devices}, {speeds}", tuple(devices), *links, sharing="pair")
