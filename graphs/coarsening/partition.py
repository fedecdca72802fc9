"""Balanced partition of a sequence into segments, cut at the best boundaries."""

from __future__ import annotations

import numpy as np

from graphs.system.array_types import FloatArray, IntArray

GROWTH, HALVINGS = 1.1, 4
"""Search for the lowest limit of a segment's weight: up by a factor, then back by halves of the last step."""


def balanced_partition(weight: FloatArray, boundary: IntArray, n_segments: int) -> IntArray:
    """Cuts a sequence of items into at most `n_segments` segments.

    No segment weighs more than a limit, the lowest that gives few enough segments; an item heavier than the
    limit is a segment by itself.

    Args:
        weight: not negative, (n,), n at least 1.
        boundary: rank of the boundary between each item and the next, int (n - 1,); cuts are best where it is
            least.
        n_segments: at least 1.

    Returns:
        Segment of each item, ascending from 0, int (n,).
    """
    ends = np.cumsum(weight)
    limit = max(float(ends[-1]) / n_segments, np.finfo(float).tiny)
    while len(starts := _segment_starts(ends, boundary, limit)) > n_segments:
        limit *= GROWTH
    step = limit * (1.0 - 1.0 / GROWTH)
    for _ in range(HALVINGS):
        step /= 2.0
        lighter = _segment_starts(ends, boundary, limit - step)
        if len(lighter) <= n_segments:
            starts, limit = lighter, limit - step
    return np.repeat(np.arange(len(starts)), np.diff([*starts, len(weight)]))


def _segment_starts(ends: FloatArray, boundary: IntArray, limit: float) -> list[int]:
    """First items of segments up to a limit of weight, each cut at the best boundary in its second half.

    Args:
        ends: cumulative weight up to and with each item, (n,).
    """
    starts, start, before = [], 0, 0.0
    while start < len(ends):
        starts.append(start)
        stop = max(int(np.searchsorted(ends, before + limit, side="right")), start + 1)
        if stop < len(ends):
            half = max(int(np.searchsorted(ends, before + limit / 2.0)), start)
            # `boundary[i]` is the one before item i + 1; of several best ones the last is taken.
            last_first = boundary[half:stop][::-1]
            stop -= int(last_first.argmin()) if len(last_first) else 0
        start, before = stop, float(ends[stop - 1])
    return starts
