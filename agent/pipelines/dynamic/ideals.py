"""Ideals of the graph of nodes: sets that hold, with each node, all nodes before it. Stages end at ideals."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from agent.pipelines.dynamic.max_load import StageCosts
from envs.pipeline.chain import Chain
from graphs.system.array_types import BoolArray, FloatArray, IntArray

FEW = 64
"""Ideals of the chain whose best split bounds that of the others."""


def windows(seconds: FloatArray, cut_bytes: FloatArray, n_groups: int) -> IntArray:
    """Merges nodes that follow each other into at most so many groups, int64 (n_nodes,).

    The time of all nodes is cut into equal windows. Of the cuts in a window, the one that the fewest bytes
    pass stays.

    Args:
        seconds: of each node, (n_nodes,).
        cut_bytes: that pass the cut before each node, (n_nodes,).
    """
    if len(seconds) <= n_groups:
        return np.arange(len(seconds))
    before = np.cumsum(seconds)[:-1] / max(seconds.sum(), 1e-300)
    window = np.minimum((before * (n_groups - 1)).astype(np.int64), n_groups - 2)
    order = np.lexsort((cut_bytes[1:], window))
    _, first = np.unique(window[order], return_index=True)
    begins = np.zeros(len(seconds), dtype=np.int64)
    begins[order[first] + 1] = 1
    groups: IntArray = begins.cumsum()
    return groups


def merged_pieces(chain: Chain, node_of: IntArray, n_groups: int) -> IntArray:
    """Merges nodes into at most so many groups; group of each node."""
    first = np.flatnonzero(np.diff(node_of, prepend=-1))
    seconds = np.add.reduceat(chain.seconds[:2].sum(axis=0).mean(axis=1), first)
    return windows(seconds, chain.cut_bytes.sum(axis=0)[first], n_groups)


def families(costs: StageCosts, most: int, *, chain_only: bool) -> Iterator[BoolArray]:
    """Yields ever larger families of ideals that stages can end at, (n_ideals, n_nodes) each.

    First come few beginnings of the chain, then all, then, with them, all ideals. If these are too many,
    neighbours in program order are merged until they are few enough.

    Args:
        most: ideals beside the beginnings, at least 2.
        chain_only: whether stages are contiguous in program order.
    """
    beginnings = np.tri(costs.n_nodes + 1, costs.n_nodes, -1, dtype=np.bool_)
    if costs.n_nodes > FEW:
        group = merged_pieces(costs.chain, costs.node_of, FEW)
        yield beginnings[[*np.flatnonzero(np.diff(group, prepend=-1)), costs.n_nodes]]
    yield beginnings
    n_groups, found = costs.n_nodes, None
    while not chain_only and found is None:
        group = merged_pieces(costs.chain, costs.node_of, n_groups)
        found = all_ideals(_before(costs, group), most)
        n_groups = 3 * n_groups // 4
    if found is not None and len(found) > len(beginnings):
        every = np.unique(np.concatenate([beginnings, found[:, group]]), axis=0)
        yield every[np.argsort(every.sum(axis=1), kind="stable")]


def _before(costs: StageCosts, group: IntArray) -> list[int]:
    """Groups right before each group, as the bits of a number."""
    row_reads = costs.traffic.reads.nonzero()
    pairs = group[np.stack([row_reads[0], costs.traffic.maker[row_reads[1]]])]
    found = [0] * (int(group[-1]) + 1)
    for early, late in np.unique(np.sort(pairs, axis=0), axis=1).T.tolist():
        found[late] |= (1 << early) * (early != late)
    return found


def all_ideals(before: list[int], most: int) -> BoolArray | None:
    """Finds all ideals of a graph, by size, (n_ideals, n_nodes); None where there are more than `most`.

    Args:
        before: nodes right before each node, as the bits of a number.
    """
    found, known = [0], {0}
    for have in found:  # grows meanwhile
        for node, needs in enumerate(before):
            larger = have | 1 << node
            if not needs & ~have and larger not in known:
                if len(found) == most:
                    return None
                known.add(larger)
                found.append(larger)
    n_bytes = -(-len(before) // 8)
    packed = np.frombuffer(b"".join(each.to_bytes(n_bytes, "little") for each in found), dtype=np.uint8)
    return np.unpackbits(packed.reshape(-1, n_bytes), axis=1, bitorder="little")[:, : len(before)] > 0
