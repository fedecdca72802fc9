"""Fits of efficiency models to measured ops: robust least squares of log(predicted / measured)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from envs.calibration.calibration import NEEDED, Calibration, ClassFit, model_type
from envs.calibration.efficiency import BATCHED_TILES, TILES, Machine, MatmulModel, MatmulWork, Model
from envs.calibration.measured_ops import ITEM_BYTES, MeasurementError, OpTable
from envs.calibration.op_classes import TENSOR
from envs.cluster.kinds import KINDS, Kind
from graphs.op_graph import FloatArray

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


@dataclass(frozen=True)
class Parameter:
    """How a parameter is fitted: where it begins, its bounds, and how much it is held where it began."""

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
BURST = {"burst": Parameter(1.4, 1.0, 3.0, 0.05), "burst_s": Parameter(0.02, 5e-4, 0.5, 0.05)}
"""What is fitted too of boards whose power limits their matrix products."""
TRAFFIC = {
    "launch_s": Parameter(1e-5, 1e-6, 1.2e-4),
    "efficiency": Parameter(0.8, 0.2, 1.2),
    "reread": Parameter(0.3, 1e-3, 2.0, 0.02),
    "in_flight": Parameter(15.0, 1.0, 100.0, 0.05),
    "steepness": Parameter(4.0, 0.5, 20.0, 0.02),
}
STREAMING = ("launch_s", "efficiency")
"""What is fitted of a traffic model where rows have no meaning."""
CACHES = {
    "launch_s": Parameter(5e-6, 1e-7, 1e-3, 0.02),
    "efficiency": Parameter(0.9, 0.02, 4.0, 0.02),
    "cached": Parameter(8.0, 1.0, 100.0, 0.05),
    "room_bytes": Parameter(3e7, 1e5, 1e10, 0.02),
    "fade": Parameter(2.0, 0.5, 8.0, 0.05),
}
"""What is fitted of a device of one's own, whose caches decide."""
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
        groups: tables of `envs.calibration.measured_ops.tables`.

    Raises:
        MeasurementError: no op was measured of a class that others stand on.
    """
    for op_class in NEEDED:
        if not any(table.op_class == op_class for table in groups):
            raise MeasurementError(f"no file holds measured ops of class '{op_class}'; give such a file too")
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


def thinned(table: OpTable) -> OpTable:
    """Returns at most `MAX_ROWS` rows, taken evenly."""
    if len(table.seconds) <= MAX_ROWS:
        return table
    return table.select(np.linspace(0, len(table.seconds) - 1, MAX_ROWS).astype(np.int64))


def _fit(table: OpTable, kind: Kind) -> Model:
    table = thinned(table)
    if issubclass(model_type(table.op_class), MatmulModel):
        share = power_share(kind, table.dtype)
        limits = {
            **(CONVOLUTION if table.op_class == "conv" else MATMUL),
            "sustained": replace(MATMUL["sustained"], start=share),
            **(BURST if share < 1 else {}),
        }
    elif kind.generation == OWN:
        limits = CACHES
    else:
        limits = {name: TRAFFIC[name] for name in STREAMING} if table.op_class == "elementwise" else TRAFFIC
    return _least_squares(
        limits, lambda model: np.log(predict(model, table, kind) / table.seconds), table.op_class
    )


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
