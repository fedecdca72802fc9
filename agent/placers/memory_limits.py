"""How much memory a planner may count on, when its last plan overflowed a device.

A planner knows what is held, not the peak: copies that arrive take room as well, and are not foreseen.
"""

from __future__ import annotations

import numpy as np

from graphs.op_graph import FloatArray

CORRECTIONS = 6
MARGIN = 0.02
"""Share of a device's memory that a correction takes beyond the overflow."""
SHARES = tuple(share / 10 for share in range(9, 0, -1))
"""Shares of the memory that are tried in turn where corrections do not lead to a fit."""
MAX_ATTEMPTS = 1 + CORRECTIONS + len(SHARES)
"""Plans made at most, the first one included."""


def next_limit(
    trial: int, limit_bytes: FloatArray, peak_bytes: FloatArray, memory_bytes: FloatArray
) -> FloatArray:
    """Bytes per device to plan the next trial with, (n_devices,).

    At first each device that overflows gets less by as much and a margin, as what is taken from one turns up
    on another; if that leads nowhere, all get ever smaller shares of what they have.

    Args:
        trial: plans made so far, from 1 to `MAX_ATTEMPTS` - 1.
        limit_bytes: what the last plan counted on. peak_bytes: what it came to.
    """
    if trial <= CORRECTIONS:
        less_bytes = peak_bytes - memory_bytes + MARGIN * memory_bytes
        return np.where(peak_bytes > memory_bytes, np.maximum(limit_bytes - less_bytes, 0.0), limit_bytes)
    return SHARES[trial - CORRECTIONS - 1] * memory_bytes
