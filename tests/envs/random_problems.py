"""Random graphs, clusters and placements for property tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from envs.cluster.cluster import COPIES, ISSUE_PER, SCHEDULES, SHARING, TRANSFER_PER, Cluster, Device
from graphs import OpGraph, build_graph


def random_graph(
    rng: np.random.Generator, n_ops: int, *, ties: bool = False, name: str = "random"
) -> OpGraph:
    """Draws a random graph of three phases; `ties` makes times and sizes small integers, so events tie."""
    ops, phases, source = [], [], []
    for op in range(n_ops):
        is_source = bool(rng.random() < 0.15)
        phase = (
            ("forward", "backward", "optimizer")[min(3 * op // n_ops, 2)] if rng.random() < 0.8 else "forward"
        )
        seconds = float(rng.integers(0, 4)) if ties else float(rng.exponential(1.0) * (rng.random() < 0.9))
        kind = str(rng.choice(["parameter", "input"])) if is_source else "aten.mm"
        source.append(is_source)
        phases.append(phase)
        ops.append(
            {
                "name": f"op{op}",
                "type": kind,
                "phase": "forward" if is_source else phase,
                "resident_bytes": float(rng.integers(0, 5)) if kind == "parameter" else 0,
                "colocate": int(rng.integers(0, 4)) if rng.random() < 0.2 else None,
                "seconds": {"a": seconds, "b": 2.0 * seconds},
            }
        )
    tensors = []
    for op in range(n_ops):
        later = [reader for reader in range(op + 1, min(op + 12, n_ops)) if not source[reader]]
        for _ in range(int(rng.integers(0, 3))):
            readers = [reader for reader in later if rng.random() < 0.25]
            size = float(rng.integers(0, 4)) if ties else float(rng.exponential(1.0))
            tensors.append((op, size, readers))
    return build_graph(name, "random", ops, tensors)


def random_cluster(
    rng: np.random.Generator, n_devices: int, *, ties: bool = False, schedule: str | None = None
) -> Cluster:
    """Draws a heterogeneous cluster under random rules; `ties` makes its times small integers."""
    shape = (n_devices, n_devices)
    uneven = bool(rng.random() < 0.5) and not ties
    cluster = Cluster(
        name="random",
        devices=tuple(
            Device(f"d{index}", str(rng.choice(["a", "b"])), 1e3, 1.0, 1.0, 0.0) for index in range(n_devices)
        ),
        bytes_per_s=rng.uniform(0.3, 3.0, shape) if uneven else np.ones(shape),
        latency_s=rng.uniform(0.0, 1.0, shape) if uneven else np.full(shape, float(rng.integers(0, 2))),
        schedule=schedule or str(rng.choice(SCHEDULES)),
        sharing=str(rng.choice(SHARING)),
        transfer_per=str(rng.choice(TRANSFER_PER)),
        op_gap_s=float(rng.integers(0, 2)) * (1.0 if ties else 0.1),
        transfer_gap_s=float(rng.integers(0, 2)) * (1.0 if ties else 0.1),
    )
    n_half = rng.uniform(0.0, 1.0, shape) if uneven else float(rng.integers(0, 2))
    cluster = replace(cluster, n_half_bytes=n_half if rng.random() < 0.5 else 0.0)
    return under_a_host(cluster, rng, ties=ties) if cluster.schedule == "program" else cluster


def under_a_host(cluster: Cluster, rng: np.random.Generator, *, ties: bool = False) -> Cluster:
    """Draws how the one host thread issues ops and copies; half of the hosts take no time."""
    issue_s = (1.0 if ties else float(rng.choice([0.01, 0.3, 2.0]))) * float(rng.integers(0, 2))
    copies = str(rng.choice(COPIES))
    transfer_per = "destination" if copies == "eager" else cluster.transfer_per
    issue_per = str(rng.choice(ISSUE_PER))
    cluster = replace(cluster, issue_s=issue_s, issue_per=issue_per, copies=copies, transfer_per=transfer_per)
    return randomly_slowed(cluster, rng, ties=ties) if rng.random() < 0.5 else cluster


def randomly_slowed(cluster: Cluster, rng: np.random.Generator, *, ties: bool = False) -> Cluster:
    """Draws how much copies slow the ops of each device; not at all on a third of them."""
    slowdowns = [2.0] if ties else [1.0, 1.3, float(rng.uniform(1.0, 4.0))]
    return with_slowdown(cluster, [float(rng.choice(slowdowns)) for _ in cluster.devices])


def with_slowdown(cluster: Cluster, slowdown: float | Sequence[float]) -> Cluster:
    """Returns the cluster with one slowdown beside copies on all devices, or one for each."""
    slowdowns = np.broadcast_to(slowdown, cluster.n_devices).tolist()
    devices = zip(cluster.devices, slowdowns, strict=True)
    return replace(cluster, devices=tuple(replace(each, overlap_slowdown=by) for each, by in devices))


def random_placement(rng: np.random.Generator, graph: OpGraph, n_devices: int) -> np.ndarray:
    """Draws a device per placement unit, int64 (n_ops,)."""
    devices: np.ndarray = rng.integers(0, n_devices, len(graph.units))[graph.unit_of]
    return devices


@st.composite
def problems(draw: st.DrawFn, max_ops: int = 40, max_devices: int = 5) -> tuple[OpGraph, Cluster, np.ndarray]:
    """Draws a graph, a cluster and a complete placement."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    ties = draw(st.booleans())
    graph = random_graph(rng, draw(st.integers(1, max_ops)), ties=ties)
    cluster = random_cluster(rng, draw(st.integers(1, max_devices)), ties=ties)
    return graph, cluster, random_placement(rng, graph, cluster.n_devices)
