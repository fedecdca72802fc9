"""The actor of a policy, compiled: it scores the devices of one decision, up to the rounding of float32.

The kernels share these arguments, which they only read:

    head: `HeadArrays`.
    devices: observed features, float32 (max_devices, N_DEVICE_FEATURES).
    mask: 1 = offered, at least one is; int8 (max_devices,).
    e, problem, op: indices of the episode, of its problem and of the op at hand, int.
    vector, matrix, factor: float32 (n,) or (width,); float32 (n, width); float32.
    total, values: float32 (width,); written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.policy.mdp_config import MdpConfig
from agent.policy.shape import NetworkShape
from envs.placement.observation.features import columns_of
from envs.problem import Problem
from envs.simulator.arrays import copy
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel

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


def by_input(weight: Floats) -> Floats:
    """Transposes the weight of a layer, so that each input has a row.

    Args:
        weight: float32 (n_outputs, n_inputs).

    Returns:
        Contiguous, float32 (n_inputs, n_outputs).
    """
    return np.ascontiguousarray(weight.T)


@kernel
def add_product(vector, matrix, total):
    """Adds the product of a row vector and a matrix to `total`."""
    n = len(vector)
    for k in range(0, n - 3, 4):  # four rows at a time: `total` is loaded and stored less often
        a, b, c, d = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        for j in range(len(total)):
            total[j] += (a * matrix[k, j] + b * matrix[k + 1, j]) + (
                c * matrix[k + 2, j] + d * matrix[k + 3, j]
            )
    for k in range(n - n % 4, n):
        add_scaled(vector[k], matrix[k], total)


@kernel
def add_scaled(factor, vector, total):
    """Adds `factor` times a vector to `total`."""
    for k in range(len(total)):
        total[k] += factor * vector[k]


@kernel
def silu(values):
    """Replaces each value x by x times the logistic function of x."""
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


class Contexts(NamedTuple):
    """The parts of the first layer that no placement changes, and where each op finds its own."""

    contexts: Floats  # (n_nodes of all, hidden or more) the part, in the first columns
    row_of: IntArray  # (n_ops of all,) int64, row of `contexts` of each op, problem after problem
    first_op: IntArray  # (n_problems,) int64, where the ops of a problem begin in `row_of`


class HeadArrays(NamedTuple):
    """Weights of an actor's head and what it reads of each op, float32 unless it says otherwise."""

    contexts: Floats  # these three as in `Contexts`
    row_of: IntArray
    first_op: IntArray
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


def join_contexts(problems: Sequence[tuple[Floats, IntArray]]) -> Contexts:
    """Joins the contexts of problems.

    Args:
        problems: of each its contexts, float32 (n_nodes, hidden), and the node of each op, int (n_ops,).
    """
    n_nodes = np.cumsum([0, *(len(contexts) for contexts, _ in problems)])
    n_ops = np.cumsum([0, *(len(node_of) for _, node_of in problems)])
    row_of = [node_of + first for (_, node_of), first in zip(problems, n_nodes, strict=False)]
    contexts = np.concatenate([contexts for contexts, _ in problems])
    return Contexts(contexts, np.concatenate(row_of), n_ops[:-1])


def head_arrays(shape: NetworkShape, weights: Mapping[str, Floats], contexts: Contexts) -> HeadArrays:
    """Lays out the actor's head, by the names of the weights in `PlacementNetwork`."""
    hidden, columns = shape.hidden, columns_of(shape.feature_set)
    return HeadArrays(
        *contexts,
        columns=np.array(columns, dtype=np.int64),
        pool_weight=by_input(weights["of_pool.weight"][:hidden]),
        device_weight=by_input(weights["of_device.weight"]),
        hidden_weight=by_input(weights["actor.1.weight"]),
        hidden_bias=weights["actor.1.bias"],
        out_weight=weights["actor.3.weight"][0],
        out_bias=weights["actor.3.bias"],
    )


def new_head_scratch(head: HeadArrays, n: int, max_devices: int) -> HeadScratch:
    """Allocates the scratch of `n` episodes."""
    widths = (max_devices, len(head.pool_weight), *[len(head.out_weight)] * 3)
    return HeadScratch(*(np.zeros((n, width), dtype=np.float32) for width in widths))


Encoded = tuple[Floats, IntArray]
"""Contexts of a problem's nodes, float32 (n_nodes, hidden), and the node of each op, int (n_ops,)."""


@dataclass(frozen=True, eq=False)
class CompiledPolicy:
    """The actor of a policy, with the weights of one moment.

    Attributes:
        weights: float32, by their names in `PlacementNetwork`, without those of the encoder.
        mdp_config: decision process that the policy acts in where nothing else is said.
        encode: encodes a problem, by the encoder's weights of the moment when it is called.
    """

    shape: NetworkShape
    weights: Mapping[str, Floats]
    mdp_config: MdpConfig
    encode: Callable[[Problem], Encoded]

    def compiled(self) -> CompiledPolicy:
        """Returns the policy itself."""
        return self

    def head_arrays(self, problems: Sequence[Problem]) -> HeadArrays:
        """Encodes problems, and lays out what a walk reads of them and of the weights."""
        return self.head_over(join_contexts([self.encode(problem) for problem in problems]))

    def head_over(self, contexts: Contexts) -> HeadArrays:
        """Lays out what a walk reads of problems that are encoded, and of the weights."""
        return head_arrays(self.shape, self.weights, contexts)


@kernel
def score(head, scratch, e, problem, op, devices, mask):
    """Scores the offered devices of one decision.

    Args:
        scratch: `HeadScratch`; row `e` is written, `logits` where the mask is 1.
    """
    shared, first, second = scratch.shared[e], scratch.first[e], scratch.second[e]
    copy(head.contexts[head.row_of[head.first_op[problem] + op], : len(shared)], shared)
    pool(head.columns, devices, mask, scratch.pooled[e])
    add_product(scratch.pooled[e], head.pool_weight, shared)
    for device in range(len(mask)):
        if mask[device]:
            copy(shared, first)
            for k in range(len(head.columns)):
                add_scaled(devices[device, head.columns[k]], head.device_weight[k], first)
            scratch.logits[e, device] = output_of(head, first, second)


@kernel
def output_of(weights, first, second):
    """Computes the output of a head from its first layer, float32.

    Args:
        weights: `HeadArrays`, or another tuple with its fields of the second layer and the output.
        first: first layer before its activation, float32 (hidden,); written.
        second: scratch, float32 (hidden,); written.
    """
    silu(first)
    copy(weights.hidden_bias, second)
    add_product(first, weights.hidden_weight, second)
    silu(second)
    output = weights.out_bias[0]
    for k in range(len(second)):
        output += second[k] * weights.out_weight[k]
    return output


@kernel
def pool(columns, devices, mask, pooled):
    """Computes mean, least and greatest of each feature over the offered devices.

    Args:
        columns: indices of the features, int64 (n_features,).
        pooled: means, then least, then greatest values, float32 (3 * n_features,); written.
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
