"""Fits of efficiency models: from rows that a model predicts, to a model that predicts the others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.calibration.fit import fit_class, fit_line, predictor
from agent.calibration.timed_ops import MeasuredOp
from envs.cluster.kinds import KINDS
from envs.costs.calibration import calibration_of


def synthetic(kind: str, op_class: str, n: int = 300) -> list[MeasuredOp]:
    """Rows that the shipped model of a kind predicts exactly, with an error of 2 %."""
    calibration = calibration_of(kind)
    assert calibration
    rng = np.random.default_rng(0)
    shape = np.ones((n, 4), dtype=np.int64)
    shape[:, 1:] = 2 ** rng.integers(6, 13, (n, 3)) * rng.integers(1, 4, (n, 3))
    bytes_moved = 4.0 * (shape[:, 1] * shape[:, 2])
    image = np.zeros((n, 2), dtype=np.int64)
    if op_class == "conv":
        image[:] = rng.choice([4, 6, 7, 8], (n, 1))
        shape[:, 1], shape[:, 3] = 32 * image.prod(axis=1), 9 * shape[:, 3]
    columns = zip(shape.tolist(), bytes_moved.tolist(), image.tolist(), strict=True)
    rows = [MeasuredOp(op_class, "fp32", tuple(m), 1.0, size, 1.0, tuple(at)) for m, size, at in columns]
    exact = predictor(rows, KINDS[kind])(calibration.classes[op_class].model)
    seconds = (exact * np.exp(rng.normal(0, 0.02, n))).tolist()
    return [replace(row, seconds=each) for row, each in zip(rows, seconds, strict=True)]


@pytest.mark.parametrize("op_class", ["gemm", "bmm", "conv", "elementwise"])
def test_a_fit_predicts_the_rows_held_out(op_class: str) -> None:
    kind = "v100-pcie-32gb"
    fit = fit_class(synthetic(kind, op_class), KINDS[kind])
    assert fit.rows + fit.held_out_rows == 300
    assert 100 < fit.rows < 200
    assert fit.median < 0.04
    assert fit.median <= fit.p90 < 0.15


def test_a_fit_depends_on_its_rows_alone() -> None:
    rows, kind = synthetic("t4", "bmm"), KINDS["t4"]
    before = fit_class(rows, kind)
    fit_class(synthetic("l4", "gemm"), KINDS["l4"])
    assert fit_class(rows, kind) == before


def test_about_half_of_the_shapes_are_held_out() -> None:
    rows = [MeasuredOp("gemm", "fp32", (1, m, 64, 64), 1.0, 1.0, 1.0) for m in range(1, 200)]
    assert 60 < sum(row.is_held_out for row in rows) < 140


SIZES = 2.0 ** np.arange(11, 29)


@pytest.mark.parametrize("alpha_s", [2e-6, 5e-5])
@pytest.mark.parametrize("bandwidth", [4e9, 3e11])
def test_a_line_is_found_again_from_relative_errors(alpha_s: float, bandwidth: float) -> None:
    rng = np.random.default_rng(1)
    seconds = (alpha_s + SIZES / bandwidth) * np.exp(rng.normal(0, 0.01, len(SIZES)))
    seconds[5] *= 3  # an outlier
    found = fit_line(SIZES, seconds)
    assert found == pytest.approx((alpha_s, bandwidth), rel=0.03)
