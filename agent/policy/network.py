"""The layers of a policy: they encode a graph once, then score the devices of one op at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from agent.policy.encoders.base import ENCODERS
from agent.policy.graph_data import Batch, global_mean_pool
from agent.policy.shape import NetworkShape
from envs.placement.observation.features import columns_of


class PlacementNetwork(nn.Module):
    """Actor and critic over one shared encoder; the same weights score every device.

    The first layer of each head is a sum of two parts: one of the op and graph embeddings, which is computed
    once per node (`contexts`), and one of the device features, per decision and device.
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

    def encode(self, data: Batch) -> tuple[Tensor, Tensor]:
        """Embeds the nodes of graphs, (n_nodes of all, hidden), and sums each graph up, a row a graph."""
        embedding = self.encoder(data)
        mean = global_mean_pool(embedding, data.batch, len(data.graph_features))
        return embedding, torch.cat([mean, data.graph_features], dim=1)

    def contexts(self, embedding: Tensor, summary: Tensor, member: Tensor) -> Tensor:
        """Computes the part of the heads that no placement changes.

        Args:
            embedding: embedding of some nodes, see `encode`, (n, hidden).
            summary: sums of graphs, see `encode`.
            member: graph of each node, int64 (n,).

        Returns:
            float32 (n, 2 * hidden).
        """
        return self.of_op(embedding) + self.of_graph(summary).index_select(0, member)

    def forward(self, context: Tensor, devices: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """Scores the devices of each decision.

        Args:
            context: rows of `contexts` for the ops at hand, (n, 2 * hidden).
            devices: device features, (n, n_devices, n_device_features).
            usable: True for devices that exist and have memory left for the op, bool (n, n_devices); at
                least one a row.

        Returns:
            Logits (n, n_devices), 0 for a device that is not usable, and state values (n,).
        """
        columns = columns_of(self.shape.feature_set)
        n = len(columns)  # a view where the features of the set are the first ones
        devices = devices[..., :n] if columns == tuple(range(n)) else devices[..., columns]
        first_layers = context + self.of_pool(_pool(devices, usable))  # without the device at hand
        for_actor, for_critic = first_layers.chunk(2, dim=1)
        values: Tensor = self.critic(for_critic).squeeze(1)
        if usable.all():
            return self.actor(for_actor[:, None] + self.of_device(devices)).squeeze(2), values
        decision = usable.nonzero()[:, 0]  # rows of devices that do not exist would take as long as others
        scored = self.actor(for_actor.index_select(0, decision) + self.of_device(devices[usable]))
        logits = torch.zeros_like(devices[:, :, 0]).masked_scatter(usable, scored.squeeze(1))
        return logits, values


def _pool(devices: Tensor, usable: Tensor) -> Tensor:
    """Mean, least and greatest of each feature over the usable devices, (n, 3 * n_features)."""
    weight = usable[:, :, None].to(devices.dtype)
    beyond = torch.zeros_like(weight).masked_fill(~usable[:, :, None], torch.inf)
    mean = (devices * weight).sum(1) / weight.sum(1)
    return torch.cat([mean, (devices + beyond).amin(1), (devices - beyond).amax(1)], dim=1)
