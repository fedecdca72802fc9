"""One problem as an encoder sees it, in NumPy arrays."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.policy.node_features import contract, graph_features, node_features
from envs.problem import Problem
from graphs.system.array_types import IntArray


class GraphArrays(NamedTuple):
    """The compute ops of one problem, contracted as `node_features.contract` does."""

    nodes: NDArray[np.float32]  # (n_nodes, n_node_features) features of the compute ops
    graph: NDArray[np.float32]  # (n_graph_features,) features of the whole
    edges: IntArray  # (2, n_edges) producer and consumer, sorted by producer
    node_of: IntArray  # (n_ops,) node of each op, -1 for ops that no episode decides


def graph_arrays(problem: Problem) -> GraphArrays:
    """Computes the features and edges of a problem."""
    node_of, edges = contract(problem.graph)
    nodes = node_features(problem)[problem.graph.is_compute]
    return GraphArrays(nodes, graph_features(problem), np.ascontiguousarray(edges.T), node_of)
