"""Calibrations of device kinds: fitted models by op class, and their files, `placewalk.calibration/1`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from importlib import resources
from typing import Any

from envs.cluster.files import own_calibration_file
from envs.costs.convolutions import ConvolutionModel
from envs.costs.efficiency import TILES, BatchedModel, Machine, MatmulModel, Model, Tiles, TrafficModel
from envs.costs.op_classes import CLASSES, MATMULS, TENSOR
from graphs.limits import MAX_BYTES
from graphs.system import json_fields
from graphs.system.errors import InputError
from graphs.system.json_files import read_json, write_json_atomic

FORMAT = "placewalk.calibration/1"
FIELDS = frozenset({"format", "kind", "from", "source", "licence", "multiprocessors", "l2_bytes", "classes"})
STAND_INS = {"bmm": "gemm", "conv": "gemm", "attention": "bmm", TENSOR: "gemm"} | dict.fromkeys(
    ("softmax", "norm", "reduction", "gather", "optimizer", "move", "other"), "elementwise"
)
"""The class whose model holds for a class that nobody measured."""
LATER = frozenset({"burst", "burst_s", "cached", "room_bytes", "fade"})
"""Parameters that files of before do not hold."""
MAX_TILE = 4096
NEEDED = ("gemm", "elementwise")
"""Classes that stand in for others, so that every calibration has them."""
KEYS = (*CLASSES, TENSOR)


class CalibrationError(InputError):
    """A calibration that cannot be used; the message says where and what would be right."""


@dataclass(frozen=True)
class ClassFit:
    """The model of one op class.

    Attributes:
        rows: number of measured rows that made the fit; 0 where the model comes from other kinds.
        held_out_rows: number of rows that judged it.
        median, p90: quantiles of |predicted / measured - 1| on the rows held out, NaN without any.
    """

    model: Model
    rows: int = 0
    held_out_rows: int = 0
    median: float = float("nan")
    p90: float = float("nan")


@dataclass(frozen=True)
class Calibration:
    """The measured efficiency of a device kind.

    Attributes:
        origin: source of its models, e.g. `measured` or `medians of ampere`.
        multiprocessors: blocks of a matrix product that the device computes at a time.
        l2_bytes: size of its last cache.
        classes: models by op class or `TENSOR`; `STAND_INS` says what holds for the others.
        batched_tiles: rows and columns of the tiles of its kernels for batched products.

    Raises:
        CalibrationError: on construction, if a class is unknown or has the model of another.
    """

    kind: str
    origin: str
    source: str
    licence: str
    multiprocessors: int
    l2_bytes: float
    classes: Mapping[str, ClassFit]
    batched_tiles: Tiles = TILES

    def __post_init__(self) -> None:
        where = f"calibration of '{self.kind}'"
        for op_class, fit in self.classes.items():
            if op_class not in KEYS:
                raise CalibrationError(f"{where}: unknown op class {op_class!r}; use {', '.join(KEYS)}")
            if type(fit.model) is not model_type(op_class):
                raise CalibrationError(f"{where}: {op_class} has the model of another class")
        for op_class in NEEDED:
            if op_class not in self.classes:
                raise CalibrationError(f"{where}: op class '{op_class}' is missing")

    @property
    def is_in_part(self) -> bool:
        """True if products or pointwise ops take medians of all kinds, not of its generation."""
        guessed = re.search(r"medians of all kinds \(([^)]*)\)", self.origin)
        return guessed is not None and not set(NEEDED).isdisjoint(guessed[1].split(", "))

    def matmul(self, op_class: str, *, tensor: bool) -> MatmulModel:
        """Returns the model of a class in `MATMULS`, or of the class that stands in for it."""
        model = self._model(TENSOR if tensor and TENSOR in self.classes else op_class)
        assert isinstance(model, MatmulModel)
        return model

    def traffic(self, op_class: str) -> TrafficModel:
        """Returns the model of any other class, or of the class that stands in for it."""
        model = self._model(op_class)
        assert isinstance(model, TrafficModel)
        return model

    def machine(self, bytes_per_s: float) -> Machine:
        """Returns what the models need of a device with this memory bandwidth, bytes a second."""
        return Machine(bytes_per_s, self.multiprocessors, self.l2_bytes, self.batched_tiles)

    def _model(self, op_class: str) -> Model:
        while op_class not in self.classes:
            op_class = STAND_INS[op_class]
        return self.classes[op_class].model


def backing(kinds: Iterable[str]) -> str:
    """Says what op times on device kinds come from: `calibrated`, `calibrated in part` or `uncalibrated`."""
    fits = [calibration_of(kind) for kind in kinds]
    if None in fits:
        return "uncalibrated"
    return "calibrated" + " in part" * any(fit.is_in_part for fit in fits if fit)


def model_type(op_class: str) -> type[Model]:
    """Returns the type of model that an op class has."""
    if op_class in ("bmm", "conv"):
        return BatchedModel if op_class == "bmm" else ConvolutionModel
    return MatmulModel if op_class in (*MATMULS, TENSOR) else TrafficModel


def calibration_of(kind: str) -> Calibration | None:
    """Returns the calibration of a device kind: the package's, else what was measured here, else None.

    Raises:
        InputError: a file of the user's folder is no calibration.
    """
    if not kind.replace("-", "").isalnum():
        return None
    shipped = _shipped(kind)
    file = own_calibration_file(kind)
    return read_calibration(file) if shipped is None and file.is_file() else shipped


@cache
def _shipped(kind: str) -> Calibration | None:
    file = resources.files("envs.costs").joinpath(f"{kind}.json")
    return read_calibration(str(file)) if file.is_file() else None


def read_calibration(path: str | os.PathLike[str]) -> Calibration:
    """Reads a calibration file.

    Raises:
        FileFormatError: the path is no readable JSON file, or the file breaks the format.
        CalibrationError: a parameter is out of range or a class unknown.
    """
    return calibration_from_json(read_json(path), os.fspath(path))


def write_calibration(path: str | os.PathLike[str], calibration: Calibration) -> None:
    """Writes a calibration file atomically."""
    write_json_atomic(path, calibration_to_json(calibration))


def calibration_from_json(value: object, where: str) -> Calibration:
    """Builds a calibration from its parsed JSON; `where` begins the message of any error.

    Raises:
        FileFormatError: the value breaks the format, e.g. that of another version.
        CalibrationError: a parameter is out of range or a class unknown.
    """
    record = json_fields.fields(value, where, FIELDS, frozenset({"batched_tiles"}), format=FORMAT)
    classes = json_fields.fields(record["classes"], f"{where}: classes", frozenset(), frozenset(KEYS))
    multiprocessors = json_fields.integer(record["multiprocessors"], f"{where}: multiprocessors")
    if multiprocessors < 1:
        raise CalibrationError(f"{where}: multiprocessors is {multiprocessors}; expected at least 1")
    l2_bytes = json_fields.number(record["l2_bytes"], f"{where}: l2_bytes")
    if not 1 <= l2_bytes <= MAX_BYTES:
        raise CalibrationError(f"{where}: l2_bytes is {l2_bytes:g}; expected 1 to {MAX_BYTES:g}")
    return Calibration(
        kind=json_fields.name(record["kind"], f"{where}: kind"),
        origin=json_fields.text(record["from"], f"{where}: from"),
        source=json_fields.text(record["source"], f"{where}: source"),
        licence=json_fields.text(record["licence"], f"{where}: licence"),
        multiprocessors=multiprocessors,
        l2_bytes=l2_bytes,
        classes={name: _class_fit(fit, name, f"{where}: {name}") for name, fit in classes.items()},
        batched_tiles=_tiles(record["batched_tiles"], where) if "batched_tiles" in record else TILES,
    )


def _tiles(value: object, where: str) -> Tiles:
    tiles_where = f"{where}: batched_tiles"
    sizes = [
        [json_fields.integer(side, tiles_where) for side in json_fields.array(tile, tiles_where)]
        for tile in json_fields.array(value, tiles_where)
    ]
    if not sizes or any(len(tile) != 2 or not all(1 <= side <= MAX_TILE for side in tile) for tile in sizes):
        raise CalibrationError(
            f"{tiles_where}: is {sizes}; expected at least one [rows, columns], each 1 to {MAX_TILE}"
        )
    return tuple((rows, columns) for rows, columns in sizes)


def calibration_to_json(calibration: Calibration) -> dict[str, Any]:
    """Converts a calibration to JSON values."""
    tiles = [list(tile) for tile in calibration.batched_tiles]
    classes = dict[str, Any]()
    for name, fit in calibration.classes.items():
        classes[name] = {"rows": fit.rows, "parameters": asdict(fit.model)}
        if fit.held_out_rows:
            classes[name]["held_out"] = {"rows": fit.held_out_rows, "median": fit.median, "p90": fit.p90}
    return {
        "format": FORMAT,
        "kind": calibration.kind,
        "from": calibration.origin,
        "source": calibration.source,
        "licence": calibration.licence,
        "multiprocessors": calibration.multiprocessors,
        "l2_bytes": json_fields.json_number(float(calibration.l2_bytes)),
        **({"batched_tiles": tiles} if calibration.batched_tiles != TILES else {}),
        "classes": classes,
    }


def _class_fit(value: object, op_class: str, where: str) -> ClassFit:
    record = json_fields.fields(value, where, frozenset({"rows", "parameters"}), frozenset({"held_out"}))
    kind = model_type(op_class)
    names = [field.name for field in fields(kind)]
    optional = LATER.intersection(names)
    parameters = json_fields.fields(
        record["parameters"], f"{where}: parameters", frozenset(names) - optional, optional
    )
    numbers = {name: json_fields.number(value, f"{where}: {name}") for name, value in parameters.items()}
    for name, number in numbers.items():
        low, high = RANGES[name]
        if not low <= number <= high:
            raise CalibrationError(f"{where}: {name} is {number:g}; expected {low:g} to {high:g}")
    rows = json_fields.integer(record["rows"], f"{where}: rows")
    if "held_out" not in record:
        return ClassFit(kind(**numbers), rows)
    held_out = json_fields.fields(
        record["held_out"], f"{where}: held_out", frozenset({"rows", "median", "p90"})
    )
    errors = {
        key: json_fields.number(held_out[key], f"{where}: held_out: {key}") for key in ("median", "p90")
    }
    held_out_rows = json_fields.integer(held_out["rows"], f"{where}: held_out: rows")
    return ClassFit(kind(**numbers), rows, held_out_rows, **errors)


RANGES = {
    **dict.fromkeys(("efficiency", "sustained", "traffic", "fused", "transforms"), (1e-4, 4.0)),
    **dict.fromkeys(("prologue", "tile_cost", "fused_prologue"), (0.0, 1e4)),
    "launch_s": (0.0, 1.0),
    "waves": (0.0, 1.0),
    "overlap": (1.0, 100.0),
    "cache": (1e-3, 1e4),
    "reread": (0.0, 10.0),
    "deep": (0.0, 100.0),
    "burst": (1.0, 10.0),
    "burst_s": (1e-6, 1e3),
    "in_flight": (1e-3, 1e6),
    "steepness": (0.1, 100.0),
    "cached": (1.0, 1e4),
    "fade": (0.1, 100.0),
    "room_bytes": (1.0, 1e15),
}
"""Bounds of the parameters of models."""
