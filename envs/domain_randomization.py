"""Domain randomization: random clusters and variations of a problem, for unseen models and clusters.

Clusters that are drawn have 2 to 16 devices, equal or of two kinds, with links and memory of many sorts.
Their devices are those of the presets and of `envs.cluster.kinds`, with costs from datasheets or calibrated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import NamedTuple, TypeVar

import numpy as np

from envs.cluster import presets
from envs.cluster.cluster import Cluster, ClusterError, Device
from envs.cluster.host import EAGER_ISSUE_S
from envs.cluster.kinds import KINDS, measured_links
from envs.costs.op_seconds import CostError
from envs.problem import Problem
from graphs.graph_columns import GraphError
from graphs.op_graph import OpGraph

T = TypeVar("T")

DATASHEET_DEVICES = (presets.K80, presets.V100, presets.A100, presets.RTX3060, presets.H100)
N_DEVICES = (2, 16)
"""Least and greatest number of devices, the host included."""
P_TWO_KINDS = 0.3
"""Probability that the GPUs are of two kinds."""
SCARCE_SHARE = (0.1, 0.5)
ETHERNET_BYTES_PER_S, ETHERNET_LATENCY_S = 1.25e9, 50e-6
"""10 Gb/s; a guess at the latency of TCP."""
SPEED_SPREAD = 0.3
"""Standard deviation of the logarithm of the speed that devices share, and of that in which they differ."""
P_UNEQUAL = 0.25
"""Probability that the devices of a cluster get different speeds."""
LINK_SPREAD = 0.8
"""Standard deviation of the logarithm of the links' bandwidth: from PCIe to NVLink within one cluster."""
LATENCY_SPREAD = 0.5
"""Standard deviation of the logarithm of the links' latency."""
P_HOST, HOST_SPREAD = 0.5, 0.5
"""Probability that a cluster that is drawn counts its host, and standard deviation of the logarithm of the
host's time per op over that of eager PyTorch."""
P_SCARCE = 0.3
"""Probability that memory is scarce: that of a problem, or that of the GPUs of a cluster that is drawn."""
SCARCE_MEMORY = (1.2, 3.0)
"""Range of scarce memory: that of all devices over the footprint of the graph."""
BATCH_SPREAD = 0.5
"""Standard deviation of the logarithm of the factor of the batch size."""
WIDTH_SPREAD = 0.5
"""Greatest standard deviation of the logarithm of the factor of the width of each module."""
MAX_DRAWS = 50
"""Clusters that are drawn at most until a graph fits on one."""


class Wire(NamedTuple):
    """A kind of links; the fields are those of `Cluster`."""

    bytes_per_s: float
    latency_s: float = presets.LATENCY_S
    n_half_bytes: float = 0.0
    sharing: str = "egress"


def wires() -> dict[str, tuple[Wire, ...]]:
    """Returns the kinds of links by class, from datasheets and measured: `nvlink`, `pcie` and `nodes`."""

    def measured(name: str, sharing: str = "egress") -> Wire:
        return Wire(**asdict(measured_links()[name]), sharing=sharing)

    return {
        "nvlink": (
            Wire(2 * presets.NVLINK2_BYTES_PER_S, sharing="pair"),
            Wire(presets.NVLINK3_BYTES_PER_S),
            Wire(presets.NVLINK4_BYTES_PER_S),
            measured("v100-nvlink", "pair"),
            measured("a100-nvswitch"),
        ),
        "pcie": (
            Wire(presets.PCIE3_BYTES_PER_S),
            Wire(presets.PCIE4_BYTES_PER_S),
            measured("pcie3"),
            measured("a40-pcie4"),
        ),
        "nodes": (
            Wire(ETHERNET_BYTES_PER_S, ETHERNET_LATENCY_S),
            Wire(presets.INFINIBAND_BYTES_PER_S, presets.NODE_LATENCY_S),
            measured("a100-nodes"),
        ),
    }


LAYOUTS = ("nvlink", "pcie", "nodes", "host")
"""One host with NVLink or PCIe, two nodes with a network between, GPUs and their host over PCIe."""


