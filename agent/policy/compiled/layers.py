"""Layers of a network as kernels over float32 vectors.

`vector` is (n,) or (width,), `matrix` (n, width), `factor` a float32; `total` and `values`, (width,), are
written.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from graphs.system.jit import kernel

Floats = NDArray[np.float32]

TANH_BOUND = np.float32(7.90531110763549805)
TANH_ODD = tuple(
    np.float32(c)
    for c in (
        -2.76076847742355e-16,
        2.00018790482477e-13,
        -8.60467152213735e-11,
        5.12229709037114e-08,
        1.48572235717979e-05,
        6.37261928875436e-04,
        4.89352455891786e-03,
    )
)
TANH_EVEN = tuple(
    np.float32(c)
    for c in (1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03)
)
"""Coefficients of a rational function that is tanh to float32's precision within the bound, highest powers
first; compilers vectorise it, unlike exp. Source: Eigen's `generic_fast_tanh_float`."""
HALF, ZERO = np.float32(0.5), np.float32(0.0)


def by_input(weight: Floats) -> Floats:
    """Transposes the weight of a layer, so that each input has a row.

    Args:
        weight: float32 (n_outputs, n_inputs).

    Returns:
        Contiguous, float32 (n_inputs, n_outputs).
    """
    return np.ascontiguousarray(weight.T)


@kernel
def add_product(vector, matrix, total):
    """Adds the product of a row vector and a matrix to `total`."""
    n = len(vector)
    for k in range(0, n - 3, 4):  # four rows at a time: `total` is loaded and stored less often
        a, b, c, d = vector[k], vector[k + 1], vector[k + 2], vector[k + 3]
        for j in range(len(total)):
            total[j] += (a * matrix[k, j] + b * matrix[k + 1, j]) + (
                c * matrix[k + 2, j] + d * matrix[k + 3, j]
            )
    for k in range(n - n % 4, n):
        add_scaled(vector[k], matrix[k], total)


@kernel
def add_scaled(factor, vector, total):
    """Adds `factor` times a vector to `total`."""
    for k in range(len(total)):
        total[k] += factor * vector[k]


@kernel
def silu(values):
    """Replaces each value x by x times the logistic function of x."""
    for k in range(len(values)):
        x = min(max(HALF * values[k], -TANH_BOUND), TANH_BOUND)
        square = x * x
        odd = ZERO
        for c in TANH_ODD:
            odd = odd * square + c
        even = ZERO
        for c in TANH_EVEN:
            even = even * square + c
        values[k] *= HALF + HALF * (x * odd / even)
