"""Small networks that are fitted with torch and evaluated in compiled loops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel

HIDDEN = (32, 16)
MOST = 5.0
"""Standard deviations from the mean at which an input is cut off."""


class Net(NamedTuple):
    """Weights of a network of two hidden layers, and room for their values."""

    mean: FloatArray  # (n_inputs,)
    scale: FloatArray  # (n_inputs,) 1 / standard deviation
    w1: FloatArray  # (n_inputs, n_first)
    b1: FloatArray  # (n_first,)
    w2: FloatArray  # (n_first, n_second)
    b2: FloatArray  # (n_second,)
    w3: FloatArray  # (n_second,)
    first: FloatArray  # (n_first,) scratch
    second: FloatArray  # (n_second,) scratch


def net_of(weights: Sequence[FloatArray]) -> Net:
    """Adds the scratch to weights in the order of the fields of `Net`."""
    arrays = [np.ascontiguousarray(array, dtype=np.float64) for array in weights]
    return Net._make([*arrays, np.zeros(len(arrays[3])), np.zeros(len(arrays[5]))])


def empty_net(n_inputs: int) -> Net:
    """Returns a network that scores everything 0."""
    one = np.zeros(1)
    return net_of(
        [np.zeros(n_inputs), np.zeros(n_inputs), np.zeros((n_inputs, 1)), one, np.zeros((1, 1)), one, one]
    )


@kernel
def score(net, x):
    """Evaluates a network.

    Args:
        net: `Net`; its scratch is written.
        x: inputs, (n_inputs,).

    Returns:
        The score.
    """
    for i in range(len(net.b1)):
        net.first[i] = net.b1[i]
    for j in range(len(x)):
        value = min(max((x[j] - net.mean[j]) * net.scale[j], -MOST), MOST)
        for i in range(len(net.b1)):
            net.first[i] += value * net.w1[j, i]
    for i in range(len(net.b2)):
        net.second[i] = net.b2[i]
    for j in range(len(net.b1)):
        if net.first[j] > 0.0:
            for i in range(len(net.b2)):
                net.second[i] += net.first[j] * net.w2[j, i]
    y = 0.0
    for i in range(len(net.b2)):
        y += max(net.second[i], 0.0) * net.w3[i]
    return y


@kernel(entry=True)
def score_rows(net, x, y):
    """Evaluates a network on several inputs.

    Args:
        net: `Net`; its scratch is written.
        x: inputs, (n, n_inputs).
        y: scores, (n,); written.
    """
    for row in range(len(x)):
        y[row] = score(net, x[row])
