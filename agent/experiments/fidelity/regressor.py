"""A learned cost model beside the fitted one: gradient-boosted trees on shapes of ops and on datasheets."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agent.calibration.fit import fit_class, predict, stand_in, thinned
from agent.calibration.measured_ops import OpTable
from agent.experiments.fidelity.ops import roofline
from envs.cluster.kinds import KINDS
from graphs.system.array_types import FloatArray
from graphs.system.errors import InputError


@dataclass(frozen=True)
class Comparison:
    """Median errors of the trees and of the efficiency model on ops of one device kind and class.

    Attributes:
        trees, fitted: on shapes held out, the device being known.
        trees_left_out, fitted_left_out: on all shapes, nothing being known of the device but its datasheet.
    """

    device: str
    op_class: str
    trees: float
    fitted: float
    trees_left_out: float
    fitted_left_out: float


def compare_regressor(groups: Sequence[OpTable]) -> list[Comparison]:
    """Trains trees for each class, on all devices and with each device left out, and compares their errors.

    Args:
        groups: tables of `agent.calibration.measured_ops.tables`, of at least two devices a class.

    Raises:
        InputError: scikit-learn is not installed.
    """
    by_class: dict[str, list[OpTable]] = defaultdict(list)
    for table in groups:
        by_class[table.op_class].append(table)
    rows = []
    for op_class, of_class in by_class.items():
        if len(of_class) < 2:
            continue
        fits = {table.kind: {op_class: fit_class(table)} for table in of_class}
        known = _Trees([table.select(~table.held_out) for table in of_class])
        for table in of_class:
            kind, test = KINDS[table.kind], table.select(table.held_out)
            unknown = _Trees([other for other in of_class if other.kind != table.kind])
            taken = stand_in(kind, op_class, fits)
            assert taken is not None
            rows.append(
                Comparison(
                    table.kind,
                    op_class,
                    _median(known.seconds(test), test),
                    _median(predict(fits[table.kind][op_class].model, test, kind), test),
                    _median(unknown.seconds(table), table),
                    _median(predict(taken[0], table, kind), table),
                )
            )
    return rows


class _Trees:
    """Gradient-boosted trees that predict log(seconds / roofline), of as many rows as a fit is made of."""

    def __init__(self, groups: Sequence[OpTable]) -> None:
        try:
            from sklearn.ensemble import HistGradientBoostingRegressor
        except ImportError:
            raise InputError("the learned cost model needs scikit-learn; pip install scikit-learn") from None
        self._model = HistGradientBoostingRegressor(random_state=0)
        groups = [thinned(table) for table in groups]
        target = np.concatenate([np.log(table.seconds / roofline(table)) for table in groups])
        self._model.fit(np.concatenate([_features(table) for table in groups]), target)

    def seconds(self, table: OpTable) -> FloatArray:
        """Predicts the seconds of measured ops, (n,)."""
        predicted: FloatArray = roofline(table) * np.exp(self._model.predict(_features(table)))
        return predicted


def _features(table: OpTable) -> FloatArray:
    kind = KINDS[table.kind]
    peak = kind.peaks[table.dtype]
    device = [peak, kind.bytes_per_s, kind.multiprocessors, kind.l2_bytes, kind.power_w, kind.power_w / peak]
    work = np.stack(
        [table.flops, table.bytes_moved, table.flops / table.bytes_moved, roofline(table)], axis=1
    )
    of_device = np.tile(device, (len(table.seconds), 1))
    features: FloatArray = np.log(np.hstack([table.shape, np.maximum(table.image, 1), work, of_device]))
    return features


def _median(predicted: FloatArray, table: OpTable) -> float:
    return float(np.median(np.abs(predicted / table.seconds - 1)))
