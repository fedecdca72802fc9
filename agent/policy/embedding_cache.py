"""A cache of the embeddings of problems, valid until the parameters of the network change."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from agent.policy.compiled.head import Contexts
from agent.policy.graph_batch import GraphBatch, GraphTensors
from agent.policy.network import PlacementNetwork
from graphs.system.array_types import IntArray

MAX_UNIONS = 64
"""Unions of several graphs that are kept; those of an update come again in its other epochs."""


class EmbeddingCache:
    """Contexts (`PlacementNetwork.contexts`) of the nodes of some graphs, by problem index and op.

    Without gradients each graph is encoded once per parameter version, into a table that all decisions of a
    rollout share. With gradients the graphs of a call are encoded anew, together.

    Args:
        network: encodes; its parameters may change between calls, in place.
        graphs: the encoder's view of each problem, by problem index.
    """

    def __init__(self, network: PlacementNetwork, graphs: Sequence[GraphTensors]) -> None:
        self.graphs = tuple(graphs)
        self._network = network
        self._weights = list(network.parameters())
        device = self._weights[0].device
        self._first_op = _starts([len(graph.node_of) for graph in self.graphs], device)
        self._first_node = _starts([len(graph.nodes) for graph in self.graphs], device)
        no_ops = torch.empty(0, dtype=torch.int64, device=device)
        self._node_of = torch.cat([no_ops, *(graph.node_of for graph in self.graphs)])
        self._table = torch.empty(int(self._first_node[-1]), 2 * network.shape.hidden, device=device)
        self._is_encoded = torch.zeros(len(self.graphs), dtype=torch.bool)
        self._version = -1
        self._unions: dict[tuple[int, ...], GraphBatch] = {}

    def n_nodes(self, problems: Tensor) -> Tensor:
        """Counts the nodes of problems, int64 (n,), given by index, int64 (n,)."""
        return self._first_node[problems + 1] - self._first_node[problems]

    @torch.no_grad()
    def refresh(self, problems: Tensor) -> None:
        """Brings the table up to date for some problems, given by index, int64 (n,)."""
        version = sum(weight._version for weight in self._weights)
        if version != self._version:
            self._is_encoded[:] = False
            self._version = version
        if self._is_encoded[problems.cpu()].all():
            return
        for index in set(problems.tolist()):
            if not self._is_encoded[index]:
                rows = slice(int(self._first_node[index]), int(self._first_node[index + 1]))
                self._table[rows] = self._network.contexts(self._union((index,)))
                self._is_encoded[index] = True

    def contexts(self, problem: Tensor, op: Tensor) -> Tensor:
        """Looks contexts up, without gradients, as they were at the last `refresh` of their problems.

        Args:
            problem: index of each decision's problem, int64 (n,).
            op: op that each decides, int64 (n,).

        Returns:
            float32 (n, 2 * hidden).
        """
        return self._table[self._first_node[problem] + self._node(problem, op)]

    def arrays(self, problems: IntArray) -> Contexts:
        """Returns the contexts of all problems, up to date for some, given by index, int (n,)."""
        self.refresh(torch.from_numpy(problems))
        return Contexts(self._table.cpu().numpy(), self._row_of, self._first_op[:-1].cpu().numpy())

    @cached_property
    def _row_of(self) -> IntArray:
        """Row of the table of each op, int64 (n_ops of all,)."""
        first = self._first_node[:-1].repeat_interleave(self._first_op.diff())
        return np.asarray((first + self._node_of).cpu().numpy())

    def fresh_contexts(self, problem: Tensor, op: Tensor) -> Tensor:
        """As `contexts`, with gradients: the problems that occur are encoded in one batch, each once."""
        present, which = problem.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        union = self._union(tuple(present.tolist()))
        return self._network.contexts(union).index_select(0, union.start[which] + self._node(problem, op))

    def _node(self, problem: Tensor, op: Tensor) -> Tensor:
        """Node of each op within its graph, int64 (n,)."""
        return self._node_of[self._first_op[problem] + op]

    def _union(self, problems: tuple[int, ...]) -> GraphBatch:
        """The union of some graphs; unions repeat within an update, single graphs over a whole training."""
        union = self._unions.get(problems)
        if union is None:
            if len(self._unions) > len(self.graphs) + MAX_UNIONS:
                self._unions = {key: kept for key, kept in self._unions.items() if len(key) == 1}
            union = self._unions[problems] = GraphBatch.of([self.graphs[index] for index in problems])
        return union


def _starts(sizes: list[int], device: torch.device) -> Tensor:
    """First row of each part where parts of these sizes stand one after another, and the end of the last."""
    return torch.tensor([0, *sizes], device=device).cumsum(0)
