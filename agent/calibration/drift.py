"""The drift of a session of measurements: time that the timing itself adds, more with every op timed.

In NeuSight's files of convolutions each row takes longer than the like of it before, by the same time whether
it is a short or a long one: 0.3 ms more at the end than at the start on an A100, 0.8 ms on a P100, where half
of the convolutions take less than 1.6 ms. No GPU does so. What the timing added is therefore estimated from
the rows and taken off.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphs.system.array_types import FloatArray

OUTLIER = 0.1
"""Error from which a row's weight falls."""
LEAST_LEFT = 0.1
"""Share of a measured time that is left at least."""
START, ORDER = 0.1, 1.5
"""The start of the fit: the drift at the end over the median time, and its order."""


def drift_s(
    seconds: FloatArray, flops: FloatArray, bytes_moved: FloatArray, used: NDArray[np.bool_]
) -> FloatArray:
    """Estimates what the timing added to each op of a session, by a robust fit.

    The model is `a + b * flops + c * bytes_moved + d * position**e`, each of the five more than 0; position
    is the place in the session, up to 1. The last term is the drift.

    Args:
        seconds: measured times in the order of the session, (n,).
        flops, bytes_moved: work of the ops, (n,).
        used: rows that the estimate may look at, (n,).

    Returns:
        Seconds, (n,), at most 0.9 of the measured ones.
    """
    from scipy.optimize import least_squares

    position = np.arange(1, len(seconds) + 1) / len(seconds)
    typical = np.median(seconds)
    work = np.stack([np.ones(len(seconds)), flops, bytes_moved], axis=1)
    work *= typical / np.median(work, axis=0)

    def drift(logs: FloatArray) -> FloatArray:
        added: FloatArray = np.exp(logs[3]) * typical * position ** np.exp(logs[4])
        return added

    def errors(logs: FloatArray) -> FloatArray:
        predicted = work @ np.exp(logs[:3]) + drift(logs)
        misfit: FloatArray = np.log(predicted / seconds)[used]
        return misfit

    start = np.log([START, 0.5, 0.5, START, ORDER])
    bounds = np.log([[1e-6] * 4 + [0.5], [10.0] * 4 + [4.0]])
    found = least_squares(errors, start, bounds=bounds, loss="soft_l1", f_scale=OUTLIER)
    return np.minimum(drift(found.x), (1 - LEAST_LEFT) * seconds)
