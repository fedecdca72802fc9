"""Random graphs with forward, backward and update ops, and random stages, for property tests of pipelines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.cluster.cluster import Cluster
from envs.pipeline.stages import Stages, cut_into_stages
from envs.problem import Problem
from graphs import OpGraph, build_graph
from graphs.system.array_types import IntArray
from tests.envs.random_problems import random_cluster


def random_training_graph(rng: np.random.Generator, n_layers: int, *, branches: bool = False) -> OpGraph:
    """Draws a graph with skip connections, tied weights, inputs, and ops without time.

    Args:
        branches: whether a layer need not read from the one before it.
    """
    ops: list[dict[str, object]] = []
    tensors: dict[tuple[str, int], tuple[int, float, list[int]]] = {}

    def add(name: str, kind: str, phase: str, layer: int) -> int:
        seconds = float(rng.exponential(1.0) * (rng.random() < 0.9))
        ops.append(
            {
                "name": name,
                "type": kind,
                "phase": phase,
                "resident_bytes": float(rng.integers(1, 9)) if kind == "parameter" else 0,
                "colocate": layer if phase != "backward" or colocated[layer] else None,
                "seconds": {"a": seconds, "b": 2.0 * seconds},
            }
        )
        return len(ops) - 1

    def make(kind: str, layer: int, op: int) -> None:
        tensors[kind, layer] = (op, float(rng.exponential(1.0)), [])

    def read(kind: str, layer: int, op: int) -> None:
        tensors[kind, layer][2].append(op)

    colocated = rng.random(n_layers) < 0.5
    has_weights, has_input = rng.random(n_layers) < 0.6, rng.random(n_layers) < 0.3
    tied = [int(rng.integers(0, at)) if at and rng.random() < 0.2 else -1 for at in range(n_layers)]
    tied = [one if one >= 0 and has_weights[one] else -1 for one in tied]
    inputs_of = [
        sorted({at - 1, int(rng.integers(max(0, at - 6), at))}) if at else [] for at in range(n_layers)
    ]
    if branches:
        inputs_of = [each[: 1 + int(rng.integers(2))] for each in inputs_of]
    for layer in range(n_layers):
        if has_weights[layer]:
            make("weight", layer, add(f"w{layer}", "parameter", "forward", layer))
        if has_input[layer]:
            make("input", layer, add(f"i{layer}", "input", "forward", layer))
        op = add(f"f{layer}", "aten.mm", "forward", layer)
        make("out", layer, op)
        for before in inputs_of[layer]:
            read("out", before, op)
        if has_input[layer]:
            read("input", layer, op)
        for owner in {layer if has_weights[layer] else -1, tied[layer]} - {-1}:
            read("weight", owner, op)
    for layer in reversed(range(n_layers)):
        op = add(f"b{layer}", "aten.mm", "backward", layer)
        make("grad", layer, op)
        for later in range(layer + 1, n_layers):
            if layer in inputs_of[later]:
                read("grad", later, op)
        if rng.random() < 0.6:
            read("out", layer, op)
        for before in inputs_of[layer]:
            if rng.random() < 0.6:
                read("out", before, op)
        for owner in sorted({layer if has_weights[layer] else -1, tied[layer]} - {-1}):
            read("weight", owner, op)
            make(f"of weight {owner}", layer, op)
    for layer in range(n_layers):
        if has_weights[layer]:
            op = add(f"u{layer}", "optim.adam", "optimizer", layer)
            make("state", layer, op)
            read("weight", layer, op)
            if rng.random() < 0.3:
                read("out", layer, op)
            for kind, other in list(tensors):
                wanted = kind == f"of weight {layer}"
                if wanted or (kind == "state" and other < layer and rng.random() < 0.3):
                    read(kind, other, op)
    return build_graph("random", "random", ops, list(tensors.values()))


def random_pipeline_cluster(rng: np.random.Generator, n_devices: int) -> Cluster:
    """Draws a heterogeneous cluster that can run pipelines, with gaps and a host thread at times."""
    cluster = random_cluster(rng, n_devices, schedule="program")
    sharing = str(rng.choice(["pair", "none", "egress"]))
    devices = tuple(replace(device, overlap_slowdown=1.0) for device in cluster.devices)
    return replace(cluster, sharing=sharing, copies="stream", devices=devices)


def random_stages(rng: np.random.Generator, problem: Problem, n_ranks: int, n_each: int) -> Stages:
    """Draws contiguous stages of layers, in rounds over some devices; backward ops go with their layer."""
    graph = problem.graph
    layer_of = np.array([int(name[1:]) for name in graph.op_names])
    n_layers, n_stages = int(layer_of.max()) + 1, n_ranks * n_each
    cuts = np.sort(rng.choice(np.arange(1, n_layers), n_stages - 1, replace=False))
    ranks = rng.permutation(problem.n_devices)[:n_ranks]
    stage_of: IntArray = np.searchsorted(cuts, layer_of, side="right")
    return cut_into_stages(problem, ranks[stage_of % n_ranks], stage_of)
