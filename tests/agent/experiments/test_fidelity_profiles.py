"""Profiles of linear layers: their shapes, and how far predictions are from them."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from agent.experiments.fidelity import __main__ as fidelity
from agent.experiments.fidelity.profiles import ProfileRow, compare_profiles, profiles_table
from agent.experiments.fidelity.steps import MeasurementError
from envs.cluster.cluster import ClusterError
from envs.cluster.kinds import LAUNCH_S, device_of_name

HEAD = "op_name,forward-compute,weights,activations"
LAYERS = (
    "encoder-embedding,99,1,1",
    "enc-attention-qkv,1000,12,48",
    "enc-attention-dense,1000,4,16",
    "enc-MLP-GEMM-1,1000,16,64",
    "enc-MLP-GEMM-2,1000,16,16",
)
"""Of a hidden size of 1,024 and 4,096 tokens in fp32."""


def profile(folder: Path, *lines: str, gpu: str = "V100-16", inside: str = "profiled-data-fp32") -> Path:
    path = folder / gpu / inside / "OPT-350_mbs2_tp1_algo0.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([HEAD, *lines]))
    return path


def test_sizes_give_the_shapes(tmp_path: Path) -> None:
    rows, left_out = compare_profiles([profile(tmp_path, *LAYERS)])
    assert [row.name for row in rows] == [
        "enc-attention-qkv 4096 3072 1024",
        "enc-attention-dense 4096 1024 1024",
        "enc-MLP-GEMM-1 4096 4096 1024",
        "enc-MLP-GEMM-2 4096 1024 4096",
    ]
    assert {(row.device, row.dtype, row.measured_s) for row in rows} == {("V100-16", "fp32", 1e-3)}
    work_s = 2 * 4096 * 3072 * 1024 / device_of_name("V100-16").peak("fp32")
    assert rows[0].roofline_s == pytest.approx(LAUNCH_S + work_s)
    assert work_s < rows[0].predicted_s < 1.5 * work_s
    assert not left_out


def test_half_precision_has_half_the_bytes_and_tensor_cores(tmp_path: Path) -> None:
    path = profile(tmp_path, "enc-attention-qkv,100,6,24", inside="profiled-data-fp16")
    ((row,), _) = compare_profiles([path])
    assert row.name == "enc-attention-qkv 4096 3072 1024"
    work_s = 2 * 4096 * 3072 * 1024 / 125e12
    assert row.roofline_s == pytest.approx(LAUNCH_S + work_s)


def test_fp32_is_tf32_where_boards_have_it(tmp_path: Path) -> None:
    rows, _ = compare_profiles([profile(tmp_path, LAYERS[1], gpu="A100-40")])
    assert rows[0].dtype == "tf32"
    assert rows[0].roofline_s == pytest.approx(LAUNCH_S + 2 * 4096 * 3072 * 1024 / 156e12)


def test_a_board_of_unknown_kind_is_left_out(tmp_path: Path) -> None:
    rows, left_out = compare_profiles([profile(tmp_path, *LAYERS, gpu="RTX-2080")])
    assert rows == []
    ((reason, count),) = left_out.items()
    assert reason.startswith("RTX-2080 is no RTX 2080")
    assert count == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("enc-attention-qkv,fast,12,48", "line 2: forward-compute is 'fast'; expected a number, more than 0"),
        ("enc-attention-qkv,0,12,48", "line 2: forward-compute is '0'; expected a number, more than 0"),
        ("enc-attention-qkv,1,12", "line 2: activations is None; expected a number, more than 0"),
        ("enc-attention-qkv,1,12,1e-9", "line 2: weights and activations are those of no linear layer"),
        ("enc-attention-qkv,1,1e-9,48", "line 2: weights and activations are those of no linear layer"),
        ("final-layernorm,1,12,48", "holds no linear layers; their op_name is one of enc-attention-qkv"),
    ],
)
def test_bad_profiles_are_one_line(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(MeasurementError, match=message) as caught:
        compare_profiles([profile(tmp_path, line)])
    assert "\n" not in str(caught.value)


def test_other_folders_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(MeasurementError, match="stands in another folder than <GPU>/profiled-data-"):
        compare_profiles([profile(tmp_path, *LAYERS, inside="profiled-data-fp8")])
    with pytest.raises(ClusterError, match="no device kind is known for 'Voodoo2'"):
        compare_profiles([profile(tmp_path, *LAYERS, gpu="Voodoo2")])
    with pytest.raises(MeasurementError, match="cannot be read"):
        compare_profiles([tmp_path / "V100-16" / "profiled-data-fp16" / "none.csv"])


def test_the_table_has_ratios_and_errors() -> None:
    rows = [ProfileRow("a", "fp16", "x", value, 0.5, 1.0) for value in (0.9, 1.0, 1.2)]
    assert profiles_table(rows)[1] == ["a", "fp16", "3", "1.00", "10.0%", "18.0%", "50.0%", "50.0%"]


def test_the_command_writes_a_row_per_layer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fidelity, "compare_steps", lambda folder, out: None)
    files = [str(profile(tmp_path, *LAYERS, gpu=gpu)) for gpu in ("V100-16", "RTX-2080")]
    assert fidelity.main(["--profiles", *files, "--out", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "| V100-16 | fp32 | 4 |" in printed
    assert "1 left out: RTX-2080" in printed
    with (tmp_path / "out" / "profiles.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 4
