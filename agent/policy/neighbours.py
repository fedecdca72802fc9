"""Own states beside the means over neighbours, and gradients of both, compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from agent.policy.compiled.encoder import Neighbours
from agent.policy.compiled.layers import add_scaled
from envs.simulator.arrays import copy
from graphs.system.jit import kernel

OF_PRODUCERS, OF_CONSUMERS = 1, 2
"""Rows of the means, after the own state."""


class WithNeighbours(torch.autograd.Function):
    """From states (n_nodes, width), on a CPU, to own states, means of producers and of consumers.

    The result has the shape (n_nodes, 3, width); a mean without neighbours is 0.
    """

    @staticmethod
    def forward(ctx: Any, neighbours: Neighbours, state: Tensor) -> Tensor:
        ctx.neighbours = neighbours
        gathered = state.new_empty(len(state), 3, state.shape[1])
        gather(neighbours, state.detach().contiguous().numpy(), gathered.numpy())
        return gathered

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        given = gradients[0].contiguous()
        total = given.new_empty(len(given), given.shape[2])
        scatter(ctx.neighbours, given.numpy(), total.numpy())
        return None, total


@kernel(entry=True)
def gather(neighbours, state, gathered):
    """Gathers what each node reads.

    Args:
        neighbours: `Neighbours`.
        state: float32 (n_nodes, width).
        gathered: own state, means of producers and of consumers, float32 (n_nodes, 3, width); written.
    """
    producer_ptr, producer_item, consumer_ptr, consumer_item = neighbours
    for i in range(len(state)):
        copy(state[i], gathered[i, 0])
        for k in range(state.shape[1]):
            gathered[i, OF_PRODUCERS, k] = gathered[i, OF_CONSUMERS, k] = 0.0
        share = share_of(producer_ptr, i)
        for k in range(producer_ptr[i], producer_ptr[i + 1]):
            add_scaled(share, state[producer_item[k]], gathered[i, OF_PRODUCERS])
        share = share_of(consumer_ptr, i)
        for k in range(consumer_ptr[i], consumer_ptr[i + 1]):
            add_scaled(share, state[consumer_item[k]], gathered[i, OF_CONSUMERS])


@kernel(entry=True)
def scatter(neighbours, given, total):
    """Adds the gradients of all that was gathered from each node.

    Args:
        neighbours: `Neighbours`.
        given: gradients of what `gather` wrote, float32 (n_nodes, 3, width).
        total: gradients of the states, float32 (n_nodes, width); written.
    """
    producer_ptr, producer_item, consumer_ptr, consumer_item = neighbours
    for i in range(len(total)):
        copy(given[i, 0], total[i])
        for k in range(consumer_ptr[i], consumer_ptr[i + 1]):
            reader = consumer_item[k]
            add_scaled(share_of(producer_ptr, reader), given[reader, OF_PRODUCERS], total[i])
        for k in range(producer_ptr[i], producer_ptr[i + 1]):
            reader = producer_item[k]
            add_scaled(share_of(consumer_ptr, reader), given[reader, OF_CONSUMERS], total[i])


@kernel
def share_of(ptr, i):
    """Returns the share of one neighbour in a node's mean.

    Args:
        ptr: the neighbours of node i are from ptr[i] to ptr[i + 1], int64 (n_nodes + 1,).
        i: index of the node, int.
    """
    return np.float32(1.0) / np.float32(max(ptr[i + 1] - ptr[i], 1))
