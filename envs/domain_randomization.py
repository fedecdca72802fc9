"""Problems like a given one: to train policies for models and clusters that nobody described beforehand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.cluster.cluster import Cluster, Device
from envs.problem import Problem
from graphs.op_graph import OpGraph

SPEED_SPREAD = 0.3
"""Standard deviation of the logarithm of a device's speed; what devices have in common, and what not."""
UNLIKE = 0.25
"""How often the devices of a cluster differ beyond what was given."""
LINK_SPREAD = 0.8
"""Standard deviation of the logarithm of the links' bandwidth: from PCIe to NVLink within one cluster."""
LATENCY_SPREAD = 0.5
TIGHT = 0.3
"""How often memory is scarce."""
TIGHT_ROOM = (1.2, 3.0)
"""Then, all memory over what the graph holds for long."""
BATCH_SPREAD = 0.5
"""Standard deviation of the logarithm of what the batch size is multiplied by."""
WIDTH_SPREAD = 0.5
"""Greatest standard deviation of the logarithm of what the sizes of each module are multiplied by."""


def randomize_domain(graph: OpGraph, cluster: Cluster, rng: np.random.Generator) -> Problem:
    """A resized graph on some of the devices, with other speeds and links, at times with scarce memory.

    At least two devices are left where there were two. Where memory is made scarce, every device has the same
    share of what it had.
    """
    graph = resize(graph, rng)
    n_devices = int(rng.integers(min(2, cluster.n_devices), cluster.n_devices + 1))
    kept = np.sort(rng.choice(cluster.n_devices, n_devices, replace=False))
    unlike = SPEED_SPREAD if rng.random() < UNLIKE else 0.0
    common = np.exp(SPEED_SPREAD * rng.standard_normal())
    speeds = common * np.exp(unlike * rng.standard_normal(n_devices))
    devices = tuple(
        _faster(cluster.devices[index], float(speed)) for index, speed in zip(kept, speeds, strict=True)
    )
    pairs = np.ix_(kept, kept)
    varied = Problem(
        graph,
        replace(
            cluster,
            devices=devices,
            bytes_per_s=cluster.bytes_per_s[pairs] * np.exp(LINK_SPREAD * rng.standard_normal()),
            latency_s=cluster.latency_s[pairs] * np.exp(LATENCY_SPREAD * rng.standard_normal()),
        ),
    )
    scarce, room = rng.random() < TIGHT, rng.uniform(*TIGHT_ROOM)
    if not scarce:
        return varied
    memory_bytes = varied.cluster.memory_bytes
    share = min(room * float(varied.footprint_bytes.sum()) / float(memory_bytes.sum()), 1.0)
    tight = varied.with_memory(share * memory_bytes)
    return tight if tight.is_feasible else varied


def resize(graph: OpGraph, rng: np.random.Generator) -> OpGraph:
    """A graph of the same ops with another batch size, and each module wider or narrower by its own factor.

    Work and tensors grow in proportion; the batch size leaves alone parameters, their gradients and updates.
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
