"""Workloads of Tarnawski et al. (2020): graphs of layers or operators on accelerators and CPUs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, cast

import numpy as np

from agent.instances.profiles import DATA
from envs.cluster.cluster import Cluster, Device
from graphs.io.layer_graphs import in_order, neighbours
from graphs.op_graph import OpGraph, build_graph
from graphs.system.json_files import read_json_lines

MS_PER_S = 1e3
CPU_BYTES = 1e12
"""Memory of a CPU, which the workloads do not limit."""
BYTES_PER_S = 2.0**31
"""Bandwidth of each link: the bytes over the cost of edges, with costs in milliseconds."""


@cache
def workloads() -> dict[str, Mapping[str, Any]]:
    """Reads the workloads of msr-fiddle/dnn-partitioning by name."""
    found: dict[str, Mapping[str, Any]] = {}
    for _, value in read_json_lines(DATA / "tarnawski.jsonl.gz"):
        record = cast("Mapping[str, Any]", value)
        _, use, level = record["family"].split("/")
        kind = f"{use.removesuffix('-inputs')}-{level.removesuffix('Graphs').lower()}s"
        found[f"{kind.replace('operators', 'ops')}-{record['name'].lower()}"] = record
    return found


def workload_graph(name: str) -> OpGraph:
    """Makes the graph of a workload.

    Nodes of a colour are colocated. A node makes one tensor for each number of bytes on its edges.
    """
    record = workloads()[name]
    nodes = record["nodes"]
    at = {node["id"]: index for index, node in enumerate(nodes)}
    edges = [(at[one], at[other]) for one, other, *_ in record["edges"]]
    order = in_order(*neighbours(edges, len(nodes)), where=f"workload '{name}'")
    rank = {index: position for position, index in enumerate(order)}
    ops: list[dict[str, object]] = [
        {
            "name": nodes[index]["op"],
            "phase": "backward" if nodes[index]["backward"] else "forward",
            "resident_bytes": nodes[index]["mem_bytes"],
            "colocate": nodes[index]["color"],
            "seconds": {kind: nodes[index][f"{kind}_latency"] / MS_PER_S for kind in ("acc", "cpu")},
        }
        for index in order
    ]
    readers: dict[tuple[int, float], list[int]] = {}
    for (one, other), (_, _, size, _) in zip(edges, record["edges"], strict=True):
        readers.setdefault((rank[one], size), []).append(rank[other])
    tensors = [(producer, size, to) for (producer, size), to in sorted(readers.items())]
    return build_graph(name, "tarnawski", ops, tensors)


def workload_cluster(name: str) -> Cluster:
    """Makes the accelerators and CPUs of a workload, each pair with a link of its own."""
    meta = workloads()[name]["meta"]
    kinds = ["acc"] * meta["maxFPGAs"] + ["cpu"] * meta["maxCPUs"]
    memory = {"acc": float(meta["maxSizePerFPGA"]), "cpu": CPU_BYTES}
    devices = tuple(
        Device(f"{kind}{kinds[:index].count(kind)}", kind, memory[kind], 1e12, 1e11, 0.0)
        for index, kind in enumerate(kinds)
    )
    shape = (len(kinds), len(kinds))
    title = f"{meta['maxFPGAs']}acc+{meta['maxCPUs']}cpu-{memory['acc'] / 2**30:.3g}GiB"
    return Cluster(title, devices, np.full(shape, BYTES_PER_S), np.zeros(shape), sharing="pair")
