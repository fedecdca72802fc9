"""Small graphs whose step can be worked out by hand."""

from __future__ import annotations

import numpy as np

from envs.cluster.cluster import Cluster, Device
from envs.problem import Problem
from graphs import OpGraph, build_graph


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
    devices = tuple(
        Device(kind, kind, memory, 1.0, 1.0, 0.0)
        for kind, memory in (("slow", 100.0), ("fast", memory_bytes))
    )
    return Problem(graph, Cluster("two", devices, np.full((2, 2), 8.0), np.full((2, 2), 0.25)))


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
    devices = tuple(Device(f"d{index}", "d", 8.0, 1.0, 1.0, 0.0) for index in range(2))
    cluster = Cluster("two", devices, np.ones((2, 2)), np.zeros((2, 2)))
    return Problem(build_graph("scarce", "", ops, []), cluster)
