"""Predicted against measured ops."""

from __future__ import annotations

import csv
import math
from dataclasses import replace
from pathlib import Path

import pytest

from agent.calibration.op_tables import MeasuredOpsError
from agent.experiments.fidelity import __main__ as fidelity
from agent.experiments.fidelity.ops import (
    ALL_DEVICES,
    OpTime,
    compare_ops,
    device_orders,
    errors_table,
    op_errors,
    orders_table,
)
from agent.experiments.rows import markdown_table

ROW = OpTime("t4", "gemm", "1 2 3 4", True, 1.1, 1.5, 0.5, 1.0)


def measured_ops(folder: Path, n: int = 40) -> Path:
    """A file of sums on two GPUs, at 80 % of the bandwidth of each."""
    lines = ["OPName,Latency,Device,B,H"]
    for name, bytes_per_s in (("Tesla T4", 320e9), ("Tesla P4", 192e9)):
        lines += [f"add,{12 * b * 2**20 / (0.8 * bytes_per_s) * 1e3},{name},{b},{2**20}" for b in range(4, n)]
    path = folder / "elem.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_rows_are_compared_and_written(tmp_path: Path) -> None:
    rows = compare_ops([measured_ops(tmp_path)])
    fidelity.compare_ops([measured_ops(tmp_path)], tmp_path)
    with open(tmp_path / "ops.csv", newline="") as file:
        written = list(csv.DictReader(file))
    assert {"device", "class", "name", "predicted_s", "measured_s", "roofline_s"} <= set(written[0])
    assert len(written) == len(rows) == 72
    assert [float(row["predicted_s"]) for row in written] == [row.predicted_s for row in rows]
    for errors in op_errors(rows):
        assert errors.median < 0.1
        assert errors.left_out_median < 0.2
        assert errors.roofline_median > errors.median
    (order,) = device_orders(rows)
    assert order.predicted == 1.0


def test_bad_files_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(MeasuredOpsError, match=r"none\.csv: cannot be read"):
        fidelity.compare_ops([tmp_path / "none.csv"], tmp_path)
    assert not (tmp_path / "ops.csv").exists()


def test_errors_are_those_of_rows_held_out() -> None:
    rows = [ROW, replace(ROW, predicted_s=1.3), replace(ROW, predicted_s=9.0, held_out=False)]
    pooled, errors = op_errors(rows)
    assert pooled == replace(errors, device=ALL_DEVICES)
    assert (errors.n, errors.device, errors.op_class) == (2, "t4", "gemm")
    assert errors.median == pytest.approx(0.2)
    assert errors.p90 == pytest.approx(0.28)
    assert (errors.left_out_median, errors.roofline_median) == (0.5, 0.5)
    assert "| t4 | gemm | 2 | 20.0% | 28.0% | 50.0% |" in markdown_table(errors_table([errors]))


def test_errors_of_all_devices_together_come_first() -> None:
    slow = replace(ROW, device="p4", predicted_s=1.3)
    pooled, *by_device = op_errors([ROW, slow])
    assert (pooled.device, pooled.n) == (ALL_DEVICES, 2)
    assert pooled.median == pytest.approx(0.2)
    assert [errors.device for errors in by_device] == ["p4", "t4"]


def test_errors_and_ranks_are_written_for_the_page(tmp_path: Path) -> None:
    fidelity.compare_ops([measured_ops(tmp_path)], tmp_path)
    with open(tmp_path / "op_errors.csv", newline="") as file:
        assert [row["device"] for row in csv.DictReader(file)] == [ALL_DEVICES, "p4", "t4"]
    with open(tmp_path / "op_ranks.csv", newline="") as file:
        assert [row["pairs"] for row in csv.DictReader(file)] == ["18"]


def test_an_unknown_class_elsewhere_is_no_number() -> None:
    _, errors = op_errors([replace(ROW, left_out_s=math.nan)])
    assert math.isnan(errors.left_out_median)


def test_devices_are_ranked_by_shape_and_near_ties_left_out() -> None:
    slow = replace(ROW, device="p4", measured_s=2.0, predicted_s=1.9, roofline_s=0.4)
    tie = replace(ROW, device="l4", measured_s=1.01)
    (order,) = device_orders([ROW, slow, tie])
    assert (order.op_class, order.pairs) == ("gemm", 2)
    assert (order.predicted, order.roofline) == (1.0, 0.0)
    assert "| gemm | 2 | 100.0% | 0.0% |" in markdown_table(orders_table([order]))
    assert device_orders([ROW, replace(slow, name="other")]) == []
