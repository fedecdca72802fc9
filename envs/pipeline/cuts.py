"""Cuts of a chain into stages, and those whose greatest load of a stage is least."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphs.system.jit import kernel


class Cuts(NamedTuple):
    """A placement of a pipeline, as placers see it.

    Attributes:
        first: first piece of each stage, ascending from 0.
        ranks: devices in the order of their first stage; stage `s` is on `ranks[s % len(ranks)]`.
        recomputed: whether each stage runs forward again before its backward actions; empty = none does.
    """

    first: tuple[int, ...]
    ranks: tuple[int, ...]
    recomputed: tuple[bool, ...] = ()


ROUNDS = 60
"""Halvings of the interval in which the least load lies; after that many it is a rounding error wide."""


@kernel(entry=True)
def cut_by_load(before, first):
    """Finds the cuts whose greatest load of a stage is least; each stage has at least one piece.

    The least load is found by bisection: each stage in turn takes as many pieces as it can within a load.

    Args:
        before: load of all pieces before each one, and of all, for each stage, (n_stages, n_pieces + 1).
        first: first piece of each stage, int64 (n_stages,); written.
    """
    n_stages, n_pieces = before.shape[0], before.shape[1] - 1
    low, high = 0.0, 0.0
    for stage in range(n_stages):
        high = max(high, before[stage, n_pieces])
    for _ in range(ROUNDS):
        load = (low + high) / 2
        if fill(before, load, first) >= n_pieces:
            high = load
        else:
            low = load
    fill(before, high, first)
    for stage in range(n_stages - 1, 0, -1):
        first[stage] = min(first[stage], n_pieces - (n_stages - stage))
    for stage in range(1, n_stages):
        first[stage] = max(first[stage], first[stage - 1] + 1)


@kernel
def fill(before, load, first):
    """Gives each stage in turn all the pieces that it can take within a load.

    Args:
        before: as of `cut_by_load`.
        load: seconds.
        first: first piece of each stage, int64 (n_stages,); written.

    Returns:
        End of the last stage.
    """
    at = 0
    for stage in range(before.shape[0]):
        first[stage] = at
        row = before[stage]
        at = np.searchsorted(row, row[at] + load * (1 + 1e-12), side="right") - 1
    return at
