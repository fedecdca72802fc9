"""Tensors that are kept while one op runs, and the forest of units along which transfers are counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.bounds.kind_costs import KindCosts
from graphs.system.array_types import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Forest:
    """Each unit has at most one parent, of a lower index: one that it exchanges tensors with.

    Attributes:
        parent: unit above each unit, int (n_units,); -1 = none.
    """

    parent: IntArray

    def between(self, first: IntArray, second: IntArray) -> NDArray[np.bool_]:
        """Says which pairs of units are a unit and its parent, bool (n,)."""
        low, high = np.minimum(first, second), np.maximum(first, second)
        joined: NDArray[np.bool_] = (low < high) & (self.parent[high] == low)
        return joined

    def transfers_s(self, producer: IntArray, reader: IntArray, seconds: FloatArray) -> FloatArray:
        """Sums up seconds of transfers by the unit below, (n_units, n_kinds, n_kinds).

        Args:
            producer, reader: units, a unit and its parent, int (n,).
            seconds: from the kind of the producer to that of the reader, (n, n_kinds, n_kinds).

        Returns:
            Seconds by the kind of the parent and that of the unit.
        """
        total = np.zeros((len(self.parent), *seconds.shape[1:]))
        is_down = producer < reader
        np.add.at(total, reader[is_down], seconds[is_down])
        np.add.at(total, producer[~is_down], seconds[~is_down].transpose(0, 2, 1))
        return total


def kept_reads(costs: KindCosts) -> IntArray:
    """Finds tensors that are kept while one op of the critical path runs, the largest first.

    All ancestors of the op have ended by then and none of its descendants has begun. So each tensor from an
    ancestor, or a source, to a descendant is on the device of both if they share one.

    Returns:
        Reads of the tensors, int (n,), indices of `KindCosts.reads`; tensors that resident bytes include are
        left out. There may be several of a tensor.
    """
    split, before, after = costs.splits
    runs = (costs.seconds[split] > 0).all(axis=1)
    if not runs.any():
        return np.zeros(0, dtype=np.int64)
    work = costs.seconds.min(axis=1)
    at = int(np.where(runs, (before @ work) * (after @ work), -1.0).argmax())
    is_made = (before[at] > 0) | costs.graph.is_source
    reads = costs.reads
    kept = is_made[reads.producer] & (after[at][reads.reader] > 0)
    found = np.flatnonzero(kept & (costs.graph.tensor_owner[reads.tensor] < 0))
    return found[np.argsort(-reads.size[found], kind="stable")]


def make_forest(costs: KindCosts, kept: IntArray) -> Forest:
    """Joins units: by the tensors that are kept, else along the critical path, else by the most bytes.

    Args:
        kept: reads, the largest first, int (n,), as of `kept_reads`.
    """
    reads, unit_of = costs.reads, costs.graph.unit_of
    n_units = len(costs.graph.units)
    low, high = np.sort(np.stack([unit_of[reads.producer], unit_of[reads.reader]]), axis=0)
    apart = low < high
    keys, index = np.unique(high[apart] * n_units + low[apart], return_inverse=True)
    fewest_first = np.argsort(np.bincount(index, reads.size[apart], len(keys)), kind="stable")
    parent = np.full(n_units, -1)
    parent[keys[fewest_first] // n_units] = keys[fewest_first] % n_units
    on_path = np.sort(np.stack([unit_of[costs.critical_path[:-1]], unit_of[costs.critical_path[1:]]]), axis=0)
    on_path = on_path[:, on_path[0] < on_path[1]]
    parent[on_path[1]] = on_path[0]
    taken, joined = np.zeros(n_units, dtype=bool), set()
    for tensor, above, below in zip(
        reads.tensor[kept].tolist(), low[kept].tolist(), high[kept].tolist(), strict=True
    ):
        if above < below and tensor not in joined and (not taken[below] or parent[below] == above):
            parent[below], taken[below] = above, True
            joined.add(tensor)
    return Forest(parent)
