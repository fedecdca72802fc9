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
    devices = tuple(Device(f"d{index}", "d", 100.0, 1.0, 1.0, 0.0) for index in range(n_devices))
    links = np.ones((n_devices, n_devices))
    problem = Problem(build_graph("cut", "", ops, []), Cluster("equal", devices, links, 0 * links))
    return problem, [device for device, _ in shuffled]
