"""Calibrations: what the package brings, their files, and their products against rows that no fit saw."""

from __future__ import annotations

import csv
import gzip
import math
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from envs.cluster.kinds import KINDS
from envs.costs.calibration import (
    Calibration,
    calibration_from_json,
    calibration_of,
    calibration_to_json,
    read_calibration,
    write_calibration,
)
from envs.costs.efficiency import TILES, MatmulWork
from envs.costs.op_classes import CLASSES, MATMULS, TENSOR

CALIBRATED = [kind for kind in KINDS if calibration_of(kind)]
RESULTS = Path(__file__).parents[3] / "agent" / "lab" / "results"
FITTED = ("h200", "b200", "l40s", "rtx-pro-6000")
"""Kinds whose products are fitted to rows of the same measurements."""


def shipped(kind: str) -> Calibration:
    calibration = calibration_of(kind)
    assert calibration
    return calibration


def test_kinds_known_by_datasheets_have_no_calibration() -> None:
    datasheets = "h100-nvl mi300x a10 a10g a40 a6000 rtx3060 rtx3080 l40 rtx6000-ada rtx4090 rtx5090"
    assert [kind for kind in KINDS if kind not in CALIBRATED] == datasheets.split()


@pytest.mark.parametrize("kind", CALIBRATED)
def test_a_calibration_has_a_model_of_every_class_and_says_what_was_measured(kind: str) -> None:
    calibration = shipped(kind)
    assert (calibration.kind, calibration.multiprocessors) == (kind, KINDS[kind].multiprocessors)
    for op_class in CLASSES:
        if op_class in MATMULS:
            assert calibration.matmul(op_class, tensor=False).efficiency > 0
            assert calibration.matmul(op_class, tensor=True) == calibration.classes[TENSOR].model
        else:
            assert calibration.traffic(op_class).efficiency > 0
    for op_class, fit in calibration.classes.items():
        assert (fit.rows > 0) == (not math.isnan(fit.median)), op_class
        if fit.rows:
            assert op_class in calibration.origin.partition("measured (")[2].partition(")")[0].split(", ")
        else:
            assert op_class in calibration.origin.rpartition("medians of")[2] + calibration.origin


@pytest.mark.parametrize("kind", ["v100", "k80", "xeon", "", "..", "../costs", "__init__"])
def test_other_kinds_have_none(kind: str) -> None:
    assert calibration_of(kind) is None


def test_written_calibrations_are_read_back_and_files_of_before_have_defaults(tmp_path: Path) -> None:
    pascal = shipped("p100-pcie-16gb")
    write_calibration(tmp_path / "p100.json", pascal)
    assert read_calibration(tmp_path / "p100.json") == pascal
    assert pascal.machine(1.0).batched_tiles == ((64, 128),)
    value = calibration_to_json(pascal)
    del value["batched_tiles"]
    parameters = value["classes"]["gemm"]["parameters"]
    del parameters["burst"], parameters["burst_s"]
    before = calibration_from_json(value, "here")
    assert before.batched_tiles == TILES
    assert before.matmul("gemm", tensor=False).burst == 1.0


def errors_of(kind_name: str, rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """The errors of a calibration and of the roofline, (n,) each; products are timed one by one in bf16."""
    kind, calibration = KINDS[kind_name], shipped(kind_name)
    m, n, k = (np.array([float(row[key]) for row in rows]) for key in "mnk")
    n_bytes, peak = 2 * (m * k + k * n + m * n), np.full(len(m), kind.peaks["bf16"])
    shape = np.stack([np.ones_like(m), m, n, k], axis=1)
    work = MatmulWork(shape, n_bytes, np.full(len(m), 2.0), peak, np.zeros((len(m), 2)))
    model, machine = calibration.matmul("gemm", tensor=True), calibration.machine(kind.bytes_per_s)
    measured_s = np.array([float(row["measured_s"]) for row in rows])
    roofline_s = np.maximum(2 * m * n * k / peak, n_bytes / kind.bytes_per_s)
    return model.timed_alone(work, machine) / measured_s - 1, roofline_s / measured_s - 1


def test_products_are_as_far_from_measured_ones_as_their_page_says() -> None:
    rows_of: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    with gzip.open(RESULTS / "costs_of_ops_products.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows_of[row["kind"]].append(row)
    lines = []
    for kind, rows in rows_of.items():
        ours, roofline = (np.quantile(np.abs(some), [0.5, 0.9]) for some in errors_of(kind, rows))
        cells = " | ".join(f"{cell:.1%}" for cell in ours), " | ".join(f"{cell:.1%}" for cell in roofline)
        lines.append(f"| {kind}, aiconfigurator | {TENSOR} | {len(rows)} | {cells[0]} | - | - | {cells[1]} |")
        if kind in FITTED:
            fit = shipped(kind).classes[TENSOR]
            np.testing.assert_allclose(ours, [fit.median, fit.p90], rtol=0.3)
    print("\n".join(lines))
    assert len(lines) == len(FITTED) + 2
    page = (RESULTS / "costs_of_ops.md").read_text(encoding="utf-8")
    assert not set(lines) - set(page.splitlines())


def test_steps_sustain_less_than_products_timed_for_a_moment() -> None:
    """The calibrations of A100 and H100, which measured steps confirm, are as much slower than these rows."""
    for kind in FITTED:
        model = shipped(kind).matmul("gemm", tensor=True)
        assert (model.burst, model.burst_s) == (1.28, 1000.0)
