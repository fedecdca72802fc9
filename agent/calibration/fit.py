"""Fits of efficiency models to measured ops: robust least squares of log(predicted / measured)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from agent.calibration.timed_ops import ITEM_BYTES, MeasuredOp
from envs.cluster.kinds import Kind
from envs.costs.calibration import ClassFit, model_type
from envs.costs.efficiency import Machine, MatmulModel, MatmulWork, Model
from graphs.system.array_types import FloatArray


@dataclass(frozen=True)
class Parameter:
    """A parameter of a fit: its start, its bounds, and how strongly it is held at its start."""

    start: float
    low: float
    high: float
    stiffness: float = 0.1


MATMUL = {
    "launch_s": Parameter(3e-5, 5e-6, 3e-4),
    "efficiency": Parameter(0.9, 0.2, 2.0),
    "sustained": Parameter(1.0, 0.1, 2.5),
    "traffic": Parameter(0.8, 0.4, 1.0),
    "prologue": Parameter(3.0, 0.1, 150.0, 0.03),
    "tile_cost": Parameter(5.0, 0.4, 60.0, 0.05),
    "waves": Parameter(0.5, 0.05, 0.98, 0.05),
    "overlap": Parameter(3.0, 1.3, 12.0, 0.05),
    "cache": Parameter(3.0, 0.3, 20.0, 0.05),
    "deep": Parameter(0.05, 0.005, 4.0, 0.05),
}
CONVOLUTION = MATMUL | {
    "tile_cost": Parameter(8.0, 0.4, 60.0, 0.2),
    "fused": Parameter(0.8, 0.2, 2.5),
    "fused_prologue": Parameter(12.0, 0.1, 200.0, 0.03),
    "transforms": Parameter(0.7, 0.1, 2.0),
}
CACHES = {
    "launch_s": Parameter(5e-6, 1e-7, 1e-3, 0.02),
    "efficiency": Parameter(0.9, 0.02, 4.0, 0.02),
    "cached": Parameter(8.0, 1.0, 100.0, 0.05),
    "room_bytes": Parameter(3e7, 1e5, 1e10, 0.02),
    "fade": Parameter(2.0, 0.5, 8.0, 0.05),
}
"""The parameters of a device of one's own, whose caches decide."""


MAX_ROWS = 600
"""Rows that make a fit, taken evenly from all: more change nothing."""
OUTLIER = 0.05
"""Error from which a row's weight in a fit falls."""


def predictor(rows: Sequence[MeasuredOp], kind: Kind) -> Callable[[Any], FloatArray]:
    """Returns a function of a model that computes the seconds of ops on a kind, launch included, (n,).

    Args:
        rows: rows of one op class and dtype, (n,).
    """
    dtype, item_bytes = rows[0].dtype, ITEM_BYTES[rows[0].dtype]
    machine = Machine(kind.bytes_per_s, kind.multiprocessors, kind.l2_bytes)
    shape = np.array([row.shape for row in rows], dtype=np.float64)
    bytes_moved = np.array([row.bytes_moved for row in rows])
    if not issubclass(model_type(rows[0].op_class), MatmulModel):
        return lambda model: model.launch_s + model.seconds(bytes_moved, item_bytes * shape[:, 2], machine)
    n, image = len(rows), np.array([row.image for row in rows], dtype=np.float64)
    work = MatmulWork(shape, bytes_moved, np.full(n, item_bytes), np.full(n, kind.peaks[dtype]), image)
    return lambda model: model.timed_alone(work, machine)


def fit_class(rows: Sequence[MeasuredOp], kind: Kind) -> ClassFit:
    """Fits the model of a device kind and op class on the rows not held out, and judges it on the others.

    Returns:
        The fit, with parameters of five digits.
    """
    train, test = ([row for row in rows if row.is_held_out == held_out] for held_out in (False, True))
    model = _fit(train or rows, kind)
    if not test:
        return ClassFit(model, len(train))
    errors = np.abs(predictor(test, kind)(model) / [row.seconds for row in test] - 1)
    median, p90 = (round(float(q), 4) for q in np.quantile(errors, [0.5, 0.9]))
    return ClassFit(model, len(train), len(test), median, p90)


def _fit(rows: Sequence[MeasuredOp], kind: Kind) -> Model:
    from scipy.optimize import least_squares

    if len(rows) > MAX_ROWS:
        rows = [rows[row] for row in np.linspace(0, len(rows) - 1, MAX_ROWS).astype(np.int64)]
    op_class = rows[0].op_class
    build = model_type(op_class)
    limits = (CONVOLUTION if op_class == "conv" else MATMUL) if issubclass(build, MatmulModel) else CACHES
    predict, seconds = predictor(rows, kind), np.array([row.seconds for row in rows])
    start, low, high = (
        np.log([getattr(p, key) for p in limits.values()]) for key in ("start", "low", "high")
    )
    stiffness = np.array([p.stiffness for p in limits.values()])

    def residuals(logs: FloatArray) -> FloatArray:
        model = build(**dict(zip(limits, np.exp(logs).tolist(), strict=True)))
        misfit = np.log(predict(model) / seconds)
        scale = math.sqrt(300 / len(misfit))
        return np.concatenate([misfit * scale, stiffness * (logs - start)])

    fitted = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, diff_step=1e-2, max_nfev=100
    )
    values = dict(zip(limits, np.exp(fitted.x).tolist(), strict=True))
    return build(**{name: float(f"{value:.5g}") for name, value in values.items()})


def fit_line(n_bytes: FloatArray, seconds: FloatArray) -> tuple[float, float]:
    """Fits seconds = alpha + n_bytes / bandwidth, both (n,), to the logarithms of the times.

    Returns:
        Alpha in seconds and the bandwidth in bytes a second, of four digits.

    Source: Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994.
    """
    from scipy.optimize import least_squares

    shortest, fastest = float(seconds.min()), float((n_bytes / seconds).max())
    slowest = float((n_bytes / seconds).min())

    def errors(logs: FloatArray) -> FloatArray:
        predicted = np.exp(logs[0]) + n_bytes / np.exp(logs[1])
        return np.log(predicted / seconds)

    low = np.log([shortest * 1e-4, slowest])
    high = np.log([shortest * 10, fastest * 10])
    start = np.log([shortest / 2, fastest])
    fitted = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER)
    alpha, bandwidth = (float(f"{value:.4g}") for value in np.exp(fitted.x).tolist())
    return alpha, bandwidth
