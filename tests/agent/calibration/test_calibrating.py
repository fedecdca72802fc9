"""Calibrating this machine, and the fits of efficiency models: they predict rows that were held out."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from agent.calibration import this_machine, timed_ops
from agent.calibration.__main__ import main
from agent.calibration.fit import fit_class, fit_line, predictor
from agent.calibration.quick import get_or_measure_cluster
from agent.calibration.this_machine import Effort, OwnDevice, calibrate_device, kind_of_rows, measured_rows
from agent.calibration.timed_ops import PASSES, MeasuredOp, MeasuredOpsError, TimedOp, ops_to_time
from envs.cluster.cluster import ClusterError
from envs.cluster.files import own_cluster_file
from envs.cluster.kinds import KINDS
from envs.cluster.presets import get_cluster
from envs.costs.calibration import calibration_of
from envs.costs.op_classes import TENSOR
from envs.costs.op_seconds import op_seconds
from graphs.op_graph import build_graph

OPS = ops_to_time(256)
PEAK, BANDWIDTH = 1e11, 1e10


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PLACEWALK_HOME", str(tmp_path))
    return tmp_path


def ideal(op: TimedOp) -> list[float]:
    row = op.row(1.0)
    seconds = 1e-6 + max(row.flops / PEAK, row.bytes_moved / BANDWIDTH)
    return [seconds, seconds * 0.9, seconds * 1.5]


@pytest.fixture
def ideal_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets this machine be one processor of ideal times."""
    cpu = OwnDevice("cpu", "my-cpu", 1e10, 1, 1e6)
    monkeypatch.setattr(this_machine, "own_devices", lambda threads: [cpu])
    monkeypatch.setattr(this_machine, "ops_to_time", lambda side, tensor_cores: OPS)
    monkeypatch.setattr(this_machine, "time_op", lambda op, **how: ideal(op))


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


@pytest.mark.parametrize("seconds", [0.0, float("nan"), float("inf")])
def test_impossible_times_are_one_line_and_not_kept(tmp_path: Path, seconds: float) -> None:
    path = tmp_path / "times.sqlite"
    with pytest.raises(MeasuredOpsError, match=r"'gemm \(1, 16, 16, 16\)' took .* s; expected more than 0"):
        measured_rows(path, "k", OPS, lambda op: [seconds] * 3)
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT count(*) FROM times").fetchone() == (0,)
    database.close()


def test_another_file_is_no_database(tmp_path: Path) -> None:
    path = tmp_path / "times.sqlite"
    path.write_text("no database, but long enough to be read as one" * 100)
    with pytest.raises(MeasuredOpsError, match=r"times\.sqlite: is no database of measured times"):
        measured_rows(path, "k", OPS, ideal)


def test_tensor_cores_since_ampere_take_bf16_and_tf32() -> None:
    rows = [
        MeasuredOp("gemm", "fp32", (1, 64, 64, 64), 1e9, 1e6, 1e-3),
        MeasuredOp(TENSOR, "fp16", (1, 64, 64, 64), 1e9, 1e6, 1e-4),
        MeasuredOp("elementwise", "fp32", (1, 64, 64, 1), 1e4, 1e6, 1e-5),
    ]
    older, newer = (
        kind_of_rows(OwnDevice("cuda:0", "gpu", 1e10, 4, 4e6, since_ampere), rows).peaks
        for since_ampere in (False, True)
    )
    assert older == pytest.approx({"fp32": 1e12, "fp16": 1e13})
    assert newer == pytest.approx(older | {"bf16": 1e13, "tf32": 5e12})
    sheets = [kind.peaks for kind in KINDS.values() if "bf16" in kind.peaks]
    assert [(each["bf16"], each["tf32"]) for each in sheets] == [
        (each["fp16"], pytest.approx(each["fp16"] / 2, rel=0.02)) for each in sheets
    ]


def test_this_cluster_must_be_measured_first() -> None:
    with pytest.raises(
        ClusterError, match=r"cluster 'this': not measured yet; run python -m agent\.calibration"
    ):
        get_cluster("this")


@pytest.mark.usefixtures("ideal_cpu")
def test_a_cluster_of_this_machine_is_measured_once_where_it_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], own_folder: Path
) -> None:
    n_threads = torch.get_num_threads()
    cluster = get_or_measure_cluster("this")
    said = capsys.readouterr().err
    assert said.startswith("cluster 'this' is measured for some seconds and kept as ")
    assert said.count("\n") == 1
    assert cluster.devices[0].flops_per_s == pytest.approx(PEAK, rel=0.05)
    assert cluster.devices[0].bytes_per_s == pytest.approx(BANDWIDTH, rel=0.05)
    assert torch.get_num_threads() == n_threads
    monkeypatch.setattr(this_machine, "own_devices", None)
    assert get_or_measure_cluster("this").devices == cluster.devices
    assert not capsys.readouterr().err
    assert not (own_folder / "times.sqlite").exists()


