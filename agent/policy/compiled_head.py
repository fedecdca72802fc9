"""The actor's head in arrays, compiled: it scores the devices of one decision without a framework call.

It computes what `PlacementNetwork.logits` does, up to the rounding of float32.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from agent.policy.embedding_cache import EmbeddingCache
from agent.policy.network import PlacementNetwork
from envs.mdp.features import columns_of
from envs.simulator.arrays import copy
from envs.simulator.jit import kernel
from graphs.system.array_types import IntArray

Floats = NDArray[np.float32]

TANH_BOUND = np.float32(7.90531110763549805)
TANH_ODD = tuple(
    np.float32(c)
    for c in (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    )
)
TANH_EVEN = tuple(
    np.float32(c)
    for c in (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
)
"""Coefficients of a rational function that is tanh to float32's precision within the bound, highest powers
first; compilers vectorise it, unlike exp. Source: Eigen's `generic_fast_tanh_float`."""
HALF, ZERO = np.float32(0.5), np.float32(0.0)


class HeadArrays(NamedTuple):
    """Weights of an actor's head and what it reads of each op, float32 unless it says otherwise."""

    contexts: Floats  # (n_nodes of all, hidden) the part of the first layer that no placement changes
    row_of: IntArray  # (n_ops of all,) int64, row of `contexts` of each op, problem after problem
    first_op: IntArray  # (n_problems,) int64, where the ops of a problem begin in `row_of`
    columns: IntArray  # (n_features,) int64, device features that the network sees
    pool_weight: Floats  # (3 * n_features, hidden) first layer, of the pooled features
    device_weight: Floats  # (n_features, hidden) first layer, of the features of the device at hand
    hidden_weight: Floats  # (hidden, hidden) second layer, inputs first
    hidden_bias: Floats  # (hidden,)
    out_weight: Floats  # (hidden,)
    out_bias: Floats  # (1,)


class HeadScratch(NamedTuple):
    """Results and scratch of each episode, float32."""

    logits: Floats  # (n, max_devices) of the last decision; only those of offered devices are written
    pooled: Floats  # (n, 3 * n_features)
    shared: Floats  # (n, hidden) first layer, of what the devices share
    first: Floats  # (n, hidden) first layer of one device
    second: Floats  # (n, hidden) second layer of one device


def head_arrays(network: PlacementNetwork, embeddings: EmbeddingCache) -> HeadArrays:
    """Lays out a network's head and its contexts of some problems, which are encoded already."""
    hidden, columns = network.shape.hidden, columns_of(network.shape.feature_set)
    contexts, row_of, first_op = embeddings.table()
    seen = np.ones(len(columns)) if network.kept is None else np.array(network.kept.devices)
    pooled, single = (
        (1.0, 1.0)
        if network.kept is None
        else (
            network.kept.heads["pool"],
            network.kept.heads["devices"],
        )
    )
    second, last = (layer for layer in network.actor if isinstance(layer, nn.Linear))
    return HeadArrays(
        contexts=_array(contexts[:, :hidden]),
        row_of=row_of.cpu().numpy(),
        first_op=first_op.cpu().numpy(),
        columns=np.array(columns, dtype=np.int64),
        pool_weight=_rows(network.of_pool.weight[:hidden], pooled * np.tile(seen, 3)),
        device_weight=_rows(network.of_device.weight, single * seen),
        hidden_weight=_rows(second.weight, np.ones(hidden)),
        hidden_bias=_array(second.bias),
        out_weight=_array(last.weight[0]),
        out_bias=_array(last.bias),
    )


def new_head_scratch(head: HeadArrays, n: int, max_devices: int) -> HeadScratch:
    """Allocates the scratch of `n` episodes."""
    widths = (max_devices, len(head.pool_weight), *[len(head.out_weight)] * 3)
    return HeadScratch(*(np.zeros((n, width), dtype=np.float32) for width in widths))


@torch.no_grad()
def _array(tensor: Tensor) -> Floats:
    """Copies a tensor into a contiguous array."""
    return np.array(tensor.detach().cpu().float().numpy(), order="C")


def _rows(weight: Tensor, factors: NDArray[np.float64]) -> Floats:
    """Transposes a layer's weight, so that each input has a row, and multiplies each row by a factor."""
    return np.ascontiguousarray(_array(weight).T * factors[:, None].astype(np.float32))


@kernel
def score(head, scratch, e, problem, op, devices, mask):
    """Scores the offered devices of one decision.

    Args:
        head (HeadArrays): only read.
        scratch (HeadScratch): row `e` is written, `logits` where the mask is 1.
        e, problem, op: indices of the episode, of its problem and of the op at hand, int.
        devices: float32 (max_devices, N_DEVICE_FEATURES), the observed features.
        mask: int8 (max_devices,), 1 = offered; at least one is.
    """
    shared, first, second = scratch.shared[e], scratch.first[e], scratch.second[e]
    copy(head.contexts[head.row_of[head.first_op[problem] + op]], shared)
    pool(head.columns, devices, mask, scratch.pooled[e])
    add_product(scratch.pooled[e], head.pool_weight, shared)
    for device in range(len(mask)):
        if mask[device]:
            copy(shared, first)
            for k in range(len(head.columns)):
                add_scaled(devices[device, head.columns[k]], head.device_weight[k], first)
            silu(first)
            copy(head.hidden_bias, second)
            add_product(first, head.hidden_weight, second)
            silu(second)
            logit = head.out_bias[0]
            for k in range(len(second)):
                logit += second[k] * head.out_weight[k]
            scratch.logits[e, device] = logit


@kernel
def pool(columns, devices, mask, pooled):
    """Computes mean, least and greatest of each feature over the offered devices.

    Args:
        columns: int64 (n_features,), the features.
        devices: float32 (max_devices, N_DEVICE_FEATURES).
        mask: int8 (max_devices,), 1 = offered; at least one is.
        pooled: written, float32 (3 * n_features,): means, then least, then greatest.
    """
    n, n_offered = len(columns), 0
    for device in range(len(mask)):
        if mask[device]:
            n_offered += 1
            for k in range(n):
                value = devices[device, columns[k]]
                if n_offered == 1:
                    pooled[k] = pooled[n + k] = pooled[2 * n + k] = value
                else:
                    pooled[k] += value
                    pooled[n + k] = min(pooled[n + k], value)
                    pooled[2 * n + k] = max(pooled[2 * n + k], value)
    for k in range(n):
        pooled[k] /= np.float32(n_offered)


@kernel
def add_product(vector, matrix, total):
    """Adds the product of a row vector and a matrix to `total`.

    Args:
        vector: float32 (n,).
        matrix: float32 (n, width).
        total: updated, float32 (width,).
    """
    for k in range(len(vector)):
        add_scaled(vector[k], matrix[k], total)


@kernel
def add_scaled(factor, vector, total):
    """Adds a multiple of a vector to another.

    Args:
        factor: float32.
        vector: float32 (width,).
        total: updated, float32 (width,).
    """
    for k in range(len(total)):
        total[k] += factor * vector[k]


@kernel
def silu(values):
    """Replaces each value x by x times the logistic function of x.

    Args:
        values: updated, float32 (width,).
    """
    for k in range(len(values)):
        x = min(max(HALF * values[k], -TANH_BOUND), TANH_BOUND)
        square = x * x
        odd = ZERO
        for c in TANH_ODD:
            odd = odd * square + c
        even = ZERO
        for c in TANH_EVEN:
            even = even * square + c
        values[k] *= HALF + HALF * (x * odd / even)
