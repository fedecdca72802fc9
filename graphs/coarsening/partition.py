"""Cutting a sequence into stretches of even weight, where it is best cut."""

from __future__ import annotations

import numpy as np

from graphs.op_graph import FloatArray, IntArray

GROWTH, HALVINGS = 1.1, 4
"""How the least limit of a stretch's weight is found: up by a factor, then back by halves of the step."""


def even_cuts(weight: FloatArray, between: IntArray, n_stretches: int) -> IntArray:
    """Number of the stretch of each item, ascending from 0, int (n,).

    No stretch weighs more than a limit, the least with which there are few enough; an item heavier than that
    is a stretch by itself.

    Args:
        weight: not negative, (n,), n at least 1.
        between: what lies between each item and the next, int (n - 1,): cuts are best where it is least.
        n_stretches: how many there may be, at least 1.
    """
    ends = np.cumsum(weight)
    limit = max(float(ends[-1]) / n_stretches, np.finfo(float).tiny)
    while len(cuts := _starts(ends, between, limit)) > n_stretches:
        limit *= GROWTH
    step = limit * (1.0 - 1.0 / GROWTH)
    for _ in range(HALVINGS):
        step /= 2.0
        lighter = _starts(ends, between, limit - step)
        if len(lighter) <= n_stretches:
            cuts, limit = lighter, limit - step
    return np.repeat(np.arange(len(cuts)), np.diff([*cuts, len(weight)]))


def _starts(ends: FloatArray, between: IntArray, limit: float) -> list[int]:
    """First items of stretches up to a limit of weight, each cut at the best place in its second half.

    Args:
        ends: weight of all up to and with each item, (n,).
    """
    starts, start, before = [], 0, 0.0
    while start < len(ends):
        starts.append(start)
        stop = max(int(np.searchsorted(ends, before + limit, side="right")), start + 1)
        if stop < len(ends):
            half = max(int(np.searchsorted(ends, before + limit / 2.0)), start)
            # `between[i]` is what a cut before item i + 1 cuts; of several best ones the last is taken.
            last_first = between[half:stop][::-1]
            stop -= int(last_first.argmin()) if len(last_first) else 0
        start, before = stop, float(ends[stop - 1])
    return starts
