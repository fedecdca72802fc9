"""Calibration files, and those that the package brings."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from envs.cluster.kinds import KINDS
from envs.costs.calibration import (
    CalibrationError,
    calibration_from_json,
    calibration_of,
    calibration_to_json,
    read_calibration,
    write_calibration,
)
from envs.costs.efficiency import TILES
from envs.costs.op_classes import CLASSES, MATMULS, TENSOR
from graphs.system.errors import InputError
from graphs.system.json_files import FileFormatError

T4 = calibration_of("t4")
OLD_KINDS = ("v100", "a100", "h100", "k80", "xeon")
CALIBRATED = [kind for kind in KINDS if calibration_of(kind)]


def record(**changes: Any) -> dict[str, Any]:
    assert T4
    return calibration_to_json(T4) | changes


def with_parameter(name: str, value: object) -> dict[str, Any]:
    changed = json.loads(json.dumps(record()))
    changed["classes"]["gemm"]["parameters"][name] = value
    return changed


def test_kinds_known_by_datasheets_have_no_calibration() -> None:
    datasheets = "h100-nvl mi300x a10 a10g a40 a6000 rtx3060 rtx3080 l40 rtx6000-ada rtx4090 rtx5090"
    assert [kind for kind in KINDS if kind not in CALIBRATED] == datasheets.split()


@pytest.mark.parametrize("kind", CALIBRATED)
def test_a_calibration_has_a_model_of_every_class(kind: str) -> None:
    calibration = calibration_of(kind)
    assert calibration
    assert calibration.kind == kind
    assert calibration.multiprocessors == KINDS[kind].multiprocessors
    for op_class in CLASSES:
        if op_class in MATMULS:
            assert calibration.matmul(op_class, tensor=False).efficiency > 0
            assert calibration.matmul(op_class, tensor=True) == calibration.classes[TENSOR].model
        else:
            assert calibration.traffic(op_class).efficiency > 0


@pytest.mark.parametrize("kind", CALIBRATED)
def test_a_calibration_says_what_was_measured_and_how_far_off_it_is(kind: str) -> None:
    calibration = calibration_of(kind)
    assert calibration
    for op_class, fit in calibration.classes.items():
        assert (fit.rows > 0) == (not math.isnan(fit.median)), op_class
        if fit.rows:
            assert op_class in calibration.origin.partition("measured (")[2].partition(")")[0].split(", ")
        else:
            assert op_class in calibration.origin.rpartition("medians of")[2] + calibration.origin


@pytest.mark.parametrize("kind", [*OLD_KINDS, "", "..", "../costs", "__init__"])
def test_other_kinds_have_none(kind: str) -> None:
    assert calibration_of(kind) is None


def test_written_calibrations_are_read_back(tmp_path: Path) -> None:
    assert T4
    write_calibration(tmp_path / "t4.json", T4)
    assert read_calibration(tmp_path / "t4.json") == T4


def test_tiles_of_batched_products_are_read_back_and_files_of_before_have_all() -> None:
    pascal = calibration_of("p100-pcie-16gb")
    assert pascal
    value = calibration_to_json(pascal)
    assert calibration_from_json(value, "here").machine(1.0).batched_tiles == ((64, 128),)
    del value["batched_tiles"]
    parameters = value["classes"]["gemm"]["parameters"]
    del parameters["burst"], parameters["burst_s"]
    before = calibration_from_json(value, "here")
    assert before.batched_tiles == TILES
    assert before.matmul("gemm", tensor=False).burst == 1.0


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (record(batched_tiles=[]), "here: batched_tiles: is \\[\\]; expected at least one"),
        (record(batched_tiles=[[64]]), "here: batched_tiles: is \\[\\[64\\]\\]; expected at least one"),
        (record(batched_tiles=[[64, 0]]), "expected at least one \\[rows, columns\\], each 1 to 4096"),
        (record(format="placewalk.calibration/2"), "here: format is 'placewalk.calibration/2'; expected"),
        ({"format": "placewalk.calibration/1"}, "here: keys 'classes', 'from', 'kind'"),
        (record(multiprocessors=0), "here: multiprocessors is 0; expected at least 1"),
        (record(l2_bytes=0), "here: l2_bytes is 0; expected 1 to"),
        (record(classes={}), "calibration of 't4': op class 'gemm' is missing"),
        (record(classes={"sort": {}}), "here: classes: unknown key 'sort'; known keys are attention"),
        (with_parameter("efficiency", 0), "here: gemm: efficiency is 0; expected 0.0001 to 4"),
        (with_parameter("efficiency", "high"), "here: gemm: efficiency: is a string; expected a number"),
        (with_parameter("speed", 1), "here: gemm: parameters: unknown key 'speed'"),
    ],
    ids=[
        "no tile",
        "half a tile",
        "empty tile",
        "version",
        "keys",
        "multiprocessors",
        "l2",
        "no class",
        "class",
        "range",
        "type",
        "parameter",
    ],
)
def test_bad_calibrations_are_one_line(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        calibration_from_json(value, "here")


def test_errors_are_of_the_format_or_of_the_calibration() -> None:
    with pytest.raises(FileFormatError):
        calibration_from_json([], "here")
    with pytest.raises(CalibrationError):
        calibration_from_json(with_parameter("waves", 2), "here")
