"""Fits of efficiency models to measured ops: robust least squares of log(predicted / measured)."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from agent.calibration.op_tables import ITEM_BYTES, OpTable
from agent.calibration.parameters import CACHES, CONVOLUTION, MATMUL, Parameter
from envs.cluster.kinds import Kind
from envs.costs.calibration import ClassFit, model_type
from envs.costs.efficiency import Machine, MatmulModel, MatmulWork, Model
from graphs.system.array_types import FloatArray

MAX_ROWS = 600
"""Rows that make a fit, taken evenly from all: more change nothing."""
OUTLIER = 0.05
"""Error from which a row's weight in a fit falls."""


def predict(model: Model, table: OpTable, kind: Kind) -> FloatArray:
    """Computes the seconds that measured ops would take on a kind, launch included, (n,)."""
    item_bytes = ITEM_BYTES[table.dtype]
    machine = Machine(kind.bytes_per_s, kind.multiprocessors, kind.l2_bytes)
    if isinstance(model, MatmulModel):
        n = len(table.seconds)
        peak = kind.peaks[table.dtype]
        work = MatmulWork(
            table.shape, table.bytes_moved, np.full(n, item_bytes), np.full(n, peak), table.image
        )
        return model.timed_alone(work, machine)
    return model.launch_s + model.seconds(table.bytes_moved, item_bytes * table.shape[:, 2], machine)


def fit_class(table: OpTable, kind: Kind) -> ClassFit:
    """Fits the model of a device kind and op class on the rows not held out, and judges it on the others.

    Returns:
        The fit, with parameters of five digits.
    """
    train, test = table.select(~table.held_out), table.select(table.held_out)
    model = _fit(train, kind) if len(train.seconds) else _fit(table, kind)
    if not len(test.seconds):
        return ClassFit(model, len(train.seconds))
    errors = np.abs(predict(model, test, kind) / test.seconds - 1)
    median, p90 = (round(float(q), 4) for q in np.quantile(errors, [0.5, 0.9]))
    return ClassFit(model, len(train.seconds), len(test.seconds), median, p90)


def _thinned(table: OpTable) -> OpTable:
    """Returns at most `MAX_ROWS` rows, taken evenly."""
    if len(table.seconds) <= MAX_ROWS:
        return table
    return table.select(np.linspace(0, len(table.seconds) - 1, MAX_ROWS).astype(np.int64))


def _limits(op_class: str) -> Mapping[str, Parameter]:
    """Returns the parameters to fit."""
    if not issubclass(model_type(op_class), MatmulModel):
        return CACHES
    return CONVOLUTION if op_class == "conv" else MATMUL


def _fit(table: OpTable, kind: Kind) -> Model:
    from scipy.optimize import least_squares

    table, limits, build = _thinned(table), _limits(table.op_class), model_type(table.op_class)
    start, low, high = (
        np.log([getattr(p, key) for p in limits.values()]) for key in ("start", "low", "high")
    )
    stiffness = np.array([p.stiffness for p in limits.values()])

    def residuals(logs: FloatArray) -> FloatArray:
        model = build(**dict(zip(limits, np.exp(logs).tolist(), strict=True)))
        misfit = np.log(predict(model, table, kind) / table.seconds)
        scale = math.sqrt(300 / len(misfit))
        return np.concatenate([misfit * scale, stiffness * (logs - start)])

    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, diff_step=1e-2, max_nfev=100
    )
    values = dict(zip(limits, np.exp(found.x).tolist(), strict=True))
    return build(**{name: float(f"{value:.5g}") for name, value in values.items()})
