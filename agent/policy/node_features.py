"""The encoder's input features of a problem: numbers that do not change with its scale.

A feature is declared here and nowhere else; policy files carry the names.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from envs.problem import Problem
from graphs.graph_columns import PHASES, Csr
from graphs.levels import b_level, t_level
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

MEAN_OPS, ROOT_SHARE, PATH_SHARE, LOG_COUNT = (
    "mean op times",
    "root of a share",
    "critical paths",
    "log count",
)
SHARE, FLAG, LOG_RATIO = "share", "0 or 1", "log ratio"
"""Units. Mean op times are squashed to log(1 + 8 x) / 4: costs of one graph span five orders of magnitude."""

CATEGORIES = ("optimizer", "contraction", "reduction", "movement", "pointwise", "other")

KEYWORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("optimizer", ("optim.", "apply")),
    ("contraction", ("mm", "matmul", "conv", "attention", "linear", "einsum", "dot", "lstm", "gru")),
    ("movement", ("cat", "stack", "split", "copy", "clone", "slice", "select", "gather", "scatter", "index")),
    ("movement", ("embedding", "pad", "transpose", "permute", "reshape", "expand", "repeat", "roll", "flip")),
    ("movement", ("full", "arange", "zeros")),
    ("reduction", ("sum", "mean", "norm", "softmax", "max", "min", "var", "std", "pool", "loss", "topk")),
    ("reduction", ("sort", "any", "all", "prod")),
)
"""Parts of op types by category; the first that occurs in a type decides."""


class InputFeature(NamedTuple):
    """One number about an op or a problem.

    Attributes:
        name: identifier; a feature that changes its meaning gets another.
        unit: name of the unit of the number.
    """

    name: str
    unit: str


NODE_FEATURES = (
    InputFeature("cost", MEAN_OPS),
    InputFeature("cost_share", ROOT_SHARE),
    InputFeature("cost_fastest", MEAN_OPS),
    InputFeature("cost_slowest", MEAN_OPS),
    InputFeature("output_transfer", MEAN_OPS),
    InputFeature("largest_output_transfer", MEAN_OPS),
    InputFeature("input_transfer", MEAN_OPS),
    InputFeature("unit_memory_share", ROOT_SHARE),
    InputFeature("unit_memory", ROOT_SHARE),
    InputFeature("unit_cost", MEAN_OPS),
    InputFeature("b_level", PATH_SHARE),
    InputFeature("t_level", PATH_SHARE),
    InputFeature("slack", PATH_SHARE),
    InputFeature("b_level_with_transfers", PATH_SHARE),
    InputFeature("t_level_with_transfers", PATH_SHARE),
    InputFeature("in_degree", LOG_COUNT),
    InputFeature("out_degree", LOG_COUNT),
    InputFeature("widest_output", LOG_COUNT),
    InputFeature("source_inputs", SHARE),
    InputFeature("position", SHARE),
    InputFeature("leads_unit", FLAG),
    *(InputFeature(f"phase_{phase}", FLAG) for phase in PHASES),
    *(InputFeature(f"type_{category}", FLAG) for category in CATEGORIES),
)
"""Columns of `node_features`."""
GRAPH_FEATURES = (
    InputFeature("size", "log count over 10"),
    InputFeature("devices", LOG_COUNT),
    InputFeature("parallelism", LOG_RATIO),
    InputFeature("parallelism_with_transfers", LOG_RATIO),
    InputFeature("transfer_to_compute", "total op times"),
    InputFeature("latency_to_compute", MEAN_OPS),
    InputFeature("launch_to_compute", MEAN_OPS),
    InputFeature("memory_pressure", ROOT_SHARE),
    InputFeature("speed_spread", LOG_RATIO),
    InputFeature("issue_to_compute", MEAN_OPS),
)
"""Entries of `graph_features`."""


def node_features(problem: Problem) -> NDArray[np.float32]:
    """Computes the features of every op, in the order of `NODE_FEATURES`; float32 (n_ops, n_features).

    Costs are relative to the mean op, transfers are seconds over a mean link relative to the mean op, levels
    are relative to the critical path. Names and storage order change nothing.
    """
    graph = problem.graph
    seconds, transfer = problem.op_seconds, problem.mean_transfer_s
    cost = seconds.mean(axis=1)
    mean_cost = _mean_cost(problem)
    resident_bytes = _over_unit(graph, graph.resident_bytes)
    sent = np.bincount(graph.tensor_producer, weights=transfer, minlength=graph.n_ops)
    n_source_inputs = _sum_rows(graph.predecessors, graph.is_source.astype(np.float64))
    columns = [
        _squash(cost / mean_cost),
        _share(cost),
        _squash(seconds.min(axis=1) / mean_cost),
        _squash(seconds.max(axis=1) / mean_cost),
        _squash(sent / mean_cost),
        _squash(_largest(graph.outputs, transfer) / mean_cost),
        _squash(_sum_rows(graph.inputs, transfer) / mean_cost),
        np.sqrt(resident_bytes / max(float(graph.resident_bytes.sum()), 1e-30)),
        np.sqrt(resident_bytes / problem.cluster.memory_bytes.mean()),
        _squash(_over_unit(graph, cost) / mean_cost),
        *_levels(graph, cost, transfer),
        np.log1p(np.diff(graph.predecessors.ptr)),
        np.log1p(np.diff(graph.successors.ptr)),
        np.log1p(_largest(graph.outputs, np.diff(graph.consumers.ptr).astype(np.float64))),
        n_source_inputs / np.maximum(np.diff(graph.predecessors.ptr), 1),
        np.arange(graph.n_ops) / max(graph.n_ops - 1, 1),
        np.isin(np.arange(graph.n_ops), unit_leaders(graph)),
    ]
    phases = np.eye(len(PHASES))[[PHASES.index(phase) for phase in graph.phases]]
    return np.hstack([np.stack(columns, axis=1), phases, one_hot(graph.op_types)]).astype(np.float32)


def graph_features(problem: Problem) -> NDArray[np.float32]:
    """Computes the features of the whole problem, in the order of `GRAPH_FEATURES`; float32 (n_features,)."""
    graph, cluster = problem.graph, problem.cluster
    cost, transfer = problem.op_seconds.mean(axis=1), problem.mean_transfer_s
    total, mean_cost = max(float(cost.sum()), 1e-30), _mean_cost(problem)
    alone = b_level(graph, cost, np.zeros(graph.n_tensors)).max()
    with_transfers = b_level(graph, cost, transfer).max()
    totals = problem.op_seconds.sum(axis=0)
    launch = np.mean([device.launch_s for device in cluster.devices])
    pairs = ~np.eye(cluster.n_devices, dtype=bool)
    latency_s = float(cluster.latency_s[pairs].mean()) if pairs.any() else 0.0
    values = [
        np.log(graph.n_ops) / 10,
        np.log(cluster.n_devices),
        np.log(total / max(alone, 1e-30)),
        np.log(total / max(with_transfers, 1e-30)),
        _squash(transfer.sum() / total),
        _squash(latency_s / mean_cost),
        _squash(launch / mean_cost),
        np.sqrt(graph.resident_bytes.sum() / cluster.memory_bytes.sum()),
        np.log(max(totals.max(), 1e-30) / max(totals.min(), 1e-30)),
        _squash((cluster.issue_s if cluster.issue_per == "op" else 0.0) / mean_cost),
    ]
    return np.array(values, dtype=np.float32)


def unit_leaders(graph: OpGraph) -> IntArray:
    """Finds the first compute op of each placement unit, -1 where it has none; int (n_units,)."""
    compute = np.flatnonzero(graph.is_compute)
    leaders = np.full(len(graph.units), -1, dtype=np.int64)
    leaders[graph.unit_of[compute[::-1]]] = compute[::-1]
    return leaders


def contract(graph: OpGraph) -> tuple[IntArray, IntArray]:
    """Makes the graph that is encoded: an op that no episode decides joins the compute op deciding for it.

    The readers of a parameter then read from the first op that uses it, and a gradient on its way to an
    optimizer update goes to that op too, as they do between devices.

    Returns:
        Node of each op, int (n_ops,), -1 where no compute op decides for it; and the distinct (producer,
        consumer) pairs of different nodes, sorted, int (n_edges, 2).
    """
    node = np.full(graph.n_ops, -1, dtype=np.int64)
    node[graph.is_compute] = np.arange(int(graph.is_compute.sum()))
    leader = unit_leaders(graph)[graph.unit_of]
    node = np.where(graph.is_compute | (leader < 0), node, node[leader])
    edges = node[graph.edges].reshape(-1, 2)
    between = (edges[:, 0] != edges[:, 1]) & (edges >= 0).all(axis=1)
    return node, np.unique(edges[between], axis=0)


def _squash(relative: ArrayLike) -> FloatArray:
    """Zero at 0, logarithmic above 1."""
    return np.asarray(np.log1p(8.0 * np.asarray(relative)) / 4.0, dtype=np.float64)


def _share(amount: FloatArray) -> FloatArray:
    return np.sqrt(amount / max(float(amount.sum()), 1e-30))


def _mean_cost(problem: Problem) -> float:
    cost = problem.op_seconds.mean(axis=1)
    return max(float(cost.sum()) / max(int((cost > 0).sum()), 1), 1e-30)


def _levels(graph: OpGraph, cost: FloatArray, transfer: FloatArray) -> list[FloatArray]:
    no_transfer = np.zeros(graph.n_tensors)
    below, above = b_level(graph, cost, no_transfer), t_level(graph, cost, no_transfer)
    path = max(float((below + above).max()), 1e-30)
    sent_below, sent_above = b_level(graph, cost, transfer), t_level(graph, cost, transfer)
    sent_path = max(float((sent_below + sent_above).max()), 1e-30)
    return [
        below / path,
        above / path,
        1 - (below + above) / path,
        sent_below / sent_path,
        sent_above / sent_path,
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


def category(op_type: str) -> str:
    """Finds the kind of work that an op does, one of `CATEGORIES`, from its type alone, such as `aten.mm`."""
    lowered = op_type.lower()
    for name, parts in KEYWORDS:
        if any(part in lowered for part in parts):
            return name
    return "pointwise" if lowered.startswith("aten.") else "other"


def one_hot(op_types: tuple[str, ...]) -> FloatArray:
    """Encodes the categories of many ops as indicators, (n_ops, n_categories)."""
    table = {kind: CATEGORIES.index(category(kind)) for kind in set(op_types)}
    return np.eye(len(CATEGORIES))[[table[kind] for kind in op_types]]
