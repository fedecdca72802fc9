"""Numbers that describe the shape of a graph: depth, width, branching, parallelism and the like."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from graphs.levels import b_level, t_level
from graphs.nominal_costs import NOMINAL_LINK_BYTES_PER_S, nominal_op_s
from graphs.op_graph import OpGraph


@dataclass(frozen=True)
class GraphShape:
    """The shape of the compute ops of a graph; shares are of their number.

    Costs are those of a nominal device and link, as orders use them.

    Attributes:
        n_ops: number of compute ops.
        depth: ops on the longest path, as a share.
        width: most ops with equally long paths before them, as a share.
        branching: mean number of compute ops that read from an op, of those that any reads from.
        chain_fraction: share of ops with one producer that has no other consumer.
        communication: seconds to send every tensor between compute ops once, over the seconds of all ops.
        parallelism: seconds of all ops over those of the longest path, transfers left out.
    """

    n_ops: int
    depth: float
    width: float
    branching: float
    chain_fraction: float
    communication: float
    parallelism: float


def shape_of(graph: OpGraph) -> GraphShape:
    """Describes the shape of a graph; zeros where it has no compute ops."""
    is_compute = graph.is_compute
    n_ops = int(is_compute.sum())
    if not n_ops:
        return GraphShape(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    free = np.zeros(graph.n_tensors)
    level = t_level(graph, is_compute.astype(np.float64), free)[is_compute]
    edges = graph.edges[is_compute[graph.edges].all(axis=1)]
    n_consumers = np.bincount(edges[:, 0], minlength=graph.n_ops)
    n_producers = np.bincount(edges[:, 1], minlength=graph.n_ops)
    in_chain = (n_consumers[edges[:, 0]] == 1) & (n_producers[edges[:, 1]] == 1)
    seconds = nominal_op_s(graph)
    total_s, longest_s = float(seconds.sum()), float(b_level(graph, seconds, free).max())
    is_sent = is_compute[graph.tensor_producer] & (np.diff(graph.consumers.ptr) > 0)
    return GraphShape(
        n_ops=n_ops,
        depth=(float(level.max()) + 1) / n_ops,
        width=float(np.unique(level, return_counts=True)[1].max()) / n_ops,
        branching=float(n_consumers[n_consumers > 0].mean()) if len(edges) else 0.0,
        chain_fraction=float(in_chain.sum()) / n_ops,
        communication=float(graph.tensor_bytes[is_sent].sum()) / NOMINAL_LINK_BYTES_PER_S / total_s
        if total_s
        else 0.0,
        parallelism=total_s / longest_s if longest_s else 1.0,
    )
