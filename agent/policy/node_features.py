"""What the encoder sees of a problem: numbers that do not change with its scale."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from agent.policy.op_categories import CATEGORIES, one_hot
from envs.problem import Problem
from graphs.levels import b_level, t_level
from graphs.op_graph import PHASES, Csr, FloatArray, IntArray, OpGraph

VERSION = 1
"""Raised whenever a feature changes its place or meaning; weights of another version do not load."""

NODE_FEATURES = (
    "cost",
    "cost_share",
    "cost_fastest",
    "cost_slowest",
    "output_transfer",
    "largest_output_transfer",
    "input_transfer",
    "unit_memory_share",
    "unit_memory",
    "unit_cost",
    "b_level",
    "t_level",
    "slack",
    "b_level_with_transfers",
    "t_level_with_transfers",
    "in_degree",
    "out_degree",
    "widest_output",
    "free_inputs",
    "position",
    "leads_unit",
    *(f"phase_{phase}" for phase in PHASES),
    *(f"type_{category}" for category in CATEGORIES),
)
GRAPH_FEATURES = (
    "size",
    "devices",
    "parallelism",
    "parallelism_with_transfers",
    "transfer_to_compute",
    "latency_to_compute",
    "launch_to_compute",
    "memory_pressure",
    "speed_spread",
)


def node_features(problem: Problem) -> NDArray[np.float32]:
    """Features of every op, in the order of `NODE_FEATURES`; float32 (n_ops, n_features).

    Costs are relative to the mean op, transfers are seconds over a mean link relative to the mean op, levels
    are relative to the critical path. Names and storage order play no part.
    """
    graph = problem.graph
    seconds, transfer = problem.op_seconds, _transfer_seconds(problem)
    cost = seconds.mean(axis=1)
    mean_cost = _mean_cost(problem)
    held = _over_unit(graph, graph.resident_bytes)
    sent = np.bincount(graph.tensor_producer, weights=transfer, minlength=graph.n_ops)
    columns = [
        _squash(cost / mean_cost),
        _share(cost),
        _squash(seconds.min(axis=1) / mean_cost),
        _squash(seconds.max(axis=1) / mean_cost),
        _squash(sent / mean_cost),
        _squash(_largest(graph.outputs, transfer) / mean_cost),
        _squash(_sum_rows(graph.inputs, transfer) / mean_cost),
        np.sqrt(held / max(float(graph.resident_bytes.sum()), 1e-30)),
        np.sqrt(held / problem.cluster.memory_bytes.mean()),
        _squash(_over_unit(graph, cost) / mean_cost),
        *_levels(graph, cost, transfer),
        np.log1p(np.diff(graph.predecessors.ptr)),
        np.log1p(np.diff(graph.successors.ptr)),
        np.log1p(_largest(graph.outputs, np.diff(graph.consumers.ptr).astype(np.float64))),
        _free_inputs(graph),
        np.arange(graph.n_ops) / max(graph.n_ops - 1, 1),
        np.isin(np.arange(graph.n_ops), unit_leaders(graph)),
    ]
    phases = np.eye(len(PHASES))[[PHASES.index(phase) for phase in graph.phases]]
    return np.hstack([np.stack(columns, axis=1), phases, one_hot(graph.op_types)]).astype(np.float32)


def graph_features(problem: Problem) -> NDArray[np.float32]:
    """Features of the whole problem, in the order of `GRAPH_FEATURES`; float32 (n_features,)."""
    graph, cluster = problem.graph, problem.cluster
    cost, transfer = problem.op_seconds.mean(axis=1), _transfer_seconds(problem)
    total, mean_cost = max(float(cost.sum()), 1e-30), _mean_cost(problem)
    alone = (b_level(graph, cost, np.zeros(graph.n_tensors))).max()
    with_transfers = (b_level(graph, cost, transfer)).max()
    totals = problem.op_seconds.sum(axis=0)
    launch = np.mean([device.launch_s for device in cluster.devices])
    values = [
        np.log(graph.n_ops) / 10,
        np.log(cluster.n_devices),
        np.log(total / max(alone, 1e-30)),
        np.log(total / max(with_transfers, 1e-30)),
        _squash(transfer.sum() / total),
        _squash(_mean_link(cluster.latency_s) / mean_cost),
        _squash(launch / mean_cost),
        np.sqrt(graph.resident_bytes.sum() / cluster.memory_bytes.sum()),
        np.log(max(totals.max(), 1e-30) / max(totals.min(), 1e-30)),
    ]
    return np.array(values, dtype=np.float32)


def unit_leaders(graph: OpGraph) -> IntArray:
    """First compute op of each decision unit, -1 where it has none; int (n_units,)."""
    compute = np.flatnonzero(graph.is_compute)
    leaders = np.full(len(graph.units), -1, dtype=np.int64)
    leaders[graph.unit_of[compute[::-1]]] = compute[::-1]
    return leaders


def contract(graph: OpGraph) -> tuple[IntArray, IntArray]:
    """The graph of compute ops that is encoded: all else is drawn into the op that decides for it.

    What a parameter feeds is then fed by the first op that uses it, and a gradient on its way to an optimizer
    update goes to that op too: as they travel between devices.

    Returns:
        Node of each op, int (n_ops,), -1 where no compute op decides for it; and the distinct (producer,
        consumer) pairs of different nodes, sorted, int (n_edges, 2).
    """
    node = np.full(graph.n_ops, -1, dtype=np.int64)
    node[graph.is_compute] = np.arange(int(graph.is_compute.sum()))
    leader = unit_leaders(graph)[graph.unit_of]
    node = np.where(graph.is_compute | (leader < 0), node, node[leader])
    edges = node[graph.edges].reshape(-1, 2)
    kept = (edges[:, 0] != edges[:, 1]) & (edges >= 0).all(axis=1)
    return node, np.unique(edges[kept], axis=0)


def _squash(relative: ArrayLike) -> FloatArray:
    """Zero at 0, log-like above 1: costs of one graph span five orders of magnitude."""
    return np.asarray(np.log1p(8.0 * np.asarray(relative)) / 4.0, dtype=np.float64)


def _share(amount: FloatArray) -> FloatArray:
    return np.sqrt(amount / max(float(amount.sum()), 1e-30))


def _mean_cost(problem: Problem) -> float:
    cost = problem.op_seconds.mean(axis=1)
    return max(float(cost.sum()) / max(int((cost > 0).sum()), 1), 1e-30)


def _mean_link(matrix: FloatArray) -> float:
    off_diagonal = ~np.eye(len(matrix), dtype=bool)
    return float(matrix[off_diagonal].mean()) if len(matrix) > 1 else 0.0


def _transfer_seconds(problem: Problem) -> FloatArray:
    """Seconds to send each tensor over a mean link, (n_tensors,)."""
    cluster = problem.cluster
    if cluster.n_devices == 1:
        return np.zeros(problem.graph.n_tensors)
    seconds_per_byte = _mean_link(1.0 / cluster.bytes_per_s)
    return problem.graph.tensor_bytes * seconds_per_byte + _mean_link(cluster.latency_s)


def _levels(graph: OpGraph, cost: FloatArray, transfer: FloatArray) -> list[FloatArray]:
    free = np.zeros(graph.n_tensors)
    below, above = b_level(graph, cost, free), t_level(graph, cost, free)
    path = max(float((below + above).max()), 1e-30)
    far_below, far_above = b_level(graph, cost, transfer), t_level(graph, cost, transfer)
    far_path = max(float((far_below + far_above).max()), 1e-30)
    return [
        below / path,
        above / path,
        1 - (below + above) / path,
        far_below / far_path,
        far_above / far_path,
    ]


def _sum_rows(rows: Csr, values: FloatArray) -> FloatArray:
    row = np.repeat(np.arange(len(rows)), np.diff(rows.ptr))
    return np.bincount(row, weights=values[rows.items], minlength=len(rows)).astype(np.float64)


def _largest(rows: Csr, values: FloatArray) -> FloatArray:
    result = np.zeros(len(rows))
    np.maximum.at(result, np.repeat(np.arange(len(rows)), np.diff(rows.ptr)), values[rows.items])
    return result


def _over_unit(graph: OpGraph, amount: FloatArray) -> FloatArray:
    return np.bincount(graph.unit_of, weights=amount).astype(np.float64)[graph.unit_of]


def _free_inputs(graph: OpGraph) -> FloatArray:
    """Share of an op's producers that are parameters or inputs."""
    free = _sum_rows(graph.predecessors, graph.is_source.astype(np.float64))
    return free / np.maximum(np.diff(graph.predecessors.ptr), 1)
