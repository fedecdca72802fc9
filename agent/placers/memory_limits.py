"""How much memory a planner may count on, when its last plan overflowed a device.

A planner knows what is held, not the peak: copies that arrive take room as well, and are not foreseen.
"""

from __future__ import annotations

import numpy as np

from graphs.op_graph import FloatArray

CORRECTIONS = 4
SHARES = tuple(share / 10 for share in range(9, 0, -1))
"""Shares of the memory that are tried in turn where corrections do not lead to a fit."""
TRIALS = 1 + CORRECTIONS + len(SHARES)
"""Plans made at most, the first one included."""


def next_limit(
    trial: int, limit_bytes: FloatArray, peak_bytes: FloatArray, memory_bytes: FloatArray
) -> FloatArray:
    """Bytes per device to plan the next trial with, (n_devices,).

    At first each device that overflows gets less by as much; if that leads nowhere, all get ever smaller
    shares of what they have.

    Args:
        trial: plans made so far, from 1 to `TRIALS` - 1.
        limit_bytes: what the last plan counted on. peak_bytes: what it came to.
    """
    if trial <= CORRECTIONS:
        return np.maximum(limit_bytes - np.maximum(peak_bytes - memory_bytes, 0.0), 0.0)
    return SHARES[trial - CORRECTIONS - 1] * memory_bytes