def draw_cluster(rng: np.random.Generator) -> Cluster:
    """Draws a cluster; its name says the layout, one of `LAYOUTS`, and the number of devices."""
    layout = _pick(rng, LAYOUTS)
    least, most = N_DEVICES
    n_devices = int(rng.integers(least, most + 1))
    devices = _gpus(rng, n_devices - (layout == "host"))
    if layout == "host":
        devices.append(replace(presets.XEON, name="cpu0"))
    of_class = wires()
    inside = {"nodes": _pick(rng, ("nvlink", "pcie")), "host": "pcie"}.get(layout, layout)
    within, between = _pick(rng, of_class[inside]), _pick(rng, of_class["nodes"])
    in_second = np.arange(n_devices) >= (int(rng.integers(1, n_devices)) if layout == "nodes" else n_devices)
    local = in_second[:, None] == in_second[None, :]
    has_host, slower = rng.random() < P_HOST, np.exp(HOST_SPREAD * rng.standard_normal())
    return Cluster(
        f"random-{layout}-{n_devices}",
        tuple(devices),
        np.where(local, within.bytes_per_s, between.bytes_per_s),
        np.where(local, within.latency_s, between.latency_s),
        sharing=within.sharing,
        n_half_bytes=np.where(local, within.n_half_bytes, between.n_half_bytes),
        issue_s=float(slower) * EAGER_ISSUE_S if has_host else 0.0,
    )


def _gpus(rng: np.random.Generator, count: int) -> list[Device]:
    """Draws the GPUs `gpu0`, `gpu1`, ...: equal or of two kinds, at times with scarce memory."""
    kinds = (*DATASHEET_DEVICES, *(kind.device() for kind in KINDS.values()))
    one, other = (kinds[index] for index in rng.choice(len(kinds), 2, replace=False))
    n_first = int(rng.integers(1, count)) if count > 1 and rng.random() < P_TWO_KINDS else count
    share = rng.uniform(*SCARCE_SHARE) if rng.random() < P_SCARCE else 1.0
    return [
        replace(device, name=f"gpu{index}", memory_bytes=share * device.memory_bytes)
        for index, device in enumerate([one] * n_first + [other] * (count - n_first))
    ]


def _pick(rng: np.random.Generator, options: Sequence[T]) -> T:
    return options[int(rng.integers(len(options)))]


def draw_problem(graph: OpGraph, rng: np.random.Generator) -> Problem:
    """Draws clusters until the graph fits on one, or else leaves it on the last."""
    for _ in range(MAX_DRAWS):
        problem = Problem(graph, draw_cluster(rng))
        if problem.is_feasible:
            break
    return problem


def randomize_domain(problem: Problem, rng: np.random.Generator, *, all_devices: bool = False) -> Problem:
    """Draws a resized graph on some of the devices, with other speeds and links, at times with scarce memory.

    At least two devices are left where there were two, and all with `all_devices`. Where memory becomes
    scarce, every device keeps the same share of its memory. Where a draw leaves the bounds of physics, the
    problem is left as it is.
    """
    try:
        return _draw(problem, rng, problem.n_devices if all_devices else 2)
    except (GraphError, ClusterError, CostError):
        return problem


def _draw(problem: Problem, rng: np.random.Generator, least: int) -> Problem:
    graph, cluster = resize(problem.graph, rng), problem.cluster
    n_devices = int(rng.integers(min(least, cluster.n_devices), cluster.n_devices + 1))
    chosen = np.sort(rng.choice(cluster.n_devices, n_devices, replace=False))
    unequal = SPEED_SPREAD if rng.random() < P_UNEQUAL else 0.0
    common = np.exp(SPEED_SPREAD * rng.standard_normal())
    speeds = common * np.exp(unequal * rng.standard_normal(n_devices))
    devices = []
    for device, speed in zip((cluster.devices[index] for index in chosen), speeds.tolist(), strict=True):
        rates = {"flops_per_s": device.flops_per_s * speed, "bytes_per_s": device.bytes_per_s * speed}
        devices.append(replace(device, **rates, launch_s=device.launch_s / speed))
    pairs = np.ix_(chosen, chosen)
    randomized = replace(
        problem,
        graph=graph,
        cluster=replace(
            cluster,
            devices=tuple(devices),
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
