"""Small graphs whose step can be worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.cluster.cluster import Cluster, Device
from envs.problem import Problem
from graphs import OpGraph, build_graph


def cluster_of(*kinds: str, bytes_per_s: float = 1.0, latency_s: float = 0.0, **rules: Any) -> Cluster:
    """Builds devices of 100 bytes that differ in their kinds alone, and equal links between them.

    A device is named by its kind, and numbered where several are of its kind.
    """
    devices = tuple(
        Device(kind if kinds.count(kind) == 1 else f"{kind}{at}", kind, 100.0, 1.0, 1.0, 0.0)
        for at, kind in enumerate(kinds)
    )
    shape = (len(kinds), len(kinds))
    return Cluster("hand-made", devices, np.full(shape, bytes_per_s), np.full(shape, latency_s), **rules)


def chain_problem(memory_bytes: float = 100.0) -> Problem:
    """Builds two ops of 2 s and 1 s, 4 bytes between them, on devices one of which is twice as fast."""
    graph = build_graph(
        "chain",
        "",
        [
            {"name": "a", "seconds": {"slow": 2.0, "fast": 1.0}, "resident_bytes": 10},
            {"name": "b", "seconds": {"slow": 1.0, "fast": 0.5}, "resident_bytes": 10},
        ],
        [(0, 4.0, [1])],
    )
    problem = Problem(graph, cluster_of("slow", "fast", bytes_per_s=8.0, latency_s=0.25))
    return problem.with_memory(np.array([100.0, memory_bytes]))


def branches() -> OpGraph:
    """Builds two branches, of one op and of three, and the op in which they join."""
    return build_graph(
        "branches",
        "",
        [{"name": name, "seconds": {"gpu": 1.0}} for name in ("left", "right", "on", "further", "join")],
        [(0, 80.0, [4]), (1, 99.0, [2]), (2, 99.0, [3]), (3, 4.0, [4])],
    )


def scarce_problem() -> Problem:
    """Builds three ops for two devices; if the first two are apart, neither has memory for the third."""
    sizes = (("a", 4), ("b", 4), ("c", 8))
    ops = [{"name": name, "seconds": {"d": 1.0}, "resident_bytes": size} for name, size in sizes]
    problem = Problem(build_graph("scarce", "", ops, []), cluster_of("d", "d"))
    return problem.with_memory(np.full(2, 8.0))


def cut_problem(rng: np.random.Generator, n_devices: int = 3, n_each: int = 4) -> tuple[Problem, list[int]]:
    """Builds independent ops whose shortest step is known, 1 s: each device's second is cut into pieces.

    Returns:
        The problem, its ops shuffled, and a device for each op that reaches the shortest step.
    """
    pieces = [
        (device, float(seconds)) for device in range(n_devices) for seconds in rng.dirichlet(np.ones(n_each))
    ]
    shuffled = [pieces[index] for index in rng.permutation(len(pieces))]
    ops = [{"name": f"op{i}", "seconds": {"d": seconds}} for i, (_, seconds) in enumerate(shuffled)]
    problem = Problem(build_graph("cut", "", ops, []), cluster_of(*["d"] * n_devices))
    return problem, [device for device, _ in shuffled]
