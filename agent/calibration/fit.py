"""Fits of efficiency models to measured ops: robust least squares of log(predicted / measured)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from agent.calibration.op_tables import ITEM_BYTES, MeasuredOpsError, OpTable
from agent.calibration.parameters import (
    BELOW_POWER,
    BURST,
    CACHES,
    CONVOLUTION,
    MATMUL,
    STREAMING,
    TRAFFIC,
    Parameter,
)
from envs.cluster.kinds import KINDS, Kind
from envs.costs.calibration import NEEDED, Calibration, ClassFit, model_type
from envs.costs.efficiency import BATCHED_TILES, TILES, Machine, MatmulModel, MatmulWork, Model
from envs.costs.op_classes import TENSOR
from graphs.system.array_types import FloatArray

JOULES_PER_FLOP_NM = {"fp32": 1.4e-12, "fp16": 2e-13}
"""Energy of an operation per nanometre of the process: in fp32 what T4 and L4 spend, which power limits;
in fp16, on tensor cores, what H100 spends."""
MAX_ROWS = 600
"""Rows that make a fit, taken evenly from all: more change nothing."""
OUTLIER = 0.05
"""Error from which a row's weight in a fit falls."""
SMALL_CHIPS = frozenset({"p4", "rtx3090"})
"""Boards whose chips (GP104, GA102) have another compute capability than the GP100 or GA100 of their
generation: cuBLAS and cuDNN run other kernels on them."""
SOURCE = (
    "fp32: NeuSight, github.com/sitar-lab/NeuSight (Lee et al., ASPLOS 2025); "
    "gemm-tensor: Vidur, github.com/microsoft/vidur (Agrawal et al., MLSys 2024)"
)
LICENCE = "MIT"


LONG_S, LONG_ROWS = 0.1, 20
"""Rows of this many seconds show what a board sustains, as a timing repeats each of them for seconds; and how
many of them can refute a burst."""
BURST_GAIN = 0.1
"""Share by which a burst has to lower the median error where there are so many. Long ops are large ones, so
its parameters can stand for shapes instead."""
OWN = "measured"
"""The generation of such a device."""


def power_share(kind: Kind, dtype: str) -> float:
    """Returns the share of the peak in a dtype that the power limit of a board allows, at most 1."""
    return min(1.0, kind.power_w / (JOULES_PER_FLOP_NM[dtype] * kind.process_nm * kind.peaks[dtype]))


def machine_of(kind: Kind) -> Machine:
    """Returns what efficiency models need of a kind."""
    tiles = BATCHED_TILES.get(kind.generation, TILES)
    return Machine(kind.bytes_per_s, kind.multiprocessors, kind.l2_bytes, tiles)


def predict(model: Model, table: OpTable, kind: Kind) -> FloatArray:
    """Computes the seconds that measured ops would take on a kind, launch included, (n,)."""
    item_bytes = ITEM_BYTES[table.dtype]
    if isinstance(model, MatmulModel):
        n = len(table.seconds)
        peak = kind.peaks[table.dtype]
        work = MatmulWork(
            table.shape, table.bytes_moved, np.full(n, item_bytes), np.full(n, peak), table.image
        )
        return model.timed_alone(work, machine_of(kind))
    return model.launch_s + model.seconds(table.bytes_moved, item_bytes * table.shape[:, 2], machine_of(kind))


def fit_class(table: OpTable, kind: Kind | None = None) -> ClassFit:
    """Fits the model of a device kind and op class on the rows not held out, and judges it on the others.

    Args:
        kind: the device kind where `KINDS` does not hold it.

    Returns:
        The fit, with parameters of five digits.
    """
    kind = kind or KINDS[table.kind]
    train, test = table.select(~table.held_out), table.select(table.held_out)
    model = _fit(train, kind) if len(train.seconds) else _fit(table, kind)
    if not len(test.seconds):
        return ClassFit(model, len(train.seconds))
    errors = np.abs(predict(model, test, kind) / test.seconds - 1)
    median, p90 = (round(float(q), 4) for q in np.quantile(errors, [0.5, 0.9]))
    return ClassFit(model, len(train.seconds), len(test.seconds), median, p90)


def calibrate(groups: Sequence[OpTable]) -> list[Calibration]:
    """Fits all device kinds: from their own rows, and the rest from the medians of their generation.

    Args:
        groups: tables of `agent.calibration.op_tables.tables`.

    Raises:
        MeasurementError: no op was measured of a class that others stand on.
    """
    for op_class in NEEDED:
        if not any(table.op_class == op_class for table in groups):
            raise MeasuredOpsError(f"no file holds measured ops of class '{op_class}'; give such a file too")
    fits: dict[str, dict[str, ClassFit]] = {}
    for table in groups:
        fits.setdefault(table.kind, {})[table.op_class] = fit_class(table)
    return [_calibration(kind, fits) for kind in KINDS.values()]


