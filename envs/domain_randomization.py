"""Domain randomization: random variations of a problem, for policies that meet unseen models and clusters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.cluster.cluster import Cluster, ClusterError, Device
from envs.cluster.drawn import draw_cluster
from envs.costs.op_seconds import CostError
from envs.problem import Problem
from graphs.graph_columns import GraphError
from graphs.op_graph import OpGraph

SPEED_SPREAD = 0.3
"""Standard deviation of the logarithm of the speed that devices share, and of that in which they differ."""
P_UNEQUAL = 0.25
"""Probability that the devices of a cluster get different speeds."""
LINK_SPREAD = 0.8
"""Standard deviation of the logarithm of the links' bandwidth: from PCIe to NVLink within one cluster."""
LATENCY_SPREAD = 0.5
"""Standard deviation of the logarithm of the links' latency."""
P_SCARCE = 0.3
"""Probability that memory is scarce."""
SCARCE_MEMORY = (1.2, 3.0)
"""Range of scarce memory: that of all devices over the footprint of the graph."""
BATCH_SPREAD = 0.5
"""Standard deviation of the logarithm of the factor of the batch size."""
WIDTH_SPREAD = 0.5
"""Greatest standard deviation of the logarithm of the factor of the width of each module."""
MAX_DRAWS = 50
"""Clusters that are drawn at most until a graph fits on one."""


def draw_cluster_for(graph: OpGraph, rng: np.random.Generator) -> Cluster:
    """Draws clusters until the graph fits on one, which is returned, or else the last."""
    for _ in range(MAX_DRAWS):
        cluster = draw_cluster(rng)
        if Problem(graph, cluster).is_feasible:
            break
    return cluster


def randomize_domain(
    graph: OpGraph, cluster: Cluster, rng: np.random.Generator, *, all_devices: bool = False
) -> Problem:
    """Draws a resized graph on some of the devices, with other speeds and links, at times with scarce memory.

    At least two devices are left where there were two, and all with `all_devices`. Where memory becomes
    scarce, every device keeps the same share of its memory. Where a draw leaves the bounds of physics, the
    problem is left as it is.
    """
    try:
        return _draw(graph, cluster, rng, cluster.n_devices if all_devices else 2)
    except (GraphError, ClusterError, CostError):
        return Problem(graph, cluster)


def _draw(graph: OpGraph, cluster: Cluster, rng: np.random.Generator, least: int) -> Problem:
    graph = resize(graph, rng)
    n_devices = int(rng.integers(min(least, cluster.n_devices), cluster.n_devices + 1))
    kept = np.sort(rng.choice(cluster.n_devices, n_devices, replace=False))
    unequal = SPEED_SPREAD if rng.random() < P_UNEQUAL else 0.0
    common = np.exp(SPEED_SPREAD * rng.standard_normal())
    speeds = common * np.exp(unequal * rng.standard_normal(n_devices))
    devices = tuple(
        _faster(cluster.devices[index], float(speed)) for index, speed in zip(kept, speeds, strict=True)
    )
    pairs = np.ix_(kept, kept)
    randomized = Problem(
        graph,
        replace(
            cluster,
            devices=devices,
            bytes_per_s=cluster.bytes_per_s[pairs] * np.exp(LINK_SPREAD * rng.standard_normal()),
            latency_s=cluster.latency_s[pairs] * np.exp(LATENCY_SPREAD * rng.standard_normal()),
            n_half_bytes=cluster.n_half_matrix[pairs],
        ),
    )
    is_scarce, memory_ratio = rng.random() < P_SCARCE, rng.uniform(*SCARCE_MEMORY)
    if not is_scarce:
        return randomized
    memory_bytes = randomized.cluster.memory_bytes
    share = min(memory_ratio * float(randomized.footprint_bytes.sum()) / float(memory_bytes.sum()), 1.0)
    scarce = randomized.with_memory(share * memory_bytes)
    return scarce if scarce.is_feasible else randomized


def resize(graph: OpGraph, rng: np.random.Generator) -> OpGraph:
    """Draws a graph of the same ops with another batch size and another width of each module.

    Work and tensors grow in proportion; the batch size does not change parameters, their gradients and
    updates.
    """
    batch = np.exp(BATCH_SPREAD * rng.standard_normal())
    spread = rng.uniform(0.0, WIDTH_SPREAD)
    modules, module = np.unique(graph.modules, return_inverse=True)
    width = np.exp(spread * rng.standard_normal(len(modules)))[module]
    of_weights = np.array([phase == "optimizer" for phase in graph.phases])
    work = width * np.where(of_weights, 1.0, batch)
    is_activation = graph.tensor_owner < 0
    return replace(
        graph,
        flops=graph.flops * work,
        bytes_moved=graph.bytes_moved * work,
        resident_bytes=graph.resident_bytes * width,
        tensor_bytes=graph.tensor_bytes * width[graph.tensor_producer] * np.where(is_activation, batch, 1.0),
        seconds={kind: seconds * work for kind, seconds in graph.seconds.items()},
    )


def _faster(device: Device, factor: float) -> Device:
    return replace(
        device,
        flops_per_s=device.flops_per_s * factor,
        bytes_per_s=device.bytes_per_s * factor,
        launch_s=device.launch_s / factor,
    )
