"""Calibrating this machine."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from envs.calibration.calibration import calibration_of
from envs.calibration.measure import calibrate_device, measured_rows
from envs.calibration.measured_ops import MeasurementError
from envs.calibration.timed_ops import TimedOp, ops_to_time, time_op
from envs.cluster.cluster import ClusterError
from envs.cluster.presets import get_cluster

OPS = ops_to_time(256)
PEAK, BANDWIDTH = 1e11, 1e10


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACEWALK_HOME", str(tmp_path))
    return tmp_path


def ideal(op: TimedOp) -> list[float]:
    row = op.row("k", 1.0)
    seconds = 1e-6 + max(row.flops / PEAK, row.bytes_moved / BANDWIDTH)
    return [seconds, seconds * 0.9, seconds * 1.5]


def test_medians_are_kept_and_never_measured_twice(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    calls: list[TimedOp] = []

    def timer(op: TimedOp) -> list[float]:
        calls.append(op)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return ideal(op)

    with pytest.raises(KeyboardInterrupt):
        measured_rows(path, "k", OPS, timer)
    rows = measured_rows(path, "k", OPS, timer)
    assert len(calls) == len(OPS) + 1
    assert [row.seconds for row in rows] == [ideal(op)[0] for op in OPS]
    assert measured_rows(path, "k", OPS, lambda op: [0.0]) == rows


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_times_are_one_line_and_not_kept(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "times.sqlite"
    with pytest.raises(MeasurementError, match=r"'gemm \(1, 16, 16, 16\)' took .* s; expected more than 0"):
        measured_rows(path, "k", OPS, lambda op: [seconds] * 3)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM times").fetchone() == (0,)
    database.close()


def test_another_file_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    path.write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(MeasurementError, match=r"times\.sqlite: is no database of measured times"):
        measured_rows(path, "k", OPS, ideal)


def test_a_measured_device_is_calibrated(tmp_path: Path) -> None:
    rows = measured_rows(tmp_path / "times.sqlite", "my-cpu", OPS, ideal)
    assert calibration_of("my-cpu") is None
    kind = calibrate_device("my-cpu", rows, 1e10, 4, 4e6)
    assert kind.peaks["fp32"] == pytest.approx(PEAK, rel=0.05)
    assert kind.bytes_per_s == pytest.approx(BANDWIDTH, rel=0.05)
    calibration = calibration_of("my-cpu")
    assert calibration
    assert set(calibration.classes) == {"gemm", "bmm", "elementwise", "softmax", "norm"}
    assert calibration.classes["elementwise"].median < 0.1


def test_this_cluster_must_be_measured_first() -> None:
    with pytest.raises(
        ClusterError, match=r"cluster 'this': not measured yet; run python -m envs\.calibration"
    ):
        get_cluster("this")


@pytest.mark.parametrize("op_class", ["gemm", "bmm", "elementwise", "softmax", "norm"])
def test_ops_run_and_take_time(op_class: str) -> None:
    op = next(op for op in OPS if op.op_class == op_class)
    seconds = time_op(op, "cpu", 2)
    assert len(seconds) == 2
    assert (np.array(seconds) > 0).all()
