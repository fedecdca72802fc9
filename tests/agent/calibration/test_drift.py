"""The drift of the timing over a session."""

from __future__ import annotations

import numpy as np
import pytest

from agent.calibration.drift import LEAST_LEFT, drift_s

N = 600
RNG = np.random.default_rng(0)
FLOPS, BYTES = RNG.uniform(1e8, 5e9, N), RNG.uniform(1e6, 5e7, N)
POSITION = np.arange(1, N + 1) / N
WORK_S = 3e-5 + FLOPS / 5e12 + BYTES / 2e11
ALL = np.ones(N, dtype=bool)


@pytest.mark.parametrize(("at_the_end", "order"), [(5e-4, 1.0), (3e-4, 2.0)])
def test_a_drift_is_found_beside_work_that_is_known_to_a_tenth(at_the_end: float, order: float) -> None:
    noise = np.exp(np.random.default_rng(1).normal(0, 0.1, N))
    true_s = at_the_end * POSITION**order
    found_s = drift_s(WORK_S * noise + true_s, FLOPS, BYTES, ALL)
    assert np.abs(found_s - true_s).max() < 0.1 * at_the_end


def test_where_there_is_none_none_is_found() -> None:
    assert drift_s(WORK_S, FLOPS, BYTES, ALL).max() < 0.01 * np.median(WORK_S)


def test_rows_that_are_held_out_say_nothing_of_it() -> None:
    seconds, used = WORK_S + 5e-4 * POSITION, np.arange(N) % 2 == 0
    changed = np.where(used, seconds, 1.5 * seconds)
    # The scale is the median of all rows, which is but where the fit begins.
    np.testing.assert_allclose(
        drift_s(changed, FLOPS, BYTES, used)[used], drift_s(seconds, FLOPS, BYTES, used)[used], rtol=0.02
    )


def test_some_of_each_time_is_left() -> None:
    seconds = WORK_S + 5e-4 * POSITION
    seconds[-1] = 1e-6
    assert drift_s(seconds, FLOPS, BYTES, ALL)[-1] == pytest.approx((1 - LEAST_LEFT) * 1e-6)
