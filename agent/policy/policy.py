"""The policy: a network that scores the devices of a decision, over problems that it has encoded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from agent.policy.compiled.head import CompiledPolicy, Contexts, Encoded
from agent.policy.graph_data import Batch, Data, graph_data
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from envs.problem import Problem
from graphs.system.array_types import IntArray

CONSTRUCT = MdpConfig()
MASKED_LOGIT = -1e9
"""Finite, so that the log-probability of a forbidden device has no NaN in its gradient."""
MAX_UNIONS = 64
"""Unions of several graphs that are kept; those of an update come again in its other epochs."""


class Policy(nn.Module):
    """Scores devices from observations that name their problem by its index in `set_problems`.

    Args:
        mdp_config: decision process that the policy acts in where nothing else is said.
    """

    def __init__(self, network: PlacementNetwork, mdp_config: MdpConfig = CONSTRUCT) -> None:
        super().__init__()
        self.network = network
        self.mdp_config = mdp_config
        self.embeddings = EmbeddingCache(network, ())
        # In a list, so that it is not registered twice; finding it at every decision costs a tenth.
        self._any_weight = [next(network.parameters())]

    @property
    def device(self) -> torch.device:
        """The torch device of the weights."""
        return self._any_weight[0].device

    def compiled(self) -> CompiledPolicy:
        """Returns the policy with the present weights of its head in arrays."""
        weights = {
            name: tensor.detach().cpu().float().numpy().copy()
            for name, tensor in self.network.state_dict().items()
            if not name.startswith("encoder.")
        }
        return CompiledPolicy(self.network.shape, weights, self.mdp_config, self._encoded)

    @torch.no_grad()
    def _encoded(self, problem: Problem) -> Encoded:
        """Encodes a problem, as `CompiledPolicy.encode` says."""
        data = Batch.from_data_list([graph_data(problem, self.device)])
        with torch_threads(1):
            contexts = self.network.contexts(*self.network.encode(data), data.batch)
        contexts = contexts[:, : self.network.shape.hidden]
        return contexts.cpu().numpy(), data.node_of.cpu().numpy()

    def set_problems(self, problems: Sequence[Problem]) -> None:
        """Replaces the problems: observations then name `problems[i]` by `i`."""
        graphs = [graph_data(problem, self.device) for problem in problems]
        self.embeddings = EmbeddingCache(self.network, graphs)

    def scores(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores decisions from cached embeddings, without gradients through the encoder.

        Args:
            obs: `problem` and `op` int64 (n, 1), `devices` float32 (n, n_devices * n_device_features), `mask`
                (n, n_devices): which devices exist and have memory left for the op.

        Returns:
            Masked logits (n, n_devices) and state values (n,).
        """
        problem, op = _decisions(obs)
        self.embeddings.refresh(problem)
        return self._score(self.embeddings.contexts(problem, op), obs)

    def scores_for_update(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores as `scores` does, with gradients: it encodes each graph of `obs` once."""
        return self._score(self.embeddings.fresh_contexts(*_decisions(obs)), obs)

    def scores_of_encoded(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores as `scores` does, with gradients but those of the encoder."""
        return self._score(self.embeddings.contexts_of_encoded(*_decisions(obs)), obs)

    def _score(self, context: Tensor, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        usable = obs["mask"].bool()
        devices = obs["devices"].reshape(*usable.shape, -1)
        logits, values = self.network(context, devices, usable)
        return logits.masked_fill(~usable, MASKED_LOGIT), values


def _decisions(obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Problem and op of each decision, int64 (n,) both."""
    return obs["problem"].flatten(), obs["op"].flatten()


class EmbeddingCache:
    """Contexts (`PlacementNetwork.contexts`) of the nodes of some graphs, by problem index and op.

    Without gradients each graph is encoded once per parameter version, into a table that all decisions of a
    rollout share. With gradients the graphs of a call are encoded anew, together.

    Args:
        network: encodes; its parameters may change between calls, in place.
        graphs: the encoder's view of each problem, by problem index.
    """

    def __init__(self, network: PlacementNetwork, graphs: Sequence[Data]) -> None:
        self.graphs = tuple(graphs)
        self._network = network
        shape, device = network.shape, next(network.parameters()).device
        self._first_op = _starts([len(graph.node_of) for graph in self.graphs], device)
        self._first_node = _starts([graph.num_nodes for graph in self.graphs], device)
        no_ops = torch.empty(0, dtype=torch.int64, device=device)
        self._node_of = torch.cat([no_ops, *(graph.node_of for graph in self.graphs)])
        n_nodes = int(self._first_node[-1])
        self._embedding = torch.empty(n_nodes, shape.hidden, device=device)
        self._summary = torch.zeros(len(self.graphs), shape.hidden + shape.graph_features, device=device)
        self._table = torch.empty(n_nodes, 2 * shape.hidden, device=device)
        self._is_encoded = torch.zeros(len(self.graphs), dtype=torch.bool)
        self._has_contexts = torch.zeros(len(self.graphs), dtype=torch.bool)
        self._encoder_weights = list(network.encoder.parameters())
        self._context_weights = [*network.of_op.parameters(), *network.of_graph.parameters()]
        self._versions = (-1, -1)
        self._unions: dict[tuple[int, ...], Batch] = {}

    def n_nodes(self, problems: Tensor) -> Tensor:
        """Counts the nodes of problems, int64 (n,), given by index, int64 (n,)."""
        return self._first_node[problems + 1] - self._first_node[problems]

    @torch.no_grad()
    def refresh(self, problems: Tensor) -> None:
        """Brings the table up to date for some problems, given by index, int64 (n,)."""
        self._forget_outdated()
        if self._has_contexts[problems.cpu()].all():
            return
        for index in set(problems.tolist()):
            if not self._has_contexts[index]:
                self._encode(index)
                rows, graph = self._rows(index), self._summary[index : index + 1]
                member = torch.zeros(rows.stop - rows.start, dtype=torch.int64, device=graph.device)
                self._table[rows] = self._network.contexts(self._embedding[rows], graph, member)
                self._has_contexts[index] = True

    def _forget_outdated(self) -> None:
        """Marks what earlier weights computed."""
        versions = _version(self._encoder_weights), _version(self._context_weights)
        if versions != self._versions:
            self._has_contexts[:] = False
            self._is_encoded[:] &= versions[0] == self._versions[0]
            self._versions = versions

    def _encode(self, index: int) -> None:
        if not self._is_encoded[index]:
            embedding, summary = self._network.encode(self._union((index,)))
            self._embedding[self._rows(index)], self._summary[index] = embedding, summary[0]
            self._is_encoded[index] = True

    def _rows(self, index: int) -> slice:
        """Returns the nodes of a problem among those of all."""
        return slice(int(self._first_node[index]), int(self._first_node[index + 1]))

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
        """Does what `contexts` does, with gradients: the problems are encoded in one batch, each once."""
        present, which = problem.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        union = self._union(tuple(present.tolist()))
        contexts = self._network.contexts(*self._network.encode(union), union.batch)
        return contexts.index_select(0, union.ptr[which] + self._node(problem, op))

    def contexts_of_encoded(self, problem: Tensor, op: Tensor) -> Tensor:
        """Does what `contexts` does, with gradients but those of the encoder; encodes each problem once."""
        with torch.no_grad():
            self._forget_outdated()
            for index in problem.unique().tolist():  # type: ignore[no-untyped-call]
                self._encode(index)
        embedding = self._embedding[self._first_node[problem] + self._node(problem, op)]
        return self._network.contexts(embedding, self._summary, problem)

    def _node(self, problem: Tensor, op: Tensor) -> Tensor:
        """Node of each op within its graph, int64 (n,)."""
        return self._node_of[self._first_op[problem] + op]

    def _union(self, problems: tuple[int, ...]) -> Batch:
        """The union of some graphs; unions repeat within an update, single graphs over a whole training."""
        union = self._unions.get(problems)
        if union is None:
            if len(self._unions) > len(self.graphs) + MAX_UNIONS:
                self._unions = {key: single for key, single in self._unions.items() if len(key) == 1}
            union = self._unions[problems] = Batch.from_data_list([self.graphs[index] for index in problems])
        return union


def _version(weights: Sequence[Tensor]) -> int:
    """Returns a number that grows whenever one of the weights is changed in place."""
    return sum(weight._version for weight in weights)


def _starts(sizes: list[int], device: torch.device) -> Tensor:
    """First row of each part where parts of these sizes stand one after another, and the end of the last."""
    return torch.tensor([0, *sizes], device=device).cumsum(0)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Limits torch to `count` threads within the block.

    Scoring a decision takes microseconds: a second thread gains nothing, and on a busy machine each of its
    operations waits for the other processes. Updates divide their work into larger parts.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
