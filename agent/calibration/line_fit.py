"""A fit of a link to measured transfers: seconds = alpha + bytes / bandwidth, by robust relative errors.

Source: Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994.
"""

from __future__ import annotations

import numpy as np

from graphs.system.array_types import FloatArray

OUTLIER = 0.05
"""Error from which a row's weight in a fit falls."""


def fit_line(n_bytes: FloatArray, seconds: FloatArray) -> tuple[float, float]:
    """Fits seconds = alpha + n_bytes / bandwidth, both (n,), to the logarithms of the times.

    Returns:
        Alpha in seconds and the bandwidth in bytes a second, of four digits.
    """
    from scipy.optimize import least_squares

    shortest, fastest = float(seconds.min()), float((n_bytes / seconds).max())
    slowest = float((n_bytes / seconds).min())

    def errors(logs: FloatArray) -> FloatArray:
        predicted = np.exp(logs[0]) + n_bytes / np.exp(logs[1])
        misfit: FloatArray = np.log(predicted / seconds)
        return misfit

    low = np.log([shortest * 1e-4, slowest])
    high = np.log([shortest * 10, fastest * 10])
    start = np.log([shortest / 2, fastest])
    found = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER)
    alpha, bandwidth = np.exp(found.x).tolist()
    return _rounded(alpha), _rounded(bandwidth)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