@pytest.mark.usefixtures("ideal_cpu")
def test_a_quick_measurement_leaves_a_thorough_calibration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert calibration_of("my-cpu") is None
    _, thorough = this_machine.measure_machine(Effort(1), 1)
    assert set(thorough["my-cpu"].classes) == {"gemm", "bmm", "conv", *PASSES}
    assert thorough["my-cpu"].classes["elementwise"].median < 0.1
    own_cluster_file().unlink()
    monkeypatch.setattr(this_machine, "time_op", lambda op, **how: [9 * ideal(op)[0]])
    get_or_measure_cluster("this")
    assert calibration_of("my-cpu") == thorough["my-cpu"]


def test_caches_are_fitted(tmp_path: Path) -> None:
    """A device that streams ten times as fast where its caches hold the data."""

    def cached(op: TimedOp) -> list[float]:
        row = op.row(1.0)
        speed = BANDWIDTH * (1 + 9 / (1 + (row.bytes_moved / 1e6) ** 2))
        return [1e-6 + max(row.flops / PEAK, row.bytes_moved / speed)]

    rows = measured_rows(tmp_path / "times.sqlite", "my-cpu", OPS, cached)
    fits = calibrate_device(OwnDevice("cpu", "my-cpu", 1e10, 4, 4e6), rows).classes
    for op_class in PASSES:
        assert fits[op_class].median < 0.03
        assert fits[op_class].p90 < 0.1


def test_two_devices_are_measured_with_the_link_between_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole command for real, but for its sizes and for the second device, which is the processor too."""
    cpu, other = OwnDevice("cpu", "cpu-1-threads", 1e10, 1, 1e6), OwnDevice("cpu:0", "own-gpu", 1e9, 1, 1e6)
    monkeypatch.setattr(this_machine, "own_devices", lambda threads: [cpu, other])
    monkeypatch.setattr(OwnDevice, "is_cuda", property(lambda own: own is other))
    monkeypatch.setattr(this_machine, "largest_side", lambda n_bytes: 32)
    monkeypatch.setattr(this_machine, "LARGEST_ON_CPU", 32)
    monkeypatch.setattr(this_machine, "COPY_BYTES", (1 << 10, 1 << 12, 1 << 14, 1 << 16))
    monkeypatch.setattr(timed_ops, "MIN_SECONDS", 1e-5)
    assert main(["measure", "--repeats", "1"]) == 0
    printed = capsys.readouterr().out
    assert "cpu (cpu-1-threads): " in printed
    assert printed.endswith(" us to issue an op\nstored; use it with --cluster this\n")
    cluster = get_cluster("this")
    assert 1e-6 < cluster.issue_s < 1e-2
    assert [device.kind for device in cluster.devices] == ["cpu-1-threads", "own-gpu"]
    assert 1e6 < cluster.bytes_per_s[0, 1] < 1e13
    graph = build_graph("g", "", [{"name": "a", "type": "aten.mm", "flops": 1e9, "bytes_moved": 1e6}], [])
    assert 1e-6 < op_seconds(graph, cluster)[0, 0] < 10


def synthetic(kind: str, op_class: str, n: int = 300) -> list[MeasuredOp]:
    """Rows that the shipped model of a kind predicts exactly, with an error of 2 %."""
    calibration = calibration_of(kind)
    assert calibration
    rng = np.random.default_rng(0)
    shape = np.ones((n, 4), dtype=np.int64)
    shape[:, 1:] = 2 ** rng.integers(6, 13, (n, 3)) * rng.integers(1, 4, (n, 3))
    bytes_moved = 4.0 * (shape[:, 1] * shape[:, 2])
    image = np.zeros((n, 2), dtype=np.int64)
    if op_class == "conv":
        image[:] = rng.choice([4, 6, 7, 8], (n, 1))
        shape[:, 1], shape[:, 3] = 32 * image.prod(axis=1), 9 * shape[:, 3]
    columns = zip(shape.tolist(), bytes_moved.tolist(), image.tolist(), strict=True)
    rows = [MeasuredOp(op_class, "fp32", tuple(m), 1.0, size, 1.0, tuple(at)) for m, size, at in columns]
    exact = predictor(rows, KINDS[kind])(calibration.classes[op_class].model)
    seconds = (exact * np.exp(rng.normal(0, 0.02, n))).tolist()
    return [replace(row, seconds=each) for row, each in zip(rows, seconds, strict=True)]


@pytest.mark.parametrize("op_class", ["gemm", "bmm", "conv", "elementwise"])
def test_a_fit_predicts_the_rows_held_out(op_class: str) -> None:
    kind = "v100-pcie-32gb"
    fit = fit_class(synthetic(kind, op_class), KINDS[kind])
    assert fit.rows + fit.held_out_rows == 300
    assert 100 < fit.rows < 200
    assert fit.median < 0.04
    assert fit.median <= fit.p90 < 0.15


SIZES = 2.0 ** np.arange(11, 29)


@pytest.mark.parametrize("alpha_s", [2e-6, 5e-5])
@pytest.mark.parametrize("bandwidth", [4e9, 3e11])
def test_a_line_is_found_again_from_relative_errors(alpha_s: float, bandwidth: float) -> None:
    rng = np.random.default_rng(1)
    seconds = (alpha_s + SIZES / bandwidth) * np.exp(rng.normal(0, 0.01, len(SIZES)))
    seconds[5] *= 3  # an outlier
    found = fit_line(SIZES, seconds)
    assert found == pytest.approx((alpha_s, bandwidth), rel=0.03)
