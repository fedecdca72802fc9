"""Fitting a line to measured transfers."""

from __future__ import annotations

import numpy as np
import pytest

from agent.calibration.fit import fit_line

SIZES = 2.0 ** np.arange(11, 29)


@pytest.mark.parametrize("alpha_s", [2e-6, 5e-5])
@pytest.mark.parametrize("bandwidth", [4e9, 3e11])
def test_a_line_is_found_again_from_relative_errors(alpha_s: float, bandwidth: float) -> None:
    rng = np.random.default_rng(1)
    seconds = (alpha_s + SIZES / bandwidth) * np.exp(rng.normal(0, 0.01, len(SIZES)))
    seconds[5] *= 3  # an outlier
    found = fit_line(SIZES, seconds)
    assert found == pytest.approx((alpha_s, bandwidth), rel=0.03)
