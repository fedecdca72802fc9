"""What the encoder sees: scale-free, blind to names and storage, contracted to compute ops."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.policy.node_features import (
    CATEGORIES,
    category,
    contract,
    graph_features,
    node_features,
    unit_leaders,
)
from envs.cluster.cluster import Cluster
from envs.problem import Problem
from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph, build_graph
from tests.agent.placement_cases import make_cluster, random_problem, training_graph


def slowed(cluster: Cluster, factor: float) -> Cluster:
    """The same cluster where everything takes `factor` times as long."""
    devices = tuple(
        replace(
            device,
            flops_per_s=device.flops_per_s / factor,
            bytes_per_s=device.bytes_per_s / factor,
            launch_s=device.launch_s * factor,
        )
        for device in cluster.devices
    )
    return replace(
        cluster,
        devices=devices,
        bytes_per_s=cluster.bytes_per_s / factor,
        latency_s=cluster.latency_s * factor,
    )


def restored(graph: OpGraph, order: np.ndarray) -> OpGraph:
    """The same graph with its tensors stored in another order."""
    rows = [graph.consumers.row(tensor) for tensor in order]
    ptr = np.concatenate([[0], np.cumsum([len(row) for row in rows])])
    return replace(
        graph,
        tensor_producer=graph.tensor_producer[order],
        tensor_bytes=graph.tensor_bytes[order],
        consumers=Csr(ptr, np.concatenate(rows)),
    )


@pytest.mark.parametrize("seed", range(8))
def test_a_slower_world_looks_the_same(seed: int) -> None:
    problem = random_problem(seed)
    slow = Problem(problem.graph, slowed(problem.cluster, 1000.0))
    np.testing.assert_allclose(node_features(slow), node_features(problem), atol=1e-5)
    np.testing.assert_allclose(graph_features(slow), graph_features(problem), atol=1e-5)


@pytest.mark.parametrize("seed", range(4))
def test_names_and_storage_play_no_part(seed: int) -> None:
    problem = random_problem(seed)
    order = np.random.default_rng(seed).permutation(problem.graph.n_tensors)
    other = restored(problem.graph, order)
    other = replace(other, name="x", op_names=tuple(f"n{i}" for i in range(other.n_ops))[::-1])
    np.testing.assert_allclose(
        node_features(Problem(other, problem.cluster)), node_features(problem), atol=1e-6
    )


def test_all_is_free_on_a_graph_of_nothing() -> None:
    graph = build_graph("idle", "idle", [{"name": "a"}, {"name": "b"}], [(0, 0, [1])])
    problem = Problem(graph, make_cluster(1))
    assert np.isfinite(node_features(problem)).all()
    assert np.isfinite(graph_features(problem)).all()


def test_contraction_by_hand() -> None:
    ops = [
        {"name": "w", "type": "parameter", "colocate": 0},
        {"name": "x", "type": "input"},
        {"name": "first", "colocate": 0},
        {"name": "loss"},
        {"name": "backward", "phase": "backward"},
        {"name": "update", "phase": "optimizer", "colocate": 0},
    ]
    tensors = [(0, 1, [2, 4]), (1, 1, [2]), (2, 1, [3]), (3, 1, [4]), (4, 1, [5])]
    graph = build_graph("tiny", "tiny", ops, tensors)
    node, edges = contract(graph)
    assert node.tolist() == [0, 0, 0, 1, 2, 0]
    # The weights travel from the first user to the backward op, the gradient back to the update.
    assert edges.tolist() == [[0, 1], [0, 2], [1, 2], [2, 0]]


def test_every_visited_op_is_a_node_of_its_own() -> None:
    graph = training_graph()
    node, edges = contract(graph)
    compute = np.flatnonzero(graph.is_compute)
    assert node[compute].tolist() == list(range(len(compute)))
    assert (edges[:, 0] != edges[:, 1]).all()
    leaders = unit_leaders(graph)
    assert graph.unit_of[leaders].tolist() == list(range(len(graph.units)))


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("aten.mm", "contraction"),
        ("aten._scaled_dot_product_flash_attention_for_cpu", "contraction"),
        ("aten._softmax", "reduction"),
        ("aten.embedding", "movement"),
        ("aten.add", "pointwise"),
        ("optim.adam", "optimizer"),
        ("Conv2D", "contraction"),
        ("", "other"),
    ],
)
def test_category(op_type: str, expected: str) -> None:
    assert category(op_type) == expected
    assert expected in CATEGORIES
