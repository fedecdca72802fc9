"""The average of a network's weights over its training: less noisy than where any one update left them.

Source: Polyak and Juditsky (1992), as an exponential moving average.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from agent.policy.network import PlacementNetwork


def averaged(network: PlacementNetwork, decay: float) -> AveragedModel:
    """A copy of a network that follows it; its `update_parameters` takes in how the network is by then.

    Args:
        decay: share of the average that an update keeps, at least 0 and below 1. It is less at first, so that
            the first weights are soon forgotten.
    """

    def follow(average: Tensor, current: Tensor, n_averaged: Tensor | int) -> Tensor:
        kept = min(decay, float((1 + n_averaged) / (10 + n_averaged)))
        return current.lerp(average, kept)

    return AveragedModel(network, avg_fn=follow)
