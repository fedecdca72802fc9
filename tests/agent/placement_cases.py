"""Graphs, clusters and what is placed, for the tests of placers, bounds and evaluation."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import numpy as np

from agent.placers.base import PLACERS, Budget, PlacementResult
from envs.cluster.cluster import Cluster, Device
from envs.objective import Objective
from envs.problem import Problem
from envs.simulator.simulate import simulate_many
from graphs.op_graph import OpGraph, build_graph

GB = 1e9


def make_cluster(
    n_devices: int = 3, memory_bytes: float = 16 * GB, slower: float = 1.0, name: str = "toy", **rules: object
) -> Cluster:
    """Devices at 1e12 FLOP/s and 1e11 B/s; each one `slower` times slower than the one before."""
    devices = tuple(
        Device(f"gpu{i}", f"kind{i}", memory_bytes, 1e12 / slower**i, 1e11 / slower**i, 1e-6)
        for i in range(n_devices)
    )
    links = np.full((n_devices, n_devices), 1e10)
    return Cluster(name, devices, links, np.full((n_devices, n_devices), 1e-6), **rules)  # type: ignore[arg-type]


def training_graph(n_layers: int = 6, n_branches: int = 3, name: str = "toy") -> OpGraph:
    """Parallel chains of layers that join in a loss, with backward and updates; each layer keeps 1 GB."""
    ops: list[dict[str, object]] = []
    tensors: list[tuple[int, float, list[int]]] = []
    readers: dict[int, list[int]] = {}

    def op(label: str, *inputs: int, **fields: object) -> int:
        ops.append({"name": label, "flops": 1e9, **fields})
        for producer in inputs:
            readers.setdefault(producer, []).append(len(ops) - 1)
        return len(ops) - 1

    held = {"resident_bytes": GB, "flops": 0, "type": "parameter"}
    source = op("input", type="input", flops=0)
    weights, layers, ends = {}, {}, []
    for branch in range(n_branches):
        below = source
        for layer in range(n_layers):
            key, group = f"b{branch}.l{layer}", branch * n_layers + layer
            weights[key] = op(f"{key}.weight", colocate=group, **held)
            below = layers[key] = op(f"{key}.forward", below, weights[key], colocate=group)
        ends.append(below)
    above = op("loss", *ends)
    for branch in reversed(range(n_branches)):
        gradient = above
        for layer in reversed(range(n_layers)):
            key, group = f"b{branch}.l{layer}", branch * n_layers + layer
            gradient = op(f"{key}.backward", gradient, layers[key], weights[key], phase="backward", flops=2e9)
            op(f"{key}.update", gradient, weights[key], phase="optimizer", flops=1e6, colocate=group)
    tensors = [(producer, 1e6, users) for producer, users in readers.items()]
    return build_graph(name, "toys", ops, tensors)


def random_problem(seed: int, n_ops: int = 40, n_devices: int = 3) -> Problem:
    """A random graph with colocation, on unequal devices under random rules."""
    rng = np.random.default_rng(seed)
    ops = [
        {
            "name": f"op{i}",
            "type": "parameter" if i < 3 else "mm",
            "flops": float(rng.choice([0.0, 1e6, 1e9, 5e9])),
            "resident_bytes": float(rng.integers(0, 100)) * 1e6,
            "colocate": int(rng.integers(0, 4)) if rng.random() < 0.3 else None,
        }
        for i in range(n_ops)
    ]
    tensors = []
    for producer in range(n_ops - 1):
        later = np.arange(max(producer + 1, 3), n_ops)
        users = np.unique(rng.choice(later, size=min(len(later), int(rng.integers(0, 4)))))
        tensors.append((producer, float(rng.integers(1, 100)) * 1e5, users.tolist()))
    cluster = make_cluster(
        n_devices,
        slower=float(rng.choice([1.0, 2.0])),
        schedule=str(rng.choice(["program", "fifo"])),
        sharing=str(rng.choice(["egress", "pair", "none"])),
        op_gap_s=float(rng.choice([0.0, 5e-5])),
    )
    return Problem(build_graph(f"random{seed}", "random", ops, tensors), cluster)


def optimum_s(problem: Problem) -> float:
    """Step time of the best of all feasible placements, by trying them."""
    units = np.array(list(itertools.product(range(problem.n_devices), repeat=len(problem.graph.units))))
    total_s, peak_bytes = simulate_many(problem, np.ascontiguousarray(units[:, problem.graph.unit_of]))
    fits = (peak_bytes <= problem.cluster.memory_bytes).all(axis=1)
    return float(total_s[fits].min(initial=np.inf))


@cache
def shipped_policy() -> Any:
    """Reads it where it is needed, as it loads torch."""
    from agent.policy.serialization import read_policy

    return read_policy("pretrained").actor


def found_by(
    name: str,
    objective: Objective | Problem,
    budget: Budget | int = 200,
    *,
    seed: int = 0,
    policy: Any = None,
    order: str = "topo",
) -> PlacementResult:
    """What a placer finds within a budget or a number of evaluations, with the shipped policy or another."""
    placer = PLACERS[name]
    if placer.is_learned:
        placer = placer.with_policy(policy or shipped_policy(), order)
    budget = Budget(budget) if isinstance(budget, int) else budget
    return placer.place(objective, budget, np.random.default_rng(seed))
