"""Numbers of a training that are finite no more, found before anything made of them is kept.

What finds one raises a `FloatingPointError` that says which; the training says in which phase and why.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def check_finite(**numbers: float) -> None:
    """Checks numbers, by what they are called with underscores for spaces.

    Raises:
        FloatingPointError: one is NaN or infinite.
    """
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise FloatingPointError(f"the {name.replace('_', ' ')} is {number}")


def check_weights(network: nn.Module, name: str) -> None:
    """Checks all weights of a network.

    Raises:
        FloatingPointError: some are NaN, infinite, or so large that their sum is.
    """
    sums = torch.stack([weights.detach().sum() for weights in network.parameters()])
    if not sums.isfinite().all():
        raise FloatingPointError(f"the {name} are not finite")


def check_scores(logits: Tensor, values: Tensor) -> None:
    """Checks the scores of some decisions.

    Raises:
        FloatingPointError: one is NaN or infinite.
    """
    if not (logits.sum() + values.sum()).isfinite():
        raise FloatingPointError("the policy's scores are not finite")
