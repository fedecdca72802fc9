"""Fits of the networks that choose neighbourhoods and filter proposals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from agent.experiments.neighbourhoods.networks import HIDDEN, MOST, Net, net_of
from graphs.system.array_types import FloatArray, IntArray

RATE, DECAY, DROPOUT = 2e-3, 3e-2, 0.2
SET_EPOCHS, MOVE_EPOCHS = 30, 20
LEAST_GAINS = 2
"""Neighbourhoods of a state that must gain something for it to count."""
SUBSET = 32
"""Neighbourhoods of a state that are compared in one update."""


def fit_sets(x: FloatArray, rate: FloatArray, state: IntArray, seed: int = 0) -> tuple[Net, Net]:
    """Fits the gain per second of neighbourhoods, compared within each state, by a softmax over them.

    Args:
        x: features, (n, n_inputs). rate: energy gained a second, (n,). state: of the search, (n,).

    Returns:
        The network, and the same with its first weights.
    """
    rows = [np.flatnonzero(state == one) for one in np.unique(state)]
    rows = [own for own in rows if (rate[own] > 0).sum() >= LEAST_GAINS]
    z, mean, scale = _standard(x)
    inputs = torch.stack([z[own] for own in rows])
    targets = torch.tensor(np.stack([rate[own] for own in rows]), dtype=torch.float32)
    net, first = _network(x.shape[1], HIDDEN, seed)
    optimizer = torch.optim.AdamW(net.parameters(), lr=RATE, weight_decay=DECAY)
    for _ in range(SET_EPOCHS):
        for batch in _batches(len(rows), 32):
            some = torch.randperm(inputs.shape[1])[:SUBSET]
            wanted = targets[batch][:, some]
            wanted = wanted / (wanted.sum(1, keepdim=True) + 1e-12)
            chances = torch.log_softmax(net(inputs[batch][:, some]).squeeze(-1), 1)
            _step(optimizer, -(wanted * chances).sum(1).mean())
    return _packed(list(net.parameters()), mean, scale), _packed(first, mean, scale)


def fit_moves(x: FloatArray, gain: FloatArray, weight: FloatArray, seed: int = 0) -> tuple[Net, Net]:
    """Fits the probability that a proposal shortens the step.

    Args:
        x: features, (n, n_inputs). gain: energy gained, (n,). weight: of each proposal, (n,).

    Returns:
        The network, and the same with its first weights.
    """
    z, mean, scale = _standard(x)
    wanted = torch.tensor(gain > 0, dtype=torch.float32)
    weights = torch.tensor(weight / weight[gain > 0].mean(), dtype=torch.float32)
    net, first = _network(x.shape[1], (16, 8), seed)
    bias = nn.Parameter(torch.tensor(-3.0))
    optimizer = torch.optim.AdamW([*net.parameters(), bias], lr=1.5 * RATE)
    cooled = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, MOVE_EPOCHS)
    for _ in range(MOVE_EPOCHS):
        for batch in _batches(len(x), 1024):
            logits = net(z[batch]).squeeze(-1) + bias
            loss = binary_cross_entropy_with_logits(logits, wanted[batch], weights[batch])
            _step(optimizer, loss)
        cooled.step()
    return _packed(list(net.parameters()), mean, scale), _packed(first, mean, scale)


def _batches(n: int, size: int) -> Iterator[Tensor]:
    shuffled = torch.randperm(n)
    for first in range(0, n, size):
        yield shuffled[first : first + size]


def _standard(x: FloatArray) -> tuple[Tensor, FloatArray, FloatArray]:
    mean, spread = x.mean(axis=0), x.std(axis=0)
    scale = np.where(spread > 1e-9, 1.0 / np.maximum(spread, 1e-9), 0.0)
    return torch.tensor(np.clip((x - mean) * scale, -MOST, MOST), dtype=torch.float32), mean, scale


def _network(n_inputs: int, hidden: tuple[int, int], seed: int) -> tuple[nn.Sequential, list[Tensor]]:
    torch.manual_seed(seed)
    first, second = hidden
    net = nn.Sequential(
        *(nn.Dropout(DROPOUT / 2), nn.Linear(n_inputs, first), nn.ReLU()),
        *(nn.Dropout(DROPOUT), nn.Linear(first, second), nn.ReLU()),
        nn.Linear(second, 1, bias=False),
    )
    return net, [weights.detach().clone() for weights in net.parameters()]


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()


def _packed(weights: list[Tensor], mean: FloatArray, scale: FloatArray) -> Net:
    w1, b1, w2, b2, w3 = (array.detach().numpy().astype(np.float64) for array in weights)
    return net_of([mean, scale, w1.T, b1, w2.T, b2, w3[0]])
