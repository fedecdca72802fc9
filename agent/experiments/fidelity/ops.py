"""Predicted against measured times of single ops: by device kind and class, and on devices left out."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import numpy as np

from agent.calibration.fit import predict, stand_in
from agent.calibration.op_tables import OpTable, read_ops, tables
from agent.experiments.rows import error_quantiles
from envs.cluster.kinds import KINDS
from envs.costs.calibration import ClassFit, calibration_of
from graphs.system.array_types import FloatArray

CLOSE = 0.02
"""Devices whose measured times differ by less than this share are not ranked."""
ALL_DEVICES = "all"
"""Stands for all devices together."""


@dataclass(frozen=True)
class OpTime:
    """A measured op beside what was predicted for it; a row of `ops.csv`.

    Attributes:
        device: device kind.
        op_class: class of the op.
        name: its shape: batch, m, n and k, or 1, rows, elements of a row and 1.
        held_out: whether no calibration was fitted to this shape.
        predicted_s: by the calibration of the kind.
        left_out_s: by the medians of other kinds, as if nothing had been measured on this one; NaN where no
            other kind has the class.
        roofline_s: by the roofline model.
        measured_s: what it took.
    """

    device: str
    op_class: str
    name: str
    held_out: bool
    predicted_s: float
    left_out_s: float
    roofline_s: float
    measured_s: float


@dataclass(frozen=True)
class OpErrors:
    """Quantiles of |predicted / measured - 1| over the held-out ops of one device kind, or all, and class."""

    device: str
    op_class: str
    n: int
    median: float
    p90: float
    left_out_median: float
    left_out_p90: float
    roofline_median: float
    roofline_p90: float


@dataclass(frozen=True)
class DeviceOrder:
    """The share of pairs of devices that are ranked as measured, over the held-out shapes of both."""

    op_class: str
    pairs: int
    predicted: float
    roofline: float


def compare_ops(files: Iterable[Path]) -> list[OpTime]:
    """Predicts measured ops with the calibrations of the package.

    Args:
        files: as `agent.calibration.op_tables.read_ops` takes them.

    Raises:
        MeasurementError: a file cannot be used.
    """
    measured = measured_fits()
    return [row for table in tables(read_ops(files)) for row in _compare(table, measured)]


def measured_fits() -> dict[str, dict[str, ClassFit]]:
    """Returns the fits of the package that come from measurements, by device kind and class."""
    calibrations = {kind: calibration_of(kind) for kind in KINDS}
    return {
        kind: {name: fit for name, fit in calibration.classes.items() if fit.rows}
        for kind, calibration in calibrations.items()
        if calibration
    }


def op_errors(rows: Sequence[OpTime]) -> list[OpErrors]:
    """Sums up the held-out rows by class for all devices together, then by device kind and class."""
    pooled = [replace(row, device=ALL_DEVICES) for row in rows]
    return [*_op_errors(pooled), *_op_errors(rows)]


def _op_errors(rows: Sequence[OpTime]) -> list[OpErrors]:
    groups: dict[tuple[str, str], list[OpTime]] = defaultdict(list)
    for row in rows:
        if row.held_out:
            groups[row.device, row.op_class].append(row)
    return [
        OpErrors(
            *key,
            len(group),
            *error_quantiles([row.predicted_s for row in group], [row.measured_s for row in group]),
            *error_quantiles([row.left_out_s for row in group], [row.measured_s for row in group]),
            *error_quantiles([row.roofline_s for row in group], [row.measured_s for row in group]),
        )
        for key, group in sorted(groups.items())
    ]


def device_orders(rows: Sequence[OpTime]) -> list[DeviceOrder]:
    """Counts by class how often the predictions rank two devices as the measurements do.

    Pairs whose measured times differ by less than `CLOSE` are left out.
    """
    shapes: dict[tuple[str, str], dict[str, OpTime]] = defaultdict(dict)
    for row in rows:
        if row.held_out:
            shapes[row.op_class, row.name][row.device] = row
    ranked: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for (op_class, _), on in shapes.items():
        for first, second in itertools.combinations(on.values(), 2):
            if abs(first.measured_s / second.measured_s - 1) >= CLOSE:
                faster = first.measured_s < second.measured_s
                predicted = (first.predicted_s < second.predicted_s) == faster
                roofline = (first.roofline_s < second.roofline_s) == faster
                ranked[op_class].append((predicted, roofline))
    return [
        DeviceOrder(op_class, len(right), *np.mean(right, axis=0).tolist())
        for op_class, right in sorted(ranked.items())
    ]


def errors_table(errors: Sequence[OpErrors]) -> list[list[str]]:
    """Cells of a table of errors: a head and a row per device and class."""
    head = ["device", "class", "n", "median", "p90", "left out: median", "p90", "roofline: median", "p90"]
    return [head, *([e.device, e.op_class, str(e.n), *_percent(astuple(e)[3:])] for e in errors)]


def orders_table(orders: Sequence[DeviceOrder]) -> list[list[str]]:
    """Cells of a table of how often devices are ranked right: a head and a row per class."""
    head = ["class", "pairs", "ranked right", "by the roofline"]
    return [head, *([o.op_class, str(o.pairs), *_percent((o.predicted, o.roofline))] for o in orders)]


def _percent(shares: Iterable[float]) -> list[str]:
    return [f"{share:.1%}" for share in shares]


def roofline(table: OpTable) -> FloatArray:
    """Computes the seconds of measured ops by the roofline model with datasheet peaks, (n,)."""
    kind = KINDS[table.kind]
    device = kind.device()
    work = np.maximum(table.flops / device.peak(table.dtype), table.bytes_moved / device.bytes_per_s)
    return device.launch_s + work


def _compare(table: OpTable, measured: Mapping[str, Mapping[str, ClassFit]]) -> list[OpTime]:
    kind, calibration = KINDS[table.kind], calibration_of(table.kind)
    assert calibration is not None
    predicted = predict(calibration.classes[table.op_class].model, table, kind)
    other = stand_in(kind, table.op_class, measured)
    left_out = predict(other[0], table, kind) if other else np.full(len(predicted), np.nan)
    columns = zip(
        (" ".join(str(int(size)) for size in shape) for shape in table.shape),
        table.held_out.tolist(),
        predicted.tolist(),
        left_out.tolist(),
        roofline(table).tolist(),
        table.seconds.tolist(),
        strict=True,
    )
    return [OpTime(table.kind, table.op_class, *values) for values in columns]
