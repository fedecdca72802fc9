"""The policy: a network, and the bank of problems that it has encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from agent.policy.graph_batch import GraphBatch, GraphTensors
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.training.performance.parallel import in_threads
from envs.problem import Problem

CONSTRUCT = MdpConfig()
MASKED_LOGIT = -1e9
"""Finite, so that the log-probability of a forbidden device has no NaN in its gradient."""


class Policy(nn.Module):
    """Scores devices from observations that name their problem by its index in the bank.

    Each graph is encoded once per parameter version: without gradients on demand, into a table that all
    decisions of a rollout share; with gradients once per call of `scores_for_update`.

    Args:
        threads: how many share the work of an update.
        walks: how it walks where nothing else is said.
    """

    def __init__(self, network: PlacementNetwork, threads: int = 1, walks: MdpConfig = CONSTRUCT) -> None:
        super().__init__()
        self.network = network
        self.threads = threads
        self.walks = walks
        self._weights = list(network.parameters())
        self.bank = ()

    @property
    def bank(self) -> tuple[GraphTensors, ...]:
        """The encoder's view of each problem, by problem index."""
        return self._bank

    @bank.setter
    def bank(self, bank: Sequence[GraphTensors]) -> None:
        self._bank = tuple(bank)
        self._first_op = self._starts([len(graph.node_of) for graph in self._bank])
        self._first_node = self._starts([len(graph.nodes) for graph in self._bank])
        nowhere = torch.empty(0, dtype=torch.int64, device=self.device)
        self._node_of = torch.cat([nowhere, *(graph.node_of for graph in self._bank)])
        n_nodes = int(self._first_node[-1])
        self._table = torch.empty(n_nodes, 2 * self.network.shape.hidden, device=self.device)
        self._encoded = torch.zeros(len(self._bank), dtype=torch.bool)
        self._version = -1
        self._batches: dict[tuple[int, ...], GraphBatch] = {}

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._weights[0].device

    def set_problems(self, problems: Sequence[Problem]) -> None:
        """Fill the bank: observations then name `problems[i]` by `i`."""
        self.bank = [GraphTensors.of(problem, self.device) for problem in problems]

    def scores(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Masked logits (n, n_devices) and values (n,), from cached embeddings without gradient.

        Args:
            obs: `problem` and `op` int64 (n, 1), `devices` float32 (n, n_devices * n_device_features), `mask`
                (n, n_devices): which devices exist and have room.
        """
        self.encode(obs["problem"].flatten())
        return self._score(self._known_contexts(obs), obs)

    def logits(self, obs: Mapping[str, Tensor]) -> Tensor:
        """The logits of `scores` alone, for problems that were encoded since the weights changed."""
        devices, usable = _devices(obs)
        logits = self.network.logits(self._known_contexts(obs), devices, usable)
        return logits.masked_fill(~usable, MASKED_LOGIT)

    def scores_for_update(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As `scores`, with gradients: the graphs that occur in `obs` are encoded afresh, each once.

        Args:
            obs: as for `scores`; its rows are shared out among `threads` threads, graph by graph or, where
                there are fewer graphs than threads, in pieces of each graph's rows.
        """
        problem = obs["problem"].flatten()
        present, which = problem.unique(return_inverse=True)  # type: ignore[no-untyped-call]
        # By nothing but the graphs, so that the same unions come again.
        sizes = self._first_node[present + 1] - self._first_node[present] + len(problem) // len(present)
        pieces = -(-self.threads // len(present))
        shares = _shares(sizes.repeat_interleave(pieces).tolist(), self.threads)
        if len(shares) == 1:
            return self._encode_and_score(present, which, obs)
        share_of = torch.empty(len(present) * pieces, dtype=torch.int64, device=present.device)
        for number, members in enumerate(shares):
            share_of[members] = number
        piece = torch.arange(len(problem), device=present.device) % pieces
        share = share_of[which * pieces + piece]
        rows = [torch.nonzero(share == number).squeeze(1) for number in range(len(shares))]

        def job(mine: Tensor) -> Callable[[], tuple[Tensor, Tensor]]:
            part = {name: column[mine] for name, column in obs.items()}
            there, at = problem[mine].unique(return_inverse=True)  # type: ignore[no-untyped-call]
            return lambda: self._encode_and_score(there, at, part)

        parts = in_threads([job(mine) for mine in rows if len(mine)], self._weights)
        back = torch.argsort(torch.cat(rows))
        logits, values = (torch.cat(column)[back] for column in zip(*parts, strict=True))
        return logits, values

    def _encode_and_score(
        self, present: Tensor, which: Tensor, obs: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        batch = self._batch(tuple(present.tolist()))
        return self._score(self.network.contexts(batch)[batch.start[which] + self._node(obs)], obs)

    def _starts(self, sizes: list[int]) -> Tensor:
        return torch.tensor([0, *sizes], device=self.device).cumsum(0)

    def _node(self, obs: Mapping[str, Tensor]) -> Tensor:
        """Node of the op at hand within its graph, (n,)."""
        return self._node_of[self._first_op[obs["problem"].flatten()] + obs["op"].flatten()]

    def _known_contexts(self, obs: Mapping[str, Tensor]) -> Tensor:
        return self._table[self._first_node[obs["problem"].flatten()] + self._node(obs)]

    def _score(self, context: Tensor, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        devices, usable = _devices(obs)
        logits, values = self.network(context, devices, usable)
        return logits.masked_fill(~usable, MASKED_LOGIT), values

    @torch.no_grad()
    def encode(self, problem: Tensor) -> None:
        """Bring the embeddings of some problems up to date, by index, int (n,)."""
        version = sum(weight._version for weight in self._weights)
        if version != self._version:
            self._encoded[:] = False
            self._version = version
        if self._encoded[problem.cpu()].all():
            return
        for index in set(problem.tolist()):
            if not self._encoded[index]:
                rows = slice(int(self._first_node[index]), int(self._first_node[index + 1]))
                self._table[rows] = self.network.contexts(self._batch((index,)))
                self._encoded[index] = True

    def _batch(self, present: tuple[int, ...]) -> GraphBatch:
        """The union of some graphs; unions repeat within an update, single graphs over the whole training."""
        batch = self._batches.get(present)
        if batch is None:
            if len(self._batches) > len(self._bank) + 64:
                self._batches = {key: kept for key, kept in self._batches.items() if len(key) == 1}
            batch = self._batches[present] = GraphBatch.of([self._bank[index] for index in present])
        return batch


def _devices(obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Features of the devices (n, n_devices, n_device_features), and which are usable (n, n_devices)."""
    usable = obs["mask"].bool()
    return obs["devices"].reshape(*usable.shape, -1), usable


def _shares(sizes: Sequence[int], count: int) -> list[list[int]]:
    """Indices in at most `count` shares of similar total size: the largest first, each to the least share."""
    shares: list[list[int]] = [[] for _ in range(min(count, len(sizes)))]
    totals = [0] * len(shares)
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        least = totals.index(min(totals))
        shares[least].append(index)
        totals[least] += sizes[index]
    return shares