def stand_in(
    kind: Kind, op_class: str, fits: Mapping[str, Mapping[str, ClassFit]]
) -> tuple[Model, str] | None:
    """Makes the model of a class not measured on a kind: medians of its generation, else of all kinds.

    What power allows is not taken from other kinds but computed from the datasheet.

    Returns:
        The model and what it comes from; None where no other kind has the class.
    """
    others = {
        name: of_kind[op_class].model
        for name, of_kind in fits.items()
        if name != kind.name and op_class in of_kind
    }
    near = [model for name, model in others.items() if _are_near(kind, KINDS[name], op_class)]
    donors, origin = (near, kind.generation) if near else (list(others.values()), "all kinds")
    if not donors:
        return None
    names = [field.name for field in fields(model_type(op_class))]
    medians = {name: float(np.median([getattr(model, name) for model in donors])) for name in names}
    if "sustained" in medians:
        medians["sustained"] = power_share(kind, "fp16" if op_class == TENSOR else "fp32")
    return model_type(op_class)(**{name: _rounded(value) for name, value in medians.items()}), origin


def _are_near(kind: Kind, other: Kind, op_class: str) -> bool:
    """Returns whether kinds are of a generation; where kernels are tuned for a chip, of its chips too."""
    tuned = issubclass(model_type(op_class), MatmulModel)
    same_chips = (kind.name in SMALL_CHIPS) == (other.name in SMALL_CHIPS)
    return kind.generation == other.generation and (same_chips or not tuned)


def _calibration(kind: Kind, fits: Mapping[str, Mapping[str, ClassFit]]) -> Calibration:
    classes = dict(fits.get(kind.name, {}))
    measured = sorted(classes)
    origins: dict[str, list[str]] = {}
    for op_class in sorted({name for of_kind in fits.values() for name in of_kind} - classes.keys()):
        found = stand_in(kind, op_class, fits)
        if found:
            classes[op_class] = ClassFit(found[0])
            origins.setdefault(found[1], []).append(op_class)
    parts = [f"measured ({', '.join(measured)})"] if measured else []
    parts += [f"medians of {origin} ({', '.join(names)})" for origin, names in sorted(origins.items())]
    return Calibration(
        kind.name,
        "; ".join(parts),
        SOURCE,
        LICENCE,
        kind.multiprocessors,
        kind.l2_bytes,
        dict(sorted(classes.items())),
        machine_of(kind).batched_tiles,
    )


def _thinned(table: OpTable) -> OpTable:
    """Returns at most `MAX_ROWS` rows, taken evenly."""
    if len(table.seconds) <= MAX_ROWS:
        return table
    return table.select(np.linspace(0, len(table.seconds) - 1, MAX_ROWS).astype(np.int64))


def _fit(table: OpTable, kind: Kind) -> Model:
    table = _thinned(table)

    def errors(model: Model) -> FloatArray:
        return np.log(predict(model, table, kind) / table.seconds)

    limits = _limits(table, kind)
    model = _least_squares(limits, errors, table.op_class)
    if not BURST.keys() <= limits.keys() or (table.seconds >= LONG_S).sum() < LONG_ROWS:
        return model
    steady = _least_squares(_without_burst(limits, model), errors, table.op_class)
    burst_error, steady_error = (float(np.median(np.abs(errors(fitted)))) for fitted in (model, steady))
    return model if burst_error < (1 - BURST_GAIN) * steady_error else steady


def _limits(table: OpTable, kind: Kind) -> Mapping[str, Parameter]:
    """Returns the parameters to fit: those of the type of model, and of a board that power limits."""
    if issubclass(model_type(table.op_class), MatmulModel):
        share = power_share(kind, table.dtype)
        return {
            **(CONVOLUTION if table.op_class == "conv" else MATMUL),
            "sustained": replace(MATMUL["sustained"], start=share),
            **(BURST if share < 1 else {}),
        }
    if kind.generation == OWN:
        return CACHES
    return {name: TRAFFIC[name] for name in STREAMING} if table.op_class == "elementwise" else TRAFFIC


def _without_burst(limits: Mapping[str, Parameter], model: Model) -> dict[str, Parameter]:
    """Returns the parameters to fit without a burst, those of `BELOW_POWER` held where a model has them."""

    def held(name: str, limit: Parameter) -> Parameter:
        start = float(np.clip(getattr(model, name), 1.001 * limit.low, limit.high / 1.001))
        return replace(limit, start=start, stiffness=10.0)

    return {
        name: held(name, limit) if name in BELOW_POWER else limit
        for name, limit in limits.items()
        if name not in BURST
    }


def _least_squares(
    limits: Mapping[str, Parameter], errors: Callable[[Model], FloatArray], op_class: str
) -> Model:
    from scipy.optimize import least_squares

    build = model_type(op_class)
    start, low, high = (
        np.log([getattr(p, key) for p in limits.values()]) for key in ("start", "low", "high")
    )
    stiffness = np.array([p.stiffness for p in limits.values()])

    def model(logs: FloatArray) -> Model:
        return build(**dict(zip(limits, np.exp(logs).tolist(), strict=True)))

    def residuals(logs: FloatArray) -> FloatArray:
        misfit = errors(model(logs))
        scale = math.sqrt(300 / len(misfit))
        return np.concatenate([misfit * scale, stiffness * (logs - start)])

    found = least_squares(
        residuals, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER, diff_step=1e-2, max_nfev=100
    )
    values = dict(zip(limits, np.exp(found.x).tolist(), strict=True))
    return build(**{name: _rounded(value) for name, value in values.items()})


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
