"""What the benchmarks run on, and how a baseline is timed."""

from __future__ import annotations

import timeit
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np

from envs.cluster.cluster import Cluster
from envs.cluster.presets import V100, get_cluster, uniform
from envs.problem import Problem
from graphs import OpGraph, build_graph
from graphs.dataset import load_family
from graphs.system.array_types import IntArray


def seconds_of(
    call: Callable[[], object], rounds: int = 3, timer: Callable[[], float] = timeit.default_timer
) -> float:
    """Least wall time of a baseline, which is too slow for the calibration of pytest-benchmark."""
    return min(timeit.repeat(call, number=1, repeat=rounds, timer=timer))


@cache
def captured(family: str, n_decisions: int, cluster: str = "4xv100") -> Problem:
    """The shipped graph of a family whose episode is nearest to `n_decisions` ops long."""
    graphs = load_family(family)
    nearest = min(graphs, key=lambda graph: abs(int(graph.is_compute.sum()) - n_decisions))
    return Problem(nearest, get_cluster(cluster))


def decisions(problem: Problem) -> int:
    """Length of an episode."""
    return int(problem.graph.is_compute.sum())


@cache
def layered_graph(n_ops: int, seed: int = 0) -> OpGraph:
    """A random graph of any size: each op reads one to three of the 20 ops before it; about 1.9 edges an op.

    Costs and sizes are log-normal, such that an op takes about as long as sending a tensor.
    """
    rng = np.random.default_rng(seed)
    ops = [{"name": f"op{op}", "flops": float(rng.lognormal(20.0, 1.0))} for op in range(n_ops)]
    readers: list[set[int]] = [set() for _ in range(n_ops)]
    for op in range(1, n_ops):
        for producer in rng.integers(max(op - 20, 0), op, int(rng.integers(1, 4))):
            readers[producer].add(op)
    tensors = [(op, float(rng.lognormal(14.0, 1.0)), sorted(users)) for op, users in enumerate(readers)]
    return build_graph(f"layered-{n_ops}", "layered", ops, tensors)


@cache
def training_graph(n_ops: int, seed: int = 0) -> OpGraph:
    """A chain of forward ops with short skip connections, and its backward ops; log-normal times."""
    rng, n = np.random.default_rng(seed), n_ops // 2
    ops = [{"name": f"f{op}", "flops": float(rng.lognormal(22.0, 1.0))} for op in range(n)]
    for op in reversed(range(n)):
        ops.append({"name": f"b{op}", "flops": float(rng.lognormal(22.7, 1.0)), "phase": "backward"})
    readers = [
        {min(op + 1, 2 * n - 1), min(op + 1 + 4 * (op % 7 == 0), 2 * n - 1)} for op in range(2 * n - 1)
    ]
    tensors = [
        (op, 1e6, sorted(users | ({2 * n - 1 - op} if op < n else set()))) for op, users in enumerate(readers)
    ]
    return build_graph(f"training-{n_ops}", "training", ops, tensors)


def v100s(n_devices: int, schedule: str, sharing: str = "egress") -> Cluster:
    """So many V100s, each with one outgoing bus, under a schedule."""
    cluster = uniform(f"{n_devices}xv100", V100, n_devices, 50e9, sharing=sharing)
    return replace(cluster, schedule=schedule)


def random_placements(problem: Problem, n: int) -> IntArray:
    """Every placement unit on a device drawn for it, int64 (n, n_ops)."""
    units = np.random.default_rng(1).integers(problem.n_devices, size=(n, len(problem.graph.units)))
    return np.ascontiguousarray(units[:, problem.graph.unit_of])


def nodes_and_edges(problem: Problem) -> int:
    """What a simulation's time is proportional to."""
    return problem.graph.n_ops + len(problem.graph.edges)
