"""Problems as graphs of torch_geometric, and all that is used of it."""

from __future__ import annotations

import warnings

import torch

from agent.policy.node_features import contract, graph_features, node_features
from envs.problem import Problem

with warnings.catch_warnings():
    # It takes seconds to import, and warns once a process of its own use of TorchScript.
    warnings.simplefilter("ignore")
    from torch_geometric.data import Batch, Data
    from torch_geometric.nn import GATv2Conv, SAGEConv, global_mean_pool

__all__ = ["Batch", "Data", "GATv2Conv", "SAGEConv", "global_mean_pool", "graph_data"]


def graph_data(problem: Problem, device: torch.device) -> Data:
    """Makes the graph that is encoded: the compute ops of a problem, contracted as `contract` does.

    Returns:
        `x`, features of each node, float32 (n_nodes, n_node_features); `edge_index`, producer and consumer of
        each edge, sorted by producer, int64 (2, n_edges); `graph_features`, float32 (1, n_graph_features);
        `node_of`, node of each op, -1 for ops that no episode decides, int64 (n_ops,).
    """
    node_of, edges = contract(problem.graph)
    arrays = {
        "x": node_features(problem)[problem.graph.is_compute],
        "edge_index": edges.T.copy(),
        "graph_features": graph_features(problem)[None],
        "node_of": node_of,
    }
    return Data(**{name: torch.from_numpy(array).to(device) for name, array in arrays.items()})
