"""Disjoint unions of graphs, and the means over neighbours that encoders aggregate with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from agent.policy.compiled.encoder import Neighbours, neighbours_of
from agent.policy.neighbours import WithNeighbours
from agent.policy.node_features import graph_arrays
from envs.problem import Problem


@dataclass(frozen=True, eq=False)
class GraphTensors:
    """`GraphArrays` of one problem, as tensors on a torch device."""

    nodes: Tensor
    graph: Tensor
    edges: Tensor
    node_of: Tensor

    @staticmethod
    def of(problem: Problem, device: torch.device) -> GraphTensors:
        """Computes the features and edges of a problem."""
        return GraphTensors(*(torch.from_numpy(array).to(device) for array in graph_arrays(problem)))


@dataclass(frozen=True, eq=False)
class GraphBatch:
    """A disjoint union of graphs.

    Attributes:
        nodes: features, float32 (n_nodes of all, n_node_features).
        graphs: features of each graph, float32 (n_graphs, n_graph_features).
        member: graph of each node, int64 (n_nodes of all,).
        start: first node of each graph, int64 (n_graphs,).
        sizes: nodes of each graph, float32 (n_graphs, 1).
        to_consumers, to_producers: source and target of each edge, by target, int64 (2, n_edges), in each
            direction.
    """

    nodes: Tensor
    graphs: Tensor
    member: Tensor
    start: Tensor
    sizes: Tensor
    to_consumers: Tensor
    to_producers: Tensor

    @staticmethod
    def of(parts: Sequence[GraphTensors]) -> GraphBatch:
        """Makes the union of some graphs."""
        device = parts[0].nodes.device
        sizes = torch.tensor([len(part.nodes) for part in parts], device=device)
        start = sizes.cumsum(0) - sizes
        edges = torch.cat([part.edges + first for part, first in zip(parts, start, strict=True)], dim=1)
        by_consumer = torch.argsort(edges[1], stable=True)
        return GraphBatch(
            nodes=torch.cat([part.nodes for part in parts]),
            graphs=torch.stack([part.graph for part in parts]),
            member=torch.repeat_interleave(torch.arange(len(parts), device=device), sizes),
            start=start,
            sizes=sizes[:, None].float(),
            to_consumers=edges[:, by_consumer],
            to_producers=edges.flip(0),
        )

    @cached_property
    def _neighbours(self) -> Neighbours:
        return neighbours_of(self.to_producers.flip(0).numpy(), len(self.nodes))

    def with_neighbours(self, state: Tensor) -> Tensor:
        """Puts the means of each node's producers and consumers beside its state, (n_nodes, 3 * width)."""
        if state.device.type != "cpu":
            return torch.cat([state, self.mean_of_producers(state), self.mean_of_consumers(state)], dim=1)
        gathered: Tensor = WithNeighbours.apply(self._neighbours, state)  # type: ignore[no-untyped-call]
        return gathered.flatten(1)

    def mean_of_producers(self, state: Tensor) -> Tensor:
        """Averages the states that each node reads, zero without any; (n_nodes, width) both."""
        return _mean(self.to_consumers, state)

    def mean_of_consumers(self, state: Tensor) -> Tensor:
        """Averages the states of each node's readers, zero without any; (n_nodes, width) both."""
        return _mean(self.to_producers, state)

    def mean_of_graph(self, state: Tensor) -> Tensor:
        """Averages the states of each graph's nodes, (n_graphs, width)."""
        total = state.new_zeros(len(self.sizes), state.shape[1]).index_add(0, self.member, state)
        return total / self.sizes


def _mean(edges: Tensor, state: Tensor) -> Tensor:
    """Averages the rows of each target's sources; 0 without any."""
    source, target = edges
    total = torch.zeros_like(state).index_add(0, target, state.index_select(0, source))
    mean: Tensor = total / target.bincount(minlength=len(state)).clamp(min=1)[:, None]
    return mean
