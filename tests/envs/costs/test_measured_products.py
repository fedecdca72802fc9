"""Products of calibrations against rows of others that no fit saw."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from pathlib import Path

import numpy as np

from envs.cluster.kinds import KINDS
from envs.costs.calibration import calibration_of
from envs.costs.efficiency import MatmulWork
from envs.costs.op_classes import TENSOR

RESULTS = Path(__file__).parents[3] / "agent" / "lab" / "results"
FITTED = ("h200", "b200", "l40s", "rtx-pro-6000")
"""Kinds whose products are fitted to rows of the same measurements."""


def errors_of(kind_name: str, rows: list[dict[str, str]]) -> tuple[np.ndarray, np.ndarray]:
    """The errors of a calibration and of the roofline, (n,) each; products are timed one by one in bf16."""
    kind, calibration = KINDS[kind_name], calibration_of(kind_name)
    assert calibration
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
            calibration = calibration_of(kind)
            assert calibration
            fit = calibration.classes[TENSOR]
            np.testing.assert_allclose(ours, [fit.median, fit.p90], rtol=0.3)
    print("\n".join(lines))
    assert len(lines) == len(FITTED) + 2
    page = (RESULTS / "costs_of_ops.md").read_text(encoding="utf-8")
    assert not set(lines) - set(page.splitlines())


def test_steps_sustain_less_than_products_timed_for_a_moment() -> None:
    """The calibrations of A100 and H100, which measured steps confirm, are as much slower than these rows."""
    for kind in FITTED:
        calibration = calibration_of(kind)
        assert calibration
        model = calibration.matmul("gemm", tensor=True)
        assert (model.burst, model.burst_s) == (1.28, 1000.0)
