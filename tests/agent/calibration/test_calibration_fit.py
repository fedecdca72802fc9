"""Reading measured ops, and fitting models to them."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.calibration.__main__ import main
from agent.calibration.fit import calibrate, fit_class, power_share, predict, stand_in
from agent.calibration.op_tables import MeasuredOpsError, OpTable, read_ops, tables
from envs.cluster.kinds import KINDS
from envs.costs.calibration import calibration_of, read_calibration
from envs.costs.efficiency import MatmulModel

GEMM = "OPName,Latency,Device,B,M,N,K"
CONV = "OPName,Latency,Device,B,Input_Channel,Output_Channel,Kernel_Szie,Input_Size,Stride,Padding"
ROWS = "OPName,Latency,Device,B,H"


def write(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(lines) + "\n")
    return path


def synthetic(kind: str, op_class: str, n: int = 300) -> OpTable:
    """Rows that the shipped model of a kind predicts exactly, with an error of 2 %."""
    calibration = calibration_of(kind)
    assert calibration
    rng = np.random.default_rng(0)
    shape = np.ones((n, 4))
    shape[:, 1:] = 2.0 ** rng.integers(6, 13, (n, 3)) * rng.integers(1, 4, (n, 3))
    flops, bytes_moved = 2 * shape.prod(axis=1), 4 * (shape[:, 1] * shape[:, 2])
    image, held_out = np.zeros((n, 2)), np.arange(n) % 2 == 1
    if op_class == "conv":
        image[:] = rng.choice([4, 6, 7, 8], (n, 1))
        shape[:, 1], shape[:, 3] = 32 * image.prod(axis=1), 9 * shape[:, 3]
    table = OpTable(
        kind, op_class, "fp32", shape, flops, bytes_moved, np.ones(n), image, np.zeros(n), held_out
    )
    exact = predict(calibration.classes[op_class].model, table, KINDS[kind])
    return replace(table, seconds=exact * np.exp(rng.normal(0, 0.02, n)))


def test_matrix_products_are_read_with_their_inner_dimension(tmp_path: Path) -> None:
    """The files call the inner dimension N."""
    path = write(tmp_path / "a.csv", GEMM, "linear,2,Tesla T4,1,128,512,64")
    (row,) = read_ops([path])
    assert (row.kind, row.op_class, row.shape, row.seconds) == ("t4", "gemm", (1, 128, 64, 512), 2e-3)
    assert row.flops == 2 * 128 * 512 * 64
    assert row.bytes_moved == 4 * (128 * 512 + 512 * 64 + 128 * 64)


def test_convolutions_are_read_as_implicit_products(tmp_path: Path) -> None:
    path = write(tmp_path / "c.csv", CONV, "conv,1,NVIDIA L4,2,8,16,3,10,1,1")
    (row,) = read_ops([path])
    assert (row.op_class, row.shape) == ("conv", (1, 2 * 10 * 10, 16, 72))
    assert row.bytes_moved == 4 * (2 * 8 * 100 + 72 * 16 + 200 * 16)
    assert row.image == (10, 10)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (3, 2)])
def test_convolutions_that_have_no_tiles_have_no_image(tmp_path: Path, kernel: int, stride: int) -> None:
    path = write(tmp_path / "c.csv", CONV, f"conv,1,NVIDIA L4,2,8,16,{kernel},10,{stride},1")
    assert read_ops([path])[0].image == (0, 0)


def test_the_drift_of_a_session_of_convolutions_is_taken_off(tmp_path: Path) -> None:
    """The second half of the file repeats the first, with half a millisecond more."""
    sizes = [(16 + at % 40, 64 + 3 * at) for at in range(200)]
    lines = [
        f"conv,{late / 2 + batch * outputs / 5e3},Tesla T4,{batch},64,{outputs},3,8,1,1"
        for late in (0, 1)
        for batch, outputs in sizes
    ]
    rows = read_ops([write(tmp_path / "c.csv", CONV, *lines)])
    added = [late.seconds - early.seconds for early, late in zip(rows, rows[200:], strict=False)]
    assert abs(np.median(added)) < 1e-4
    assert all(
        row.seconds + row.drift_s == pytest.approx(float(line.split(",")[1]) / 1e3)
        for row, line in zip(rows, lines, strict=True)
    )


def test_a_few_convolutions_and_other_ops_have_no_drift(tmp_path: Path) -> None:
    few = [f"conv,{1 + at},Tesla T4,2,64,{64 + at},3,8,1,1" for at in range(50)]
    products = [f"linear,{1 + at},Tesla T4,1,{64 + at},64,64" for at in range(500)]
    for name, header, lines in (("c.csv", CONV, few), ("g.csv", GEMM, products)):
        rows = read_ops([write(tmp_path / name, header, *lines)])
        assert {row.drift_s for row in rows} == {0.0}


def test_rows_and_compressed_files_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.csv.gz"
    path.write_bytes(gzip.compress(f"{ROWS}\nln,1,Tesla P4,10,20\nadd,1,Tesla P4,10,20\n".encode()))
    norm, add = read_ops([path])
    assert (norm.op_class, norm.shape, norm.bytes_moved) == ("norm", (1, 10, 20, 1), 4 * 2 * 200)
    assert (add.op_class, add.bytes_moved) == ("elementwise", 4 * 3 * 200)


def test_layers_in_half_precision_are_read(tmp_path: Path) -> None:
    columns = [
        f"time_stats.{n}.median" for n in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
    ]
    header = ",".join([*columns, "num_tokens", "n_embd", "n_expanded_embd", "num_tensor_parallel_workers"])
    rows = read_ops([write(tmp_path / "h100.mlp.csv", header, "1,2,,4,64,128,512,2")])
    assert [row.shape for row in rows] == [(1, 64, 192, 128), (1, 64, 128, 64), (1, 64, 128, 256)]
    assert {(row.kind, row.op_class, row.dtype) for row in rows} == {
        ("h100-sxm5-80gb", "gemm-tensor", "fp16")
    }
    with pytest.raises(MeasuredOpsError, match="names no device; begin its name with one of a100, h100"):
        read_ops([write(tmp_path / "b200.mlp.csv", header, "1,2,,4,64,128,512,2")])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("linear,0,Tesla T4,1,1,1,1", "line 2: Latency is 0; expected milliseconds, more than 0"),
        ("linear,-1,Tesla T4,1,1,1,1", "line 2: Latency is -1; expected milliseconds, more than 0"),
        ("linear,nan,Tesla T4,1,1,1,1", "line 2: Latency is 'nan'; expected a number"),
        ("linear,1,Tesla T4,1,1,0,1", "line 2: N is 0; expected a whole number, at least 1"),
        ("linear,1,Tesla T4,1,1,1.5,1", "line 2: N is 1.5; expected a whole number, at least 1"),
        ("linear,1,Radeon,1,1,1,1", "line 2: no device kind is known for 'Radeon'"),
        ("fft,1,Tesla T4,1,1,1,1", "line 2: OPName is 'fft'; known ops are add, addu, bmm"),
        ("linear,1,Tesla T4,1,1", "line 2: column 'N' is missing"),
        ("ln,1,Tesla T4,1,1,1,1", "line 2: column 'H' is missing"),
    ],
)
def test_impossible_rows_are_one_line(tmp_path: Path, line: str, message: str) -> None:
    path = write(tmp_path / "bad.csv", GEMM, line)
    with pytest.raises(MeasuredOpsError, match=message):
        read_ops([path])


def test_missing_and_broken_files_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "broken.csv.gz").write_bytes(b"no gzip")
    for name, why in (("none.csv", "No such file or directory"), ("broken.csv.gz", "Not a gzipped file")):
        with pytest.raises(MeasuredOpsError, match=f"{name}: cannot be read: {why}"):
            read_ops([tmp_path / name])


@pytest.mark.parametrize("op_class", ["gemm", "bmm", "conv", "softmax", "norm", "elementwise"])
def test_a_fit_predicts_the_rows_held_out(op_class: str) -> None:
    fit = fit_class(synthetic("v100-pcie-32gb", op_class))
    assert (fit.rows, fit.held_out_rows) == (150, 150)
    assert fit.median < 0.04
    assert fit.median <= fit.p90 < 0.15


def test_the_same_rows_give_the_same_fit() -> None:
    assert fit_class(synthetic("t4", "bmm")) == fit_class(synthetic("t4", "bmm"))


def test_the_split_is_by_shape_alone(tmp_path: Path) -> None:
    lines = [f"linear,1,{kind},1,{m},64,64" for kind in ("Tesla T4", "NVIDIA L4") for m in range(1, 200)]
    t4, l4 = sorted(
        tables(read_ops([write(tmp_path / "a.csv", GEMM, *lines)])), key=lambda table: table.kind
    )[::-1]
    np.testing.assert_array_equal(t4.held_out, l4.held_out)
    assert 60 < t4.held_out.sum() < 140


def test_kinds_without_rows_take_the_medians_of_their_generation() -> None:
    calibrations = {c.kind: c for c in calibrate([synthetic("t4", "gemm"), synthetic("t4", "elementwise")])}
    titan, v100 = calibrations["titan-rtx"], calibrations["v100-pcie-32gb"]
    assert titan.origin == "medians of turing (elementwise, gemm)"
    assert v100.origin == "medians of all kinds (elementwise, gemm)"
    assert calibrations["t4"].origin == "measured (elementwise, gemm)"
    measured, taken = calibrations["t4"].classes["gemm"].model, titan.classes["gemm"].model
    assert taken == replace(measured, sustained=power_share(KINDS["titan-rtx"], "fp32"))  # type: ignore[type-var]


def test_a_kind_does_not_stand_in_for_itself() -> None:
    fits = {"t4": {"gemm": fit_class(synthetic("t4", "gemm"))}}
    assert stand_in(KINDS["t4"], "gemm", fits) is None


def test_a_fit_does_not_depend_on_the_kinds_fitted_before() -> None:
    table = synthetic("v100-pcie-32gb", "gemm")
    before = fit_class(table)
    fit_class(synthetic("l4", "gemm"))
    assert fit_class(table) == before


def test_matrix_products_are_taken_from_like_chips_and_traffic_from_the_generation() -> None:
    kinds = ("p4", "t4")
    fits = {kind: {name: fit_class(synthetic(kind, name)) for name in ("gemm", "norm")} for kind in kinds}
    origins = [stand_in(KINDS["p100-pcie-16gb"], name, fits) for name in ("gemm", "norm")]
    assert [origin[1] for origin in origins if origin] == ["all kinds", "pascal"]


def test_only_boards_that_power_limits_have_bursts() -> None:
    models = {kind: fit_class(synthetic(kind, "gemm")).model for kind in ("p4", "v100-pcie-32gb")}
    assert models["p4"].burst > 1.05  # type: ignore[union-attr]
    assert models["v100-pcie-32gb"].burst == 1.0  # type: ignore[union-attr]


def limited(*, burst: float, longest_s: float) -> OpTable:
    """Products of a board that power limits, with errors of 10 %, those of wide outputs 10 % slower."""
    calibration = calibration_of("p4")
    assert calibration
    model = calibration.classes["gemm"].model
    assert isinstance(model, MatmulModel)
    table = synthetic("p4", "gemm", 600)
    rows = table.shape * [1, 8, 1, 1]
    table = replace(table, shape=rows, flops=8 * table.flops, bytes_moved=8 * table.bytes_moved)
    exact = predict(replace(model, burst=burst), table, KINDS["p4"])
    slower = np.where(table.shape[:, 2] > 2000, 1.1, 1.0)
    table = replace(table, seconds=exact * slower * np.exp(np.random.default_rng(1).normal(0, 0.1, 600)))
    return table.select(table.seconds < longest_s)


@pytest.mark.parametrize(("true_burst", "longest_s", "kept"), [(1.6, 1e3, 1), (1.0, 1e3, 0), (1.0, 0.09, 1)])
def test_long_products_tell_whether_a_board_has_bursts(
    true_burst: float, longest_s: float, kept: bool
) -> None:
    """Large products that are slow for their shape are no sign of one; without long ones it is assumed."""
    fitted = fit_class(limited(burst=true_burst, longest_s=longest_s)).model
    assert isinstance(fitted, MatmulModel)
    assert (fitted.burst > 1.01) == kept


def test_a_fit_without_a_burst_keeps_what_power_does_not_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kinds with more power take it from others."""
    table = limited(burst=1.0, longest_s=1e3)
    without = fit_class(table).model
    monkeypatch.setattr("agent.calibration.fit.LONG_ROWS", 10**6)
    with_burst = fit_class(table).model
    assert isinstance(without, MatmulModel)
    assert isinstance(with_burst, MatmulModel)
    assert without.burst == 1.0 < with_burst.burst
    assert without.efficiency == pytest.approx(with_burst.efficiency, rel=0.01)


