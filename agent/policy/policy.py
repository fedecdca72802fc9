"""The policy: a network that scores the devices of a decision, over problems that it has encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from agent.policy.compiled.policy import COMPILED_ENCODER, CompiledPolicy, Encoded
from agent.policy.embedding_cache import EmbeddingCache
from agent.policy.graph_batch import GraphBatch, GraphTensors
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.threads import torch_threads
from envs.problem import Problem

CONSTRUCT = MdpConfig()
MASKED_LOGIT = -1e9
"""Finite, so that the log-probability of a forbidden device has no NaN in its gradient."""


class Policy(nn.Module):
    """Scores devices from observations that name their problem by its index in `set_problems`.

    Args:
        mdp_config: the decision process that the policy acts in where nothing else is said.
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
        """Returns the actor with its present weights in arrays."""
        shape = self.network.shape
        weights = {
            name: tensor.detach().cpu().float().numpy().copy()
            for name, tensor in self.network.state_dict().items()
        }
        encode = None if shape.encoder == COMPILED_ENCODER else self._encoded
        return CompiledPolicy(shape, weights, self.mdp_config, encode)

    @torch.no_grad()
    def _encoded(self, problem: Problem) -> Encoded:
        """Encodes a problem by torch, as `CompiledPolicy.encode` says."""
        graph = GraphTensors.of(problem, self.device)
        with torch_threads(1):
            contexts = self.network.contexts(GraphBatch.of([graph]))[:, : self.network.shape.hidden]
        return contexts.cpu().numpy(), graph.node_of.cpu().numpy()

    def set_problems(self, problems: Sequence[Problem]) -> None:
        """Replaces the problems: observations then name `problems[i]` by `i`."""
        graphs = [GraphTensors.of(problem, self.device) for problem in problems]
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

    def _score(self, context: Tensor, obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        devices, usable = _devices(obs)
        logits, values = self.network(context, devices, usable)
        return logits.masked_fill(~usable, MASKED_LOGIT), values


def _decisions(obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Problem and op of each decision, int64 (n,) both."""
    return obs["problem"].flatten(), obs["op"].flatten()


def _devices(obs: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Features of the devices (n, n_devices, n_device_features), and which are usable (n, n_devices)."""
    usable = obs["mask"].bool()
    return obs["devices"].reshape(*usable.shape, -1), usable
