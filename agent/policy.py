"""The policy: a network, and the bank of problems that it has encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from agent.graph_batch import GraphBatch, GraphTensors
from agent.network import PlacementNetwork
from envs.problem import Problem

MASKED_LOGIT = -1e9
"""Finite, so that the log-probability of a forbidden device has no NaN in its gradient."""


class Policy(nn.Module):
    """Scores devices from observations that name their problem by its index in the bank.

    Each graph is encoded once per parameter version: without gradients on demand, into a table that the decisions
    of a rollout share; with gradients once per call of `scores_for_update`.
    """

    def __init__(self, network: PlacementNetwork) -> None:
        super().__init__()
        self.network = network
        self.bank = ()

    @property
    def bank(self) -> tuple[GraphTensors, ...]:
        """The encoder's view of each problem, by problem index."""
        return self._bank

    @bank.setter
    def bank(self, bank: Sequence[GraphTensors]) -> None:
        self._bank = tuple(bank)
        sizes = [len(graph.nodes) for graph in self._bank]
        self._first_op = torch.tensor([0, *sizes], device=self.device).cumsum(0)
        self._table = torch.empty(sum(sizes), 2 * self.network.shape.hidden, device=self.device)
        self._encoded = torch.zeros(len(sizes), dtype=torch.bool)
        self._table_version = -1
        self._batches: dict[tuple[int, ...], GraphBatch] = {}

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def set_problems(self, problems: Sequence[Problem]) -> None:
        """Fill the bank: observations then name `problems[i]` by `i`."""
        self.bank = [GraphTensors.of(problem, self.device) for problem in problems]

    def scores(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Masked logits (n, n_devices) and values (n,) from cached embeddings; carries no gradient to the encoder.

        Args:
            obs: `problem` and `op` int64 (n, 1), `devices` float32 (n, n_devices * n_device_features), `mask`
                (n, n_devices): which devices exist and have room.
        """
        problem = obs["problem"].flatten()
        self._encode_missing(problem)
        return self._score(self._table[self._first_op[problem] + obs["op"].flatten()], obs)

    def scores_for_update(self, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """As `scores`, with gradients: the graphs that occur in `obs` are encoded afresh, each once."""
        present, which = obs["problem"].flatten().unique(return_inverse=True)
        batch = self._batch(tuple(present.tolist()))
        return self._score(self.network.contexts(batch)[batch.start[which] + obs["op"].flatten()], obs)

    def _score(self, context: Tensor, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        usable = obs["mask"].bool()
        devices = obs["devices"].reshape(*usable.shape, -1)
        logits, values = self.network(context, devices, usable)
        return logits.masked_fill(~usable, MASKED_LOGIT), values

    @torch.no_grad()
    def _encode_missing(self, problem: Tensor) -> None:
        version = sum(parameter._version for parameter in self.parameters())
        if version != self._table_version:
            self._encoded[:] = False
            self._table_version = version
        if self._encoded[problem.cpu()].all():
            return
        for index in problem.unique().tolist():
            if not self._encoded[index]:
                rows = slice(int(self._first_op[index]), int(self._first_op[index + 1]))
                self._table[rows] = self.network.contexts(self._batch((index,)))
                self._encoded[index] = True

    def _batch(self, present: tuple[int, ...]) -> GraphBatch:
        """The union of some graphs; unions repeat within an update, single graphs over the whole training."""
        if present not in self._batches:
            if len(self._batches) > len(self._bank) + 64:
                self._batches = {key: batch for key, batch in self._batches.items() if len(key) == 1}
            self._batches[present] = GraphBatch.of([self._bank[index] for index in present])
        return self._batches[present]
