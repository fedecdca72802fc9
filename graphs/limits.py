"""Bounds of a training step and of a machine, beyond physics; within them all arithmetic is finite.

Within them every sum of times or bytes over a step is finite, and the ratio of any two times of a step fits a
32-bit float.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_FLOPS = 1e27
"""Floating-point operations of all ops of a step; the whole training of the largest models takes 1e26."""
MAX_BYTES = 1e21
"""Bytes of all ops or all tensors of a step, and of the memory of a device: a zettabyte, more than all the
memory that was ever made."""
MIN_SECONDS, MAX_SECONDS = 1e-15, 1e9
"""Range of every time but 0: a femtosecond, in which light travels 0.3 micrometres, to 30 years."""
MIN_PER_S, MAX_PER_S = 1e-3, 1e24
"""Range of every speed, in operations or bytes a second."""
MAX_EXTENT = 10**15
"""Greatest extent of a matrix product: rows, columns, inner length or batch; a petabyte in one dimension."""
ROUNDING = 1e-9
"""Relative error of a sum that is added up in another order."""


def is_time(seconds: ArrayLike) -> NDArray[np.bool_]:
    """Says which numbers are times that a part of a step can take: 0, or within the range of seconds."""
    values = np.asarray(seconds, dtype=np.float64)
    return (values == 0) | ((values >= MIN_SECONDS) & (values <= MAX_SECONDS))


def is_speed(per_s: ArrayLike) -> NDArray[np.bool_]:
    """Says which numbers are speeds of a machine."""
    values = np.asarray(per_s, dtype=np.float64)
    return (values >= MIN_PER_S) & (values <= MAX_PER_S)
