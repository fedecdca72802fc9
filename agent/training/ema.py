"""The exponential moving average (EMA) of a network's weights, less noisy than the weights of any one update.

Source: averaging as in Polyak and Juditsky (1992), here with exponential weights.
"""

from __future__ import annotations

from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from agent.policy.network import PlacementNetwork


def averaged(network: PlacementNetwork, decay: float) -> AveragedModel:
    """Copies a network; the copy's `update_parameters` lets it follow the network.

    Args:
        decay: share of the average that an update keeps, at least 0 and below 1. It is less at first, so that
            the initial weights are soon forgotten.
    """

    def follow(average: Tensor, current: Tensor, n_averaged: Tensor | int) -> Tensor:
        kept = min(decay, float((1 + n_averaged) / (10 + n_averaged)))
        return current.lerp(average, kept)

    return AveragedModel(network, avg_fn=follow)
