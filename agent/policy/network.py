"""The layers of a policy: encode a graph once, then score the devices of one op at a time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from agent.policy.encoders.base import ENCODERS
from agent.policy.graph_batch import GraphBatch
from envs.mdp.features import columns_of


@dataclass(frozen=True)
class NetworkShape:
    """All that is needed to build a network that given weights fit.

    Attributes:
        encoder: name of the encoder.
        hidden: width of embeddings and of the head.
        rounds: of the encoder.
        node_features, graph_features, device_features: widths of the inputs.
        sight: key of `FEATURE_SETS`.
    """

    encoder: str
    hidden: int
    rounds: int
    node_features: int
    graph_features: int
    device_features: int
    feature_set: str = "lookahead"


class PlacementNetwork(nn.Module):
    """Actor and critic over one shared encoder; the same weights score every device.

    The first layer of each head is a sum of one part for [op embedding, graph embedding] and one for what the
    lookahead says; so the first is computed once per node (`contexts`), not once per decision and device.
    """

    def __init__(self, shape: NetworkShape) -> None:
        super().__init__()
        self.shape = shape
        hidden = shape.hidden
        self.encoder = ENCODERS[shape.encoder](shape.node_features, hidden, shape.rounds)
        self.of_graph = nn.Sequential(
            nn.Linear(hidden + shape.graph_features, hidden), nn.SiLU(), nn.Linear(hidden, 2 * hidden)
        )
        self.of_op = nn.Linear(hidden, 2 * hidden, bias=False)
        self.of_pool = nn.Linear(3 * shape.device_features, 2 * hidden, bias=False)
        self.of_device = nn.Linear(shape.device_features, hidden, bias=False)
        last = nn.Linear(hidden, 1)
        self.actor = nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)
        self.critic = nn.Sequential(nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1))
        # A nearly uniform policy at first: PPO explores from there.
        with torch.no_grad():
            last.weight.mul_(0.01)
            last.bias.zero_()

    def contexts(self, batch: GraphBatch) -> Tensor:
        """What the heads need of each node whatever the placement so far, (n_nodes of all, 2 * hidden)."""
        embedding = self.encoder(batch)
        summary = torch.cat([batch.mean_of_graph(embedding), batch.graphs], dim=1)
        context: Tensor = self.of_op(embedding) + self.of_graph(summary)[batch.member]
        return context

    def forward(self, context: Tensor, devices: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """Score the devices of each decision.

        Args:
            context: rows of `contexts` for the ops at hand, (n, 2 * hidden).
            devices: lookahead features, (n, n_devices, n_device_features).
            usable: which devices exist and have room, bool (n, n_devices); at least one a row.

        Returns:
            Logits (n, n_devices), meaningless for a device that is not usable, and state values (n,).
        """
        devices = self._visible(devices)
        for_actor, for_critic = self._first_layers(context, devices, usable)
        values: Tensor = self.critic(for_critic).squeeze(1)
        return self._score(for_actor, devices), values

    def logits(self, context: Tensor, devices: Tensor, usable: Tensor) -> Tensor:
        """The logits of `forward` alone."""
        devices = self._visible(devices)
        return self._score(self._first_layers(context, devices, usable)[0], devices)

    def _visible(self, devices: Tensor) -> Tensor:
        feature_set = columns_of(self.shape.feature_set)
        first = len(feature_set)
        return devices[..., :first] if feature_set == tuple(range(first)) else devices[..., feature_set]

    def _first_layers(self, context: Tensor, devices: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """First layers of actor and critic, without their part of the device at hand; (n, hidden) each."""
        for_actor, for_critic = (context + self.of_pool(_pool(devices, usable))).chunk(2, dim=1)
        return for_actor, for_critic

    def _score(self, for_actor: Tensor, devices: Tensor) -> Tensor:
        logits: Tensor = self.actor(for_actor[:, None] + self.of_device(devices)).squeeze(2)
        return logits


def _pool(devices: Tensor, usable: Tensor) -> Tensor:
    """Mean, least and greatest of each feature over the usable devices, (n, 3 * n_features)."""
    there = usable[:, :, None].to(devices.dtype)
    beyond = torch.zeros_like(there).masked_fill(~usable[:, :, None], torch.inf)
    mean = (devices * there).sum(1) / there.sum(1)
    return torch.cat([mean, (devices + beyond).amin(1), (devices - beyond).amax(1)], dim=1)