def test_power_limits_small_boards() -> None:
    assert power_share(KINDS["v100-sxm2-16gb"], "fp32") == 1.0
    assert 0.25 < power_share(KINDS["l4"], "fp32") < 0.4
    assert 0.4 < power_share(KINDS["t4"], "fp32") < 0.6


def test_the_command_fits_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gemm = write(
        tmp_path / "g.csv", GEMM, *[f"linear,{m / 100},Tesla T4,1,{m},512,512" for m in range(64, 2048, 64)]
    )
    rows = write(tmp_path / "r.csv", ROWS, *[f"add,{b / 10},Tesla T4,{b * 1000},1024" for b in range(1, 30)])
    assert main(["fit", "--ops", str(gemm), str(rows), "--out", str(tmp_path / "out")]) == 0
    assert "t4: measured (elementwise, gemm)" in capsys.readouterr().out
    assert {path.stem for path in (tmp_path / "out").glob("*.json")} == set(KINDS)
    assert read_calibration(tmp_path / "out" / "t4.json").classes["gemm"].rows > 0


def test_the_command_says_in_one_line_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "bad.csv", GEMM, "linear,-1,Tesla T4,1,1,1,1")
    assert main(["fit", "--ops", str(path), "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("lines", [[GEMM], [ROWS, "add,1,Tesla P4,10,20"]])
def test_files_without_the_ops_that_others_stand_on_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: list[str]
) -> None:
    path = write(tmp_path / "few.csv", *lines)
    assert main(["fit", "--ops", str(path), "--out", str(tmp_path / "out")]) == 2
    message = (
        "python -m agent.calibration: no file holds measured ops of class 'gemm'; give such a file too\n"
    )
    assert capsys.readouterr().err == message
    assert not (tmp_path / "out").exists()
