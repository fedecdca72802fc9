"""The all-reduces of data parallelism: which gradients, in which buckets, and how long on a ring."""

from __future__ import annotations

import numpy as np

from envs.problem import Problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

FIRST_BUCKET_BYTES, BUCKET_BYTES = 2**20, 25 * 2**20
"""Bytes at which a bucket of gradients is full: the first, and each one after it; the defaults of PyTorch."""


def gradients_of(graph: OpGraph) -> IntArray:
    """Lists the tensors that an all-reduce averages, ascending, int (n_gradients,).

    They are what updates read of other ops that run. Where a graph has no updates, as it was captured without
    an optimizer, they are what the backward pass makes and no op reads.
    """
    phases = np.array(graph.phases)
    is_update = phases == "optimizer"
    maker = graph.tensor_producer
    n_readers = np.diff(graph.consumers.ptr)
    if not is_update.any():
        return np.flatnonzero((phases[maker] == "backward") & (n_readers == 0))
    tensor = np.repeat(np.arange(graph.n_tensors), n_readers)
    read = np.bincount(tensor, is_update[graph.consumers.items], minlength=graph.n_tensors) > 0
    return np.flatnonzero(read & ~is_update[maker] & ~graph.is_source[maker])


def buckets_of(sizes: FloatArray) -> IntArray:
    """Numbers the bucket of each gradient, 0 first; a bucket takes gradients until it is full.

    Args:
        sizes: bytes of each gradient, in the order in which they are ready, (n_gradients,).

    Returns:
        int (n_gradients,), ascending.
    """
    bucket = np.zeros(len(sizes), dtype=np.int64)
    current, filled, limit = 0, 0.0, FIRST_BUCKET_BYTES
    for index, size in enumerate(sizes.tolist()):
        bucket[index] = current
        filled += size
        if filled >= limit:
            current, filled, limit = current + 1, 0.0, BUCKET_BYTES
    return bucket


def all_reduce_seconds(problem: Problem, ring: IntArray, sizes: FloatArray) -> FloatArray:
    """Computes how long all-reduces take that run one after another, each on a ring or on two trees.

    Trees are chains within nodes and binary between them, so their latency grows with the logarithm of the
    nodes; each carries half of the bytes up and down again. They pay for small tensors of many nodes. Devices
    share a node if their link is faster than the slowest one.

    Args:
        ring: devices, ascending, int (n_replicas,).
        sizes: bytes of each all-reduce, (n,).

    Returns:
        Seconds, (n,); those of the ring if all links are equal.

    Source: Sanders, Speck and Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
    Parallel Computing 35(12), 2009; `graph/tuning.cc` of NCCL.
    """
    ring_s, cluster = ring_seconds(problem, ring, sizes), problem.cluster
    rate = np.asarray(cluster.bytes_per_s)[np.ix_(ring, ring)] + np.diag(np.full(len(ring), np.inf))
    per_node = int((rate > rate.min()).sum(axis=1).min())
    if per_node == 1:
        return ring_s
    latency_s, is_near = np.asarray(cluster.latency_s)[np.ix_(ring, ring)], rate > rate.min()
    depth, chain = np.ceil(np.log2(len(ring) / per_node)), per_node - 1
    waits_s = depth * latency_s[~is_near].max() + chain * latency_s[is_near & (rate < np.inf)].max()
    return np.minimum(ring_s, 2 * (sizes / rate.min() + waits_s))


def ring_seconds(problem: Problem, ring: IntArray, sizes: FloatArray) -> FloatArray:
    """Computes how long all-reduces take that run one after another on a ring of devices.

    Args:
        ring: devices, each of which sends to the next, int (n_replicas,).
        sizes: bytes of each all-reduce, (n,).

    Returns:
        Seconds, (n,): 2 (R - 1) rounds, in each of which every device sends 1 / R of the bytes; a round lasts
        as long as on the slowest link.

    Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC
    69(2), 2009.
    """
    cluster, n_replicas = problem.cluster, len(ring)
    if n_replicas == 1:
        return np.zeros(len(sizes))
    link = (ring, np.roll(ring, -1))
    bandwidth, latency_s = np.asarray(cluster.bytes_per_s)[link], np.asarray(cluster.latency_s)[link]
    sent_bytes = sizes[:, None] / n_replicas + cluster.n_half_matrix[link]
    round_s = (sent_bytes / bandwidth + latency_s).max(axis=1) + cluster.transfer_gap_s
    return 2 * (n_replicas - 1) * round_s
